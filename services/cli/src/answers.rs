//! A response as it is printed: for a person, and as the documented JSON shape.

use std::time::Duration;

use deltagate_proto::v1::{self as pb, answer, content};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// `classify --json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResponseDocument {
    pub(crate) request_id: String,
    pub(crate) model: String,
    /// Question id → answer, in the order of the questions, in the shape of `POST /v1/systemone`.
    pub(crate) answers: Map<String, Value>,
    pub(crate) input_tokens: u64,
    pub(crate) capability_fingerprint: String,
    pub(crate) timings_ms: TimingsDocument,
}

/// Milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TimingsDocument {
    pub(crate) total: f64,
    pub(crate) tokenize: f64,
    pub(crate) policy: f64,
    pub(crate) queue: f64,
    pub(crate) forward: f64,
    pub(crate) kernels: Vec<KernelDocument>,
}

/// One kernel family.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KernelDocument {
    pub(crate) family: &'static str,
    pub(crate) backend: String,
    pub(crate) busy_ms: f64,
    pub(crate) launches: u64,
}

/// Milliseconds of a proto duration; 0 when absent.
pub(crate) fn millis(duration: Option<&prost_types::Duration>) -> f64 {
    duration
        .and_then(|d| Duration::try_from(*d).ok())
        .map_or(0.0, |d| d.as_secs_f64() * 1e3)
}

impl From<pb::ClassifyResponse> for ResponseDocument {
    fn from(response: pb::ClassifyResponse) -> Self {
        let timings = response.timings.unwrap_or_default();
        Self {
            request_id: response.request_id,
            model: response.model,
            answers: response
                .answers
                .into_iter()
                .map(|a| (a.question_id, answer(a.answer)))
                .collect(),
            input_tokens: response.usage.map_or(0, |u| u.input_tokens),
            capability_fingerprint: response.capability_fingerprint,
            timings_ms: TimingsDocument {
                total: millis(timings.total.as_ref()),
                tokenize: millis(timings.tokenize.as_ref()),
                policy: millis(timings.policy.as_ref()),
                queue: millis(timings.queue.as_ref()),
                forward: millis(timings.forward.as_ref()),
                kernels: timings
                    .kernels
                    .into_iter()
                    .map(|k| KernelDocument {
                        family: k.family().name(),
                        busy_ms: millis(k.busy.as_ref()),
                        backend: k.backend,
                        launches: k.launches,
                    })
                    .collect(),
            },
        }
    }
}

fn answer(answer: Option<answer::Answer>) -> Value {
    match answer {
        Some(answer::Answer::Choice(c)) => {
            let p: Map<_, _> = c
                .probabilities
                .into_iter()
                .map(|p| (p.name, json!(p.probability)))
                .collect();
            json!({"type": "choice", "choice": c.choice, "confidence": c.confidence, "probabilities": p})
        }
        Some(answer::Answer::Score(s)) => {
            let legend: Map<_, _> = s
                .probabilities
                .iter()
                .map(|p| (p.level.to_string(), content(p.legend.as_ref())))
                .collect();
            let p: Map<_, _> = s
                .probabilities
                .iter()
                .map(|p| (p.level.to_string(), json!(p.probability)))
                .collect();
            json!({"type": "score", "score": s.score, "confidence": s.confidence, "legend": legend, "probabilities": p})
        }
        Some(answer::Answer::Noul(n)) => json!({"type": "noul", "noul": n.noul}),
        None => Value::Null,
    }
}

fn content(content: Option<&pb::Content>) -> Value {
    match content.and_then(|c| c.kind.as_ref()) {
        Some(content::Kind::Text(text)) => Value::String(text.clone()),
        Some(content::Kind::Json(json)) => serde_json::from_str(json).unwrap_or(Value::Null),
        None => Value::Null,
    }
}

/// For a person: the answers, what computed them, and where the time went.
pub(crate) fn text(document: &ResponseDocument) -> String {
    let mut out = String::new();
    for (id, answer) in &document.answers {
        out += &format!("  {id}: {}\n", one_line(answer));
    }
    let t = &document.timings_ms;
    out += &format!(
        "  {} tokens in {:.2} ms: tokenize {:.2}, policy {:.2}, queue {:.2}, forward {:.2}\n",
        document.input_tokens, t.total, t.tokenize, t.policy, t.queue, t.forward
    );
    out += &format!(
        "  computed by {} on binding {}",
        document.model,
        short(&document.capability_fingerprint)
    );
    out
}

/// Where the time of one request went, a line per kernel family.
pub(crate) fn kernels(document: &ResponseDocument) -> String {
    let total: f64 = document.timings_ms.kernels.iter().map(|k| k.busy_ms).sum();
    let mut lines = Vec::new();
    for k in &document.timings_ms.kernels {
        let share = if total > 0.0 { k.busy_ms / total } else { 0.0 };
        lines.push(format!(
            "  {:<11} {:<14} {:>8.3} ms {:>5.1} % {:<20} {:>4} launches",
            k.family,
            k.backend,
            k.busy_ms,
            share * 100.0,
            "#".repeat((share * 20.0).round() as usize),
            k.launches
        ));
    }
    lines.join("\n")
}

/// The first twelve characters of a digest.
pub(crate) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn one_line(answer: &Value) -> String {
    let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    let probabilities = |answer: &Value| {
        let all = answer["probabilities"].as_object().cloned().unwrap_or_default();
        all.iter()
            .map(|(name, p)| format!("{name} {:.3}", number(p)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match answer["type"].as_str() {
        Some("choice") => format!(
            "{} (confidence {:.3}; {})",
            answer["choice"].as_str().unwrap_or_default(),
            number(&answer["confidence"]),
            probabilities(answer)
        ),
        Some("score") => format!(
            "{:.3} (confidence {:.3}; {})",
            number(&answer["score"]),
            number(&answer["confidence"]),
            probabilities(answer)
        ),
        Some("noul") => {
            let p = number(&answer["noul"]);
            format!(
                "{} (probability of yes {p:.3})",
                if p >= 0.5 { "yes" } else { "no" }
            )
        }
        _ => "no answer".to_owned(),
    }
}
