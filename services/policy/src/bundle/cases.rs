//! A bundle's own test cases: inputs and the decisions that they must give.
//!
//! A file names the decision (`readiness` or `request`), a base input, and cases; each case may change the input and
//! the data document by a JSON merge patch (RFC 7396: an object is merged, `null` removes, anything else replaces).

use std::collections::BTreeSet;

use deltagate_proto::v1;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::BundleError;
use crate::evaluator::{BundleEvaluator, Decision};

/// One `*_test.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    rule: Rule,
    input: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Rule {
    Readiness,
    Request,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    patch: Option<Value>,
    #[serde(default)]
    data: Option<Value>,
    allow: bool,
    /// Each must be part of a reason that was given.
    #[serde(default)]
    reasons: Vec<String>,
}

/// Runs every case; the first that fails says why.
pub(super) fn run(
    bundle: &v1::Bundle,
    evaluator: &BundleEvaluator,
    files: &[(String, String)],
) -> Result<(), BundleError> {
    let mut covered = BTreeSet::new();
    for (file, text) in files {
        let parsed: CaseFile = serde_json::from_str(text).map_err(|e| BundleError::CaseFile {
            file: file.clone(),
            reason: e.to_string(),
        })?;
        for case in &parsed.cases {
            run_case(bundle, evaluator, &parsed, case).map_err(|reason| BundleError::CaseFailed {
                file: file.clone(),
                case: case.name.clone(),
                reason,
            })?;
            covered.insert(parsed.rule);
        }
    }
    for (rule, name) in [(Rule::Readiness, "readiness"), (Rule::Request, "request")] {
        if !covered.contains(&rule) {
            return Err(BundleError::NoCases(name));
        }
    }
    Ok(())
}

fn run_case(
    bundle: &v1::Bundle,
    evaluator: &BundleEvaluator,
    file: &CaseFile,
    case: &Case,
) -> Result<(), String> {
    let mut evaluator = match &case.data {
        None => evaluator.clone(),
        Some(patch) => {
            let mut data: Value = serde_json::from_str(&bundle.data_json).map_err(|e| e.to_string())?;
            merge(&mut data, patch);
            let patched = v1::Bundle {
                data_json: data.to_string(),
                ..bundle.clone()
            };
            BundleEvaluator::new(&patched).map_err(|e| e.to_string())?
        }
    };
    let mut input = Value::Object(file.input.clone());
    if let Some(patch) = &case.patch {
        merge(&mut input, patch);
    }
    let decision = match file.rule {
        Rule::Readiness => evaluator.readiness(&input),
        Rule::Request => evaluator.request_json(&input),
    };
    judge(case, &decision)
}

fn judge(case: &Case, decision: &Decision) -> Result<(), String> {
    let word = |allow| if allow { "allow" } else { "deny" };
    if decision.allow != case.allow {
        return Err(format!(
            "expected {}, got {} {:?}",
            word(case.allow),
            word(decision.allow),
            decision.reasons
        ));
    }
    for wanted in &case.reasons {
        if !decision
            .reasons
            .iter()
            .any(|reason| reason.contains(wanted.as_str()))
        {
            return Err(format!("no reason says `{wanted}`, got {:?}", decision.reasons));
        }
    }
    Ok(())
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.shift_remove(key);
            } else {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patches_follow_the_rfc() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1, 2]});
        merge(
            &mut target,
            &json!({"a": {"b": null, "e": {"f": 3}}, "d": [9], "g": "x"}),
        );
        assert_eq!(target, json!({"a": {"c": 2, "e": {"f": 3}}, "d": [9], "g": "x"}));
    }
}
