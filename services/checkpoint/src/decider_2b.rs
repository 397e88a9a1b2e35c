//! `decider_config.json` of the Decider-2B family.

use serde_json::Value;

use crate::{
    AttentionMode, Finding, Problem,
    family::{Family, number},
};

/// Name of the family.
pub(crate) const NAME: &str = "decider_2b";
pub(crate) const CONFIG: &str = "decider_config.json";
const TYPES: [&str; 3] = ["choice", "noul", "score"];
const MAX_OPTIONS: u64 = 255;
/// Longest prompt of the family's own server.
const MAX_TOKENS: u32 = 36_864;
/// Keys that say where a model comes from.
const DESCRIPTIVE: [&str; 10] = [
    "base",
    "base_model",
    "created_by",
    "description",
    "license",
    "model",
    "name",
    "note",
    "notes",
    "revision",
];
/// Keys that ask for another prompt or another readout unless they are null or false.
const OFF: [&str; 6] = [
    "chat_template",
    "schema_first",
    "schema_first_trained",
    "temperature_by_options",
    "temperature_schema_first",
    "temperature_schema_first_by_type",
];

/// Checks the content; what is wrong becomes a finding.
pub(crate) fn read(bytes: Vec<u8>, value: Value, findings: &mut Vec<Finding>) -> Family {
    let mut release_date = None;
    let mut refuse = |key: &str, reason: &str| {
        let reason = reason.to_owned();
        findings.push(Finding::of(CONFIG, key, Problem::Key { reason }));
    };
    // What a missing key means differs from what these models need, or is nothing.
    for key in ["version", "neutralize_none", "isolated_levels", "temperature"] {
        if value.get(key).is_none() {
            refuse(key, "is missing");
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "version" => {
                if value.as_str().is_none_or(str::is_empty) {
                    refuse(key, "is not a string, or an empty one");
                }
            }
            "layout" => {
                if value != "plain" && !value.is_null() {
                    refuse(key, "is not `plain`, the only layout that is implemented");
                }
            }
            "neutralize_none" => {
                if value != false {
                    refuse(
                        key,
                        "is not false, and other spellings of options are not implemented",
                    );
                }
            }
            "isolated_levels" => {
                if value != true {
                    refuse(key, "is not true, and scores in one prompt are not implemented");
                }
            }
            "max_options" => {
                if value.as_u64() != Some(MAX_OPTIONS) {
                    refuse(key, "is not 255, the number of labels");
                }
            }
            "max_state_tokens" => {
                if !value
                    .as_u64()
                    .is_some_and(|tokens| (1..u64::from(MAX_TOKENS)).contains(&tokens))
                {
                    refuse(key, "is not an integer from 1 to 36863");
                }
            }
            "temperature" => {
                if !number(value).is_some_and(usable) {
                    refuse(key, "is not a finite number above 0 in f32");
                }
            }
            "temperature_by_type" => temperatures(value, &mut refuse),
            "release_date" => match value.as_str() {
                Some(date) if crate::startlux::is_date(date) => release_date = Some(date.to_owned()),
                _ => refuse(key, "is not a date of the form YYYY-MM-DD"),
            },
            key if OFF.contains(&key) => {
                if value != false && !value.is_null() {
                    refuse(
                        key,
                        "asks for another prompt or readout, which is not implemented",
                    );
                }
            }
            key if DESCRIPTIVE.contains(&key) => {}
            _ => refuse(key, "is a key that this version does not know"),
        }
    }
    Family {
        name: NAME,
        tokens: Vec::new(),
        config: value,
        files: vec![(CONFIG, bytes)],
        attention: AttentionMode::Causal,
        release_date,
        max_tokens: Some(MAX_TOKENS),
        needs_output_embedding: true,
        side: None,
        decision_head: None,
        joint_head: None,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: None,
    }
}

/// Logits are divided by it in f32.
fn usable(temperature: f64) -> bool {
    let temperature = temperature as f32;
    temperature.is_finite() && temperature > 0.0
}

fn temperatures(value: &Value, refuse: &mut impl FnMut(&str, &str)) {
    if value.is_null() {
        return;
    }
    let Some(object) = value.as_object() else {
        return refuse("temperature_by_type", "is not an object");
    };
    for (kind, value) in object {
        let key = format!("temperature_by_type.{kind}");
        if !TYPES.contains(&kind.as_str()) {
            refuse(&key, "is none of `choice`, `noul` and `score`");
        } else if !number(value).is_some_and(usable) {
            refuse(&key, "is not a finite number above 0 in f32");
        }
    }
}
