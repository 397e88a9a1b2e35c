//! A text adapter of the Cua-S1 family on its base model.

use std::path::Path;

use serde_json::Value;

use crate::{AttentionMode, Finding, Problem, adapter, family::Family};

/// Name of the family.
pub(crate) const NAME: &str = "cua_s1";
/// Name of the base model, of which an adapter tells the repository or the path.
const BASE: &str = "Qwen3.5-4B";
/// Longest prompt of the family's own server.
const MAX_TOKENS: u32 = 16_384;

/// The family of a folder with an adapter. An adapter of another base is of another family, which is not known.
pub(crate) fn read(dir: &Path, findings: &mut Vec<Finding>) -> Option<Family> {
    let found = adapter::find(dir, findings)?;
    let base = found.value.get("base_model_name_or_path").and_then(Value::as_str);
    if !base.is_some_and(|base| base.contains(BASE)) {
        let reason = format!("does not name `{BASE}`, the base of the only adapters that this version knows");
        findings.push(Finding::of(
            found.config_file(),
            "base_model_name_or_path",
            Problem::Key { reason },
        ));
    }
    Some(Family {
        name: NAME,
        tokens: Vec::new(),
        config: found.value.clone(),
        files: vec![(found.config_file(), found.bytes.clone())],
        attention: AttentionMode::Causal,
        release_date: None,
        max_tokens: Some(MAX_TOKENS),
        needs_output_embedding: true,
        side: None,
        decision_head: None,
        joint_head: None,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: Some(found),
    })
}
