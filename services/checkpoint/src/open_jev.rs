//! `open_jev_export.json` of the Open-Jev family.

use serde_json::Value;

use crate::{
    AttentionMode, Finding, Problem,
    family::{Family, number},
};

/// Name of the family.
pub(crate) const NAME: &str = "open_jev";
/// Written last by the exporter: a folder that has it is complete.
pub(crate) const EXPORT: &str = "open_jev_export.json";
/// The decision head as it is trained. A folder that has it and no export holds a base model and an adapter.
pub(crate) const UNMERGED: &str = "head.pt";
const FORMAT: &str = "open-jev-text-merged/1";
const MAX_LENGTH_LIMIT: u32 = 16_384;
/// Longest prompt of an export that does not say.
const DEFAULT_MAX_LENGTH: u32 = 4_096;
const REQUIRED: [&str; 9] = [
    "format",
    "model_id",
    "base_revision",
    "checkpoint_revision",
    "temperature",
    "chat_prefix",
    "chat_suffix",
    "head_weight",
    "head_bias",
];

/// Checks the content; what is wrong becomes a finding.
pub(crate) fn read(
    bytes: Vec<u8>,
    value: Value,
    hidden_size: Option<usize>,
    findings: &mut Vec<Finding>,
) -> Family {
    let mut max_tokens = DEFAULT_MAX_LENGTH;
    let mut refuse = |key: &str, reason: String| {
        findings.push(Finding::of(EXPORT, key, Problem::Key { reason }));
    };
    match value.get("format").map(Value::as_str) {
        None | Some(Some(FORMAT)) => check(&value, hidden_size, &mut max_tokens, &mut refuse),
        // Another format may mean anything by the other keys.
        Some(_) => refuse(
            "format",
            format!("is not `{FORMAT}`, the only one that this version knows"),
        ),
    }
    Family {
        name: NAME,
        tokens: Vec::new(),
        config: value,
        files: vec![(EXPORT, bytes)],
        attention: AttentionMode::Causal,
        release_date: None,
        max_tokens: Some(max_tokens),
        side: None,
        decision_head: None,
        joint_head: None,
        needs_output_embedding: false,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: None,
    }
}

fn check(
    value: &Value,
    hidden_size: Option<usize>,
    max_tokens: &mut u32,
    refuse: &mut impl FnMut(&str, String),
) {
    for key in REQUIRED.into_iter().filter(|key| value.get(*key).is_none()) {
        refuse(key, "is missing".to_owned());
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "format" => {}
            "model_id" | "base_revision" | "checkpoint_revision" => {
                if value.as_str().is_none_or(str::is_empty) {
                    refuse(key, "is not a string, or an empty one".to_owned());
                }
            }
            "chat_prefix" | "chat_suffix" => {
                if !value.is_string() {
                    refuse(key, "is not a string".to_owned());
                }
            }
            "temperature" => {
                if !number(value).is_some_and(|t| t > 0.0) {
                    refuse(key, "is not a finite number above 0".to_owned());
                }
            }
            "head_bias" => {
                if !is_weight(value) {
                    refuse(key, "is not a finite f32 number".to_owned());
                }
            }
            "head_weight" => head_weight(value, hidden_size, refuse),
            "max_length" => match value.as_u64().and_then(|length| u32::try_from(length).ok()) {
                Some(length) if (1..=MAX_LENGTH_LIMIT).contains(&length) => *max_tokens = length,
                _ => refuse(key, format!("is not an integer from 1 to {MAX_LENGTH_LIMIT}")),
            },
            _ => refuse(key, "is a key that this version does not know".to_owned()),
        }
    }
}

fn head_weight(value: &Value, hidden_size: Option<usize>, refuse: &mut impl FnMut(&str, String)) {
    let key = "head_weight";
    let Some(weights) = value.as_array() else {
        return refuse(key, "is not an array of numbers".to_owned());
    };
    if let Some(size) = hidden_size.filter(|size| *size != weights.len()) {
        return refuse(
            key,
            format!("has {} numbers, but `hidden_size` is {size}", weights.len()),
        );
    }
    if let Some(index) = weights.iter().position(|weight| !is_weight(weight)) {
        refuse(
            key,
            format!("holds something else than a finite f32 number at {index}"),
        );
    }
}

/// A number that the head can hold. A larger one would make every logit infinite, which only requests would show.
fn is_weight(value: &Value) -> bool {
    number(value).is_some_and(|number| (number as f32).is_finite())
}
