//! `/health` with reasons, `/livez`, `/readyz`, `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use deltagate_mesh::{error::ServiceError, metrics};
use deltagate_proto::v1::{BindingState, CapabilitySnapshot};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};

use super::{Face, respond};
use crate::view::{AssessedExecutor, Assessment, Obstacle};

/// 200 only when a request would be answered; the reasons otherwise.
pub(super) async fn health(State(face): State<Face>) -> Response {
    let judged = face.readiness.judge();
    let shown = judged
        .assessment
        .executors
        .iter()
        .max_by_key(|executor| executor.verdict.is_ok())
        .map(|executor| executor.snapshot.as_ref());
    let body = json!({
        "status": if judged.ready { "ok" } else { "unavailable" },
        "model": shown.and_then(|snapshot| snapshot.model.as_ref()).map(|model| model.name.as_str()),
        "backend": shown.map(backend).unwrap_or_default(),
        "bindings": shown.map(bindings).unwrap_or_default(),
        "fingerprint": shown.map(|snapshot| snapshot.fingerprint.as_str()).unwrap_or_default(),
        "device": shown.and_then(|snapshot| snapshot.device.as_ref()).map(|device| device.name.as_str()),
        "max_length": shown.and_then(|snapshot| snapshot.model.as_ref()).map(|model| model.max_tokens),
        "policy": judged.assessment.bundle.as_deref().map(|bundle| bundle.name()),
        "models": models(&judged.assessment),
        "images": false,
        "reasons": judged.reasons,
    });
    let status = if judged.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(body)).into_response()
}

/// 200 for as long as the process answers at all.
pub(super) async fn live() -> Response {
    Json(json!({"status": "alive"})).into_response()
}

/// The status of `/health` without its detail.
pub(super) async fn ready(State(face): State<Face>) -> Response {
    if face.readiness.judge().ready {
        Json(json!({"status": "ready"})).into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"status": "unavailable"})),
        )
            .into_response()
    }
}

/// What this process counts, in Prometheus's text format.
pub(super) async fn metrics() -> Response {
    match metrics::text() {
        Some(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        None => respond::service_error(ServiceError::unavailable(
            "NO_METRICS",
            "this process has no metrics",
        )),
    }
}

/// Names of all bound backends, such as `cpu.chunked+cpu.conv1d`.
fn backend(snapshot: &CapabilitySnapshot) -> String {
    let bound = snapshot
        .bindings
        .iter()
        .filter(|binding| binding.state() == BindingState::Bound);
    let names: BTreeSet<&str> = bound.map(|binding| binding.backend.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join("+")
}

/// Every model that is served or was served lately, by name: how many executors it has, how many of them can be used,
/// and what stands in the way of the others.
fn models(assessment: &Assessment) -> Vec<Value> {
    let mut models: BTreeMap<&str, Vec<&AssessedExecutor>> = BTreeMap::new();
    for name in &assessment.missed {
        models.entry(name).or_default();
    }
    for executor in assessment.executors.iter().filter(|e| !e.model_name().is_empty()) {
        models.entry(executor.model_name()).or_default().push(executor);
    }
    let shown = models.into_iter().map(|(name, executors)| {
        let ready: Vec<_> = executors.iter().filter(|e| e.verdict.is_ok()).collect();
        let fingerprints: BTreeSet<&str> = ready.iter().map(|e| e.snapshot.fingerprint.as_str()).collect();
        let mut reasons: Vec<String> = executors
            .iter()
            .filter_map(|e| e.verdict.as_ref().err())
            .map(Obstacle::line)
            .collect();
        if executors.is_empty() {
            reasons.push("NO_EXECUTOR: no executor serves this model now".to_owned());
        }
        json!({
            "name": name,
            "executors": executors.len(),
            "ready": if assessment.mesh.is_empty() { ready.len() } else { 0 },
            "fingerprints": fingerprints,
            "reasons": reasons,
        })
    });
    shown.collect()
}

/// Family to backend; null where none is bound.
fn bindings(snapshot: &CapabilitySnapshot) -> Map<String, Value> {
    let named = snapshot.bindings.iter().map(|binding| {
        let bound = binding.state() == BindingState::Bound;
        (
            binding.family().name().to_owned(),
            bound.then(|| binding.backend.clone()).into(),
        )
    });
    named.collect()
}
