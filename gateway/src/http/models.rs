//! `GET /v1/models`, in the key sets of both kinds of clients.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use deltagate_proto::v1::ModelInfo;
use serde_json::{Value, json};

use super::{Face, respond};

/// Shown when a checkpoint does not say when it was released.
const UNKNOWN_DATE: &str = "1970-01-01";

pub(super) async fn list(State(face): State<Face>) -> Response {
    let assessment = face.classifier.view().assess();
    if let Some(obstacle) = assessment.mesh.first() {
        return respond::service_error(obstacle.to_error(face.classifier.config().limits.retry_after));
    }
    // Only what a request would be answered by.
    let served: BTreeMap<&str, (&ModelInfo, bool)> = assessment
        .executors
        .iter()
        .filter_map(|executor| {
            let lease = executor.verdict.as_ref().ok()?;
            let model = executor.snapshot.model.as_ref()?;
            Some((model.name.as_str(), (model, lease.model.family.joint())))
        })
        .collect();
    let aliases = face.classifier.config().aliases.iter();
    let aliases = aliases.filter_map(|(alias, name)| Some((alias.as_str(), *served.get(name.as_str())?)));
    // An alias wins over a model of that name, as it does in a request.
    let mut listed = served.clone();
    listed.extend(aliases);
    let models: Vec<Value> = listed
        .iter()
        .map(|(name, (model, joint))| {
            json!({"name": name, "description": describe(name, model, *joint), "release_date": release_date(model)})
        })
        .collect();
    let data: Vec<Value> = listed
        .iter()
        .map(|(name, (model, _))| {
            json!({"id": name, "object": "model", "created": created(release_date(model)), "owned_by": "deltagate"})
        })
        .collect();
    Json(json!({"models": models, "object": "list", "data": data})).into_response()
}

fn describe(name: &str, model: &ModelInfo, joint: bool) -> String {
    let of = if name == model.name {
        String::new()
    } else {
        format!("alias of {}: ", model.name)
    };
    let questions = if joint {
        "the questions of a request are answered jointly"
    } else {
        "each question is answered alone"
    };
    format!(
        "{of}{} decider, {} parameters, {}, up to {} tokens, {questions}",
        model.family, model.parameters, model.dtype, model.max_tokens
    )
}

fn release_date(model: &ModelInfo) -> &str {
    if model.release_date.is_empty() {
        UNKNOWN_DATE
    } else {
        &model.release_date
    }
}

/// Seconds since 1970 of `YYYY-MM-DD`, by the civil calendar; 0 for anything else.
fn created(date: &str) -> i64 {
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (Some(Some(year)), Some(Some(month)), Some(Some(day))) = (parts.next(), parts.next(), parts.next())
    else {
        return 0;
    };
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return 0;
    }
    // Years begin in March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    (days - 719_468) * 86_400
}

#[cfg(test)]
mod tests {
    use super::created;

    #[test]
    fn dates_are_seconds() {
        assert_eq!(created("1970-01-01"), 0);
        assert_eq!(created("2026-10-01"), 1_790_812_800);
        assert_eq!(created("2000-02-29"), 951_782_400);
        for odd in ["", "x", "2026-13-01", "2026-1", "99999999999999999999-01-01"] {
            assert_eq!(created(odd), 0, "{odd}");
        }
    }
}
