//! From the name in a request to a served model.

use std::collections::BTreeSet;

use deltagate_decider::{RequestError, Violation};
use deltagate_mesh::error::ServiceError;

use super::refusal::Refusal;
use crate::{
    config::GatewayConfig,
    view::{Assessment, Obstacle},
};

/// Most names in the message to a caller who must choose one.
const NAMES_SHOWN: usize = 16;

/// The served name that is meant. Unknown means no: a name is NOT_FOUND only when every executor's model is known, and
/// when neither the configuration nor the recent past knows the name.
pub(super) fn resolve(
    asked: Option<&str>,
    assessment: &Assessment,
    config: &GatewayConfig,
) -> Result<String, Refusal> {
    let retry_after = config.limits.retry_after;
    if let Some(obstacle) = assessment.mesh.first() {
        return Err(obstacle.to_error(retry_after).into());
    }
    let served: BTreeSet<&str> = assessment
        .executors
        .iter()
        .map(|executor| executor.model_name())
        .filter(|name| !name.is_empty())
        .collect();
    let aliased = |name| config.aliases.get(name).map(String::as_str);
    let name = match asked.or(config.default_model.as_deref()) {
        Some(asked) => aliased(asked).unwrap_or(asked),
        None => match served.iter().next() {
            Some(only) if served.len() == 1 => only,
            Some(_) => return Err(ambiguous(&served)),
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
        return Err(obstacle.to_error(retry_after).into());
    }
    let configured = asked.is_none_or(|asked| aliased(asked).is_some());
    if configured || assessment.missed.contains(name) {
        let away = Obstacle::away("NO_EXECUTOR", "no executor serves this model now");
        return Err(away.to_error(retry_after).into());
    }
    // The name itself is text of the caller and is not repeated.
    Err(
        ServiceError::not_found("MODEL_NOT_FOUND", "no such model is served")
            .field("model", "MODEL_NOT_FOUND", "is not served")
            .into(),
    )
}

/// Names what there is to choose from.
fn ambiguous(served: &BTreeSet<&str>) -> Refusal {
    let shown: Vec<&str> = served.iter().copied().take(NAMES_SHOWN).collect();
    let rest = match served.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("a model must be named: {}{rest} are served", shown.join(", "));
    Refusal::Request(RequestError::unanswerable(Violation::new(
        ["model".into()],
        "MODEL_REQUIRED",
        message,
    )))
}
