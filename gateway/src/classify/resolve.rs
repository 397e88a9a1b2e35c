//! From the name in a request to a served model.

use std::collections::BTreeSet;

use deltagate_decider::{RequestError, Violation};
use deltagate_mesh::error::ServiceError;

use super::refusal::Refusal;
use crate::{config::GatewayConfig, view::Assessment};

/// The served name that is meant. Unknown means no: a name is NOT_FOUND only when every executor's model is known.
pub(super) fn resolve(
    asked: Option<&str>,
    assessment: &Assessment,
    config: &GatewayConfig,
) -> Result<String, Refusal> {
    if let Some(obstacle) = assessment.mesh.first() {
        return Err(obstacle.to_error(config.limits.retry_after).into());
    }
    let served: BTreeSet<&str> = assessment
        .executors
        .iter()
        .map(|executor| executor.model_name())
        .filter(|name| !name.is_empty())
        .collect();
    let asked = asked.or(config.default_model.as_deref());
    let name = match asked {
        Some(asked) => config.aliases.get(asked).map_or(asked, String::as_str),
        None => match served.iter().next() {
            Some(only) if served.len() == 1 => only,
            Some(_) => return Err(ambiguous(served.len())),
            None => "",
        },
    };
    if served.contains(name) {
        return Ok(name.to_owned());
    }
    let unnamed = assessment
        .executors
        .iter()
        .find(|executor| executor.model_name().is_empty());
    if let Some(obstacle) = unnamed.and_then(|executor| executor.verdict.as_ref().err()) {
        return Err(obstacle.to_error(config.limits.retry_after).into());
    }
    // The name itself is text of the caller and is not repeated.
    Err(
        ServiceError::not_found("MODEL_NOT_FOUND", "no such model is served")
            .field("model", "MODEL_NOT_FOUND", "is not served")
            .into(),
    )
}

fn ambiguous(count: usize) -> Refusal {
    let message = format!("a model must be named, {count} are served");
    Refusal::Request(RequestError::unanswerable(Violation::new(
        ["model".into()],
        "MODEL_REQUIRED",
        message,
    )))
}
