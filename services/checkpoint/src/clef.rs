//! `joint_head_config.json` and `joint_head.safetensors` of the Clef family.

use std::path::Path;

use serde_json::Value;

use crate::{
    AttentionMode, Finding, JointHeadConfig, ModelConfig, Problem,
    family::{Family, SideFile},
    files, joint_head_tensors,
};

/// Name of the family.
pub(crate) const NAME: &str = "clef";
/// Sizes of the head.
pub(crate) const CONFIG: &str = "joint_head_config.json";
/// Tensors of the head.
pub(crate) const WEIGHTS: &str = "joint_head.safetensors";
/// Longest prompt: what the family's own code takes unless it is told otherwise.
const MAX_LENGTH: u32 = 16_384;
/// Larger than any size of a head, small enough that products of two of them fit.
const MAX_SIZE: u64 = 1 << 18;
const MAX_LAYERS: u64 = 64;

/// Checks the sizes and says which tensors they ask for; what is wrong becomes a finding.
pub(crate) fn read(dir: &Path, model: Option<&ModelConfig>, findings: &mut Vec<Finding>) -> Option<Family> {
    if !files::exists(dir, CONFIG) {
        let needed_by = Some(NAME);
        findings.push(Finding::file(CONFIG, Problem::MissingFile { needed_by }));
        return None;
    }
    let (bytes, value) = match files::json(dir, CONFIG) {
        Ok(read) => read,
        Err(finding) => {
            findings.push(finding);
            return None;
        }
    };
    if model.is_some_and(|model| model.tie_word_embeddings) {
        let reason = format!("is true, but {NAME} needs an output embedding of its own");
        findings.push(Finding::of(
            "config.json",
            "tie_word_embeddings",
            Problem::Key { reason },
        ));
    }
    let config = config(&value, model, findings)?;
    Some(Family {
        name: NAME,
        tokens: Vec::new(),
        config: value,
        files: vec![(CONFIG, bytes)],
        attention: AttentionMode::Causal,
        release_date: None,
        max_tokens: Some(MAX_LENGTH),
        needs_output_embedding: true,
        needs_tokenizer: true,
        joint_questions: true,
        side: Some(SideFile {
            name: WEIGHTS,
            tensors: joint_head_tensors(&config),
        }),
        decision_head: None,
        joint_head: Some(config),
        adapter: None,
    })
}

/// The sizes, if every one is usable. The tensors of unusable sizes would only lead to findings about what is as it should be.
fn config(
    value: &Value,
    model: Option<&ModelConfig>,
    findings: &mut Vec<Finding>,
) -> Option<JointHeadConfig> {
    let before = findings.len();
    let Some(object) = value.as_object() else {
        let reason = "is not an object".to_owned();
        findings.push(Finding::file(CONFIG, Problem::Key { reason }));
        return None;
    };
    let mut refuse = |key: &str, reason: String| {
        findings.push(Finding::of(CONFIG, key, Problem::Key { reason }));
    };
    let mut size = |key: &str, limit: u64| {
        let size = object
            .get(key)
            .and_then(Value::as_u64)
            .filter(|size| (1..=limit).contains(size))
            .and_then(|size| usize::try_from(size).ok());
        if size.is_none() {
            refuse(key, format!("is missing or not an integer from 1 to {limit}"));
        }
        size.unwrap_or_default()
    };
    let config = JointHeadConfig {
        hidden_size: size("hidden_size", MAX_SIZE),
        width: size("width", MAX_SIZE),
        routing_layers: size("routing_layers", MAX_LAYERS),
        layers: size("layers", MAX_LAYERS),
        heads: size("heads", MAX_SIZE),
        feedforward: size("feedforward", MAX_SIZE),
    };
    let known = [
        "hidden_size",
        "width",
        "routing_layers",
        "layers",
        "heads",
        "feedforward",
    ];
    for key in object.keys() {
        if !known.contains(&key.as_str()) {
            refuse(key, "is a key that this version does not know".to_owned());
        }
    }
    if findings.len() > before {
        return None;
    }
    let mut refuse = |key: &str, reason: String| {
        findings.push(Finding::of(CONFIG, key, Problem::Key { reason }));
    };
    if let Some(model) = model.filter(|model| model.hidden_size != config.hidden_size) {
        let reason = format!(
            "is {}, but `hidden_size` of the model is {}",
            config.hidden_size, model.hidden_size
        );
        refuse("hidden_size", reason);
    }
    if !config.width.is_multiple_of(config.heads) {
        refuse("heads", "does not divide `width`".to_owned());
    }
    (findings.len() == before).then_some(config)
}
