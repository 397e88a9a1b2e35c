//! A plain classification head: `...ForSequenceClassification` in config.json, and `score.weight` beside the backbone.

use serde_json::{Map, Value, json};

use crate::{AttentionMode, Finding, Problem, family::Family};

/// Name of the family.
pub(crate) const NAME: &str = "sequence_classification";
const HEAD: &str = "score.weight";
/// As of the names of options.
const MAX_LABEL_CHARS: usize = 200;
const CONFIG: &str = "config.json";

/// Whether a config.json is of such a model.
pub(crate) fn is(config: &Value) -> bool {
    let architectures = config.get("architectures").and_then(Value::as_array);
    let ends = |name: &Value| {
        name.as_str()
            .is_some_and(|name| name.ends_with("ForSequenceClassification"))
    };
    architectures.is_some_and(|names| names.iter().any(ends))
}

/// Checks what config.json says about the labels; what is wrong becomes a finding.
pub(crate) fn read(config: &Value, findings: &mut Vec<Finding>) -> Family {
    let mut refuse = |key: &str, reason: &str| {
        let reason = reason.to_owned();
        findings.push(Finding::of(CONFIG, key, Problem::Key { reason }));
    };
    let labels = config.get("id2label").and_then(Value::as_object).and_then(labels);
    if labels.is_none() {
        let reason = "is missing, or does not name two or more different labels `0`, `1` and so on";
        refuse("id2label", reason);
    }
    let labels = labels.unwrap_or_default();
    // A request names labels as options, and such a name is refused there.
    let cannot_be_asked = |label: &String| {
        label.trim().is_empty() || label.contains(['\n', '\r']) || label.chars().count() > MAX_LABEL_CHARS
    };
    if let Some(id) = labels.iter().position(cannot_be_asked) {
        let reason = format!("is blank, has a line break or more than {MAX_LABEL_CHARS} characters");
        refuse(&format!("id2label.{id}"), &reason);
    }
    if let Some(by_label) = config.get("label2id").and_then(Value::as_object) {
        let agrees =
            |(id, label): (usize, &String)| by_label.get(label).and_then(Value::as_u64) == Some(id as u64);
        let same = by_label.len() == labels.len() && labels.iter().enumerate().all(agrees);
        if !labels.is_empty() && !same {
            refuse("label2id", "contradicts `id2label`");
        }
    }
    let kind = config.get("problem_type").filter(|kind| !kind.is_null());
    if kind.is_some_and(|kind| kind != "single_label_classification") {
        refuse(
            "problem_type",
            "is not `single_label_classification`, and no other is implemented",
        );
    }
    let rows = labels.len();
    Family {
        name: NAME,
        tokens: Vec::new(),
        config: json!({"labels": labels}),
        // config.json is part of every digest.
        files: Vec::new(),
        attention: AttentionMode::Causal,
        release_date: None,
        max_tokens: None,
        side: None,
        decision_head: (rows > 0).then_some((HEAD, rows)),
        joint_head: None,
        needs_output_embedding: false,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: None,
    }
}

/// The labels in the order of their ids, if those are 0, 1 and so on.
fn labels(by_id: &Map<String, Value>) -> Option<Vec<String>> {
    let of = |id: usize| by_id.get(&id.to_string())?.as_str().map(str::to_owned);
    let labels: Vec<String> = (0..by_id.len()).map(of).collect::<Option<_>>()?;
    let different: std::collections::BTreeSet<&String> = labels.iter().collect();
    (labels.len() >= 2 && different.len() == labels.len()).then_some(labels)
}
