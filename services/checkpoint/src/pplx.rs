//! `decision_config.json` and `readout.safetensors` of the PPLX family, v1 and v1.1.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    AttentionMode, Finding, ModelConfig, Problem,
    family::{DECISION_CONFIG, Family, SideFile, number},
};

/// Name of both, as the files tell it.
pub(crate) const NAME: &str = "pplx";
/// The readout matrix: a row for each code.
pub(crate) const READOUT: &str = "readout.safetensors";
const V1: &str = "pplx_v1";
const V1_1: &str = "pplx_v1_1";
const MATRIX: &str = "weight";
const CODES: usize = 255;
/// Longest prompt of a model that does not say.
const DEFAULT_MAX_LENGTH: u32 = 8_192;
const REQUIRED: [&str; 5] = ["format_version", "codes", "token_ids", "temperature", "pooling"];
/// Keys that say where a model comes from and how it was trained.
const DESCRIPTIVE: [&str; 6] = [
    "architecture",
    "base_model",
    "revision",
    "name",
    "description",
    "license",
];

/// Checks the content; what is wrong becomes a finding. The card gets every value that the gateway needs, defaults filled in.
pub(crate) fn read(
    bytes: Vec<u8>,
    value: &Value,
    model: Option<&ModelConfig>,
    findings: &mut Vec<Finding>,
) -> Family {
    let mut refuse = |key: &str, reason: &str| {
        let reason = reason.to_owned();
        findings.push(Finding::of(DECISION_CONFIG, key, Problem::Key { reason }));
    };
    let version = value.get("format_version");
    // Another version may mean anything by the other keys.
    let other = version.filter(|version| version.as_u64() != Some(1));
    if other.is_some() {
        refuse("format_version", "is not 1, the only one that this version knows");
    }
    let known = value.as_object().filter(|_| other.is_none());
    let (mut codes, mut ids, mut temperature) = (Vec::new(), Vec::new(), 1.0);
    let (mut attention, mut max_length) = (AttentionMode::Causal, DEFAULT_MAX_LENGTH);
    for key in REQUIRED
        .into_iter()
        .filter(|key| known.is_some_and(|known| !known.contains_key(*key)))
    {
        refuse(key, "is missing");
    }
    for (key, value) in known.into_iter().flatten() {
        match key.as_str() {
            "format_version" => {}
            "codes" => codes = strings(value, &mut refuse),
            "token_ids" => ids = token_ids(value, model, &mut refuse),
            "temperature" => match number(value).filter(|t| *t > 0.0) {
                Some(t) => temperature = t,
                None => refuse(key, "is not a finite number above 0"),
            },
            "pooling" if value == "last" => {}
            "pooling" => refuse(key, "is not `last`, and no other pooling is implemented"),
            "attention_mode" => match value.as_str() {
                Some("causal") => {}
                Some("noncausal_full_attention") => attention = AttentionMode::NoncausalFullAttention,
                _ => refuse(key, "is neither `causal` nor `noncausal_full_attention`"),
            },
            "max_length" => match value.as_u64().and_then(|length| u32::try_from(length).ok()) {
                Some(length) if length > 0 => max_length = length,
                _ => refuse(key, "is not an integer above 0"),
            },
            "prompt" => refuse(key, "asks for a prompt that this version does not know"),
            _ if DESCRIPTIVE.contains(&key.as_str()) || key.starts_with("lora_") => {}
            _ => refuse(key, "is a key that this version does not know"),
        }
    }
    let tensors = model.map(|model| (MATRIX.to_owned(), vec![CODES, model.hidden_size]));
    Family {
        name: match attention {
            AttentionMode::Causal => V1,
            AttentionMode::NoncausalFullAttention => V1_1,
        },
        tokens: codes.iter().cloned().zip(ids.iter().copied()).collect(),
        config: json!({
            "codes": codes,
            "token_ids": ids,
            "temperature": temperature,
            "attention_mode": attention,
            "max_length": max_length,
        }),
        files: vec![(DECISION_CONFIG, bytes)],
        attention,
        release_date: None,
        max_tokens: Some(max_length),
        needs_output_embedding: false,
        // Without sizes nothing can be said of its tensors.
        side: tensors.map(|tensor| SideFile {
            name: READOUT,
            tensors: vec![tensor],
        }),
        decision_head: Some((MATRIX, CODES)),
        joint_head: None,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: None,
    }
}

fn strings(value: &Value, refuse: &mut impl FnMut(&str, &str)) -> Vec<String> {
    let codes: Option<Vec<String>> = value.as_array().and_then(|codes| {
        codes
            .iter()
            .map(|code| code.as_str().map(str::to_owned))
            .collect()
    });
    let different = |codes: &Vec<String>| codes.iter().collect::<BTreeSet<_>>().len() == CODES;
    match codes.filter(|codes| codes.len() == CODES && different(codes)) {
        Some(codes) => codes,
        None => {
            refuse("codes", "is not an array of 255 different strings");
            Vec::new()
        }
    }
}

fn token_ids(value: &Value, model: Option<&ModelConfig>, refuse: &mut impl FnMut(&str, &str)) -> Vec<u64> {
    let ids: Option<Vec<u64>> = value
        .as_array()
        .and_then(|ids| ids.iter().map(Value::as_u64).collect());
    let different = |ids: &Vec<u64>| ids.iter().collect::<BTreeSet<_>>().len() == CODES;
    let Some(ids) = ids.filter(|ids| ids.len() == CODES && different(ids)) else {
        refuse("token_ids", "is not an array of 255 different token ids");
        return Vec::new();
    };
    if model.is_some_and(|model| ids.iter().any(|id| *id >= model.vocab_size as u64)) {
        refuse("token_ids", "has an id that is not below `vocab_size`");
        return Vec::new();
    }
    ids
}
