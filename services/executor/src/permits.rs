//! Who may run a plan: whoever shows a permit that policy signed for this executor and for this very binding.

use std::time::SystemTime;

use arc_swap::ArcSwap;
use deltagate_mesh::{
    error::ServiceError,
    permit::{self, KeyRing},
};
use deltagate_proto::v1;

/// Checks permits against the keys that policy sent with its last answer. Knows no key, and so admits nobody, until
/// policy has answered once.
#[derive(Debug)]
pub(crate) struct PermitGate {
    instance_id: String,
    keys: ArcSwap<KeyRing>,
}

impl PermitGate {
    /// A gate that admits nobody yet.
    pub(crate) fn new(instance_id: &str) -> Self {
        Self {
            instance_id: instance_id.to_owned(),
            keys: ArcSwap::default(),
        }
    }

    /// Replaces the keys.
    pub(crate) fn learn(&self, keys: &[v1::VerifyingKey]) {
        self.keys.store(KeyRing::new(keys).into());
    }

    /// The claims of a permit that holds now, for this executor and this fingerprint.
    pub(crate) fn check(
        &self,
        permit: Option<&v1::SignedPermit>,
        fingerprint: &str,
    ) -> Result<v1::PermitClaims, ServiceError> {
        let claims = permit::verify(
            permit,
            &self.keys.load(),
            &self.instance_id,
            fingerprint,
            SystemTime::now(),
        )?;
        Ok(claims)
    }
}
