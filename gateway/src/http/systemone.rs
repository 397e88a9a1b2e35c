//! `POST /v1/systemone`.

use std::time::{Duration, Instant};

use axum::{
    Extension, Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use deltagate_decider::{Family, Served, systemone};
use serde_json::{Map, Value, json};

use super::{Face, body, envelope::RequestId, peek, respond};
use crate::classify::{Call, Classified, Timings};

pub(super) async fn classify(
    State(face): State<Face>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    request: Request,
) -> Response {
    let arrived = Instant::now();
    let classifier = &face.classifier;
    let limits = &classifier.config().limits;
    let deadline = classifier.deadline(arrived, None);

    let read = body::read(request, limits.max_body_bytes);
    let bytes = match tokio::time::timeout_at(deadline.into(), read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return respond::body_error(&error),
        Err(_) => return respond::slow_body(),
    };
    let model = match peek::model(&bytes) {
        Ok(model) => model,
        Err(peek::Unreadable) => match systemone::parse_body(&bytes, &systemone::Rules::default()) {
            Err(error) => return respond::request_error(error),
            Ok(parsed) => parsed.model,
        },
    };
    let max_questions = limits.max_questions;
    let text_bytes = bytes.len();
    let decode = move |family: &dyn Family| {
        let mut rules = family.systemone_rules();
        rules.limits.max_questions = rules.limits.max_questions.min(max_questions);
        Ok(systemone::parse_body(&bytes, &rules)?.request)
    };
    let asked = model.clone();
    let call = Call {
        request_id,
        model,
        decode: Box::new(decode),
        text_bytes,
        arrived,
        deadline,
    };
    match classifier.classify(call, None).await {
        Ok(classified) if classifier.config().own_responses.contains(&classified.model) => {
            Json(own(&classified, asked.as_deref())).into_response()
        }
        Ok(classified) => Json(render(classified)).into_response(),
        Err(refusal) => respond::refusal(refusal),
    }
}

/// The body of the family's own server.
fn own(classified: &Classified, asked_model: Option<&str>) -> Value {
    classified.family.own_response(&Served {
        model: &classified.model,
        asked_model,
        request: &classified.request,
        answers: &classified.answers,
        latency: classified.timings.total,
    })
}

fn render(classified: Classified) -> Value {
    let mut extras = Map::new();
    extras.insert("capability_fingerprint".into(), classified.fingerprint.into());
    extras.insert("latency_ms".into(), json!(millis(classified.timings.total)));
    extras.insert("x_timings".into(), timings(&classified.timings));
    systemone::render_response(&classified.model, &classified.answers, extras)
}

fn timings(timings: &Timings) -> Value {
    let kernels: Vec<Value> = timings
        .kernels
        .iter()
        .map(|kernel| {
            json!({
                "family": kernel.family.name(),
                "backend": kernel.backend,
                "busy_ms": millis(kernel.busy),
                "launches": kernel.launches,
            })
        })
        .collect();
    json!({
        "total_ms": millis(timings.total),
        "tokenize_ms": millis(timings.tokenize),
        "policy_ms": millis(timings.policy),
        "queue_ms": millis(timings.queue),
        "forward_ms": millis(timings.forward),
        "kernels": kernels,
    })
}

/// Milliseconds with microsecond resolution.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
