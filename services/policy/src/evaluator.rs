//! A compiled bundle that decides. Used by the policy service, and by gateways for each request.

use std::{num::NonZeroU32, time::Duration};

use deltagate_proto::v1;
use regorus::{Engine, Value, utils::limits::ExecutionTimerConfig};

use crate::{
    bundle::{BundleError, revision},
    facts::RequestFacts,
};

const READINESS: &str = "data.deltagate.readiness.decision";
const REQUEST: &str = "data.deltagate.request.decision";
/// A rule that takes longer than this decides nothing, and nothing means no.
const TIME_LIMIT: Duration = Duration::from_millis(500);
/// Most reasons kept of a decision.
const MAX_REASONS: usize = 64;

/// What a rule decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allow: bool,
    /// Why not; empty when allowed.
    pub reasons: Vec<String>,
}

impl Decision {
    /// A refusal for one reason.
    pub fn deny(reason: impl Into<String>) -> Self {
        Self {
            allow: false,
            reasons: vec![reason.into()],
        }
    }
}

/// A compiled bundle. `Send`; an evaluation needs it exclusively, so clone one per thread or lock one: a clone shares
/// the compiled rules.
#[derive(Clone)]
pub struct BundleEvaluator {
    engine: Engine,
    name: String,
    revision: String,
}

impl std::fmt::Debug for BundleEvaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleEvaluator")
            .field("name", &self.name)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl BundleEvaluator {
    /// Compiles a bundle that came over the wire, if its content is that of its revision.
    pub fn verified(bundle: &v1::Bundle) -> Result<Self, BundleError> {
        if revision(bundle) != bundle.revision {
            return Err(BundleError::RevisionMismatch);
        }
        Self::new(bundle)
    }

    /// Compiles.
    pub(crate) fn new(bundle: &v1::Bundle) -> Result<Self, BundleError> {
        let mut engine = Engine::new();
        // A builtin that fails must not look like a condition that does not hold.
        engine.set_strict_builtin_errors(true);
        if let Some(check_interval) = NonZeroU32::new(256) {
            engine.set_execution_timer_config(ExecutionTimerConfig {
                limit: TIME_LIMIT,
                check_interval,
            });
        }
        for module in &bundle.modules {
            engine
                .add_policy(module.name.clone(), module.rego.clone())
                .map_err(|e| BundleError::Rego(e.to_string()))?;
        }
        let data = Value::from_json_str(&bundle.data_json).map_err(|e| BundleError::Data(e.to_string()))?;
        engine
            .add_data(data)
            .map_err(|e| BundleError::Data(e.to_string()))?;
        let mut evaluator = Self {
            engine,
            name: bundle.name.clone(),
            revision: bundle.revision.clone(),
        };
        // The first evaluation analyses the rules; clones then share what it found. Rules that do not exist, or
        // that cannot be analysed, are found here.
        for rule in [READINESS, REQUEST] {
            evaluator
                .eval(rule, Value::new_object())
                .map_err(BundleError::Rego)?;
        }
        Ok(evaluator)
    }

    /// Name of the bundle.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Revision of the bundle.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// May an executor be ready? Input as [`readiness_input`](crate::readiness_input) makes it.
    pub fn readiness(&mut self, input: &serde_json::Value) -> Decision {
        self.decide(READINESS, &input.to_string())
    }

    /// May a request be answered?
    pub fn request(&mut self, facts: &RequestFacts<'_>) -> Decision {
        self.decide(REQUEST, &facts.to_json().to_string())
    }

    pub(crate) fn request_json(&mut self, input: &serde_json::Value) -> Decision {
        self.decide(REQUEST, &input.to_string())
    }

    fn decide(&mut self, rule: &str, input: &str) -> Decision {
        // Through text: serde_json's arbitrary-precision numbers are maps to anything but a JSON parser.
        match Value::from_json_str(input)
            .map_err(|e| e.to_string())
            .and_then(|input| self.eval(rule, input))
        {
            Ok(value) => interpret(&value),
            Err(error) => {
                tracing::error!(
                    rule,
                    bundle = self.name,
                    revision = self.revision,
                    error,
                    "evaluation failed"
                );
                Decision::deny("policy evaluation failed")
            }
        }
    }

    fn eval(&mut self, rule: &str, input: Value) -> Result<Value, String> {
        self.engine.set_input(input);
        self.engine.eval_rule(rule.to_owned()).map_err(|e| e.to_string())
    }
}

/// Only `{"allow": true, "reasons": []}` allows.
fn interpret(value: &Value) -> Decision {
    let (allow, reasons) = (&value["allow"], &value["reasons"]);
    let Value::Bool(allow) = allow else {
        return Decision::deny("policy gave no decision");
    };
    let listed = match reasons {
        Value::Array(items) => items.iter().map(text).collect::<Option<Vec<_>>>(),
        Value::Set(items) => items.iter().map(text).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let Some(mut listed) = listed else {
        return Decision::deny("policy gave no list of reasons");
    };
    match (allow, listed.is_empty()) {
        (true, true) => Decision {
            allow: true,
            reasons: Vec::new(),
        },
        (true, false) => Decision::deny("policy allowed and gave reasons against it"),
        (false, true) => Decision::deny("policy gave no reason"),
        (false, false) => {
            listed.truncate(MAX_REASONS);
            Decision {
                allow: false,
                reasons: listed,
            }
        }
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn bundle(decision: &str, data: &str) -> v1::Bundle {
        let module = |name: &str| v1::BundleModule {
            name: format!("{name}.rego"),
            rego: format!("package deltagate.{name}\nimport rego.v1\n{decision}\n"),
        };
        let mut bundle = v1::Bundle {
            name: "test".to_owned(),
            revision: String::new(),
            modules: vec![module("readiness"), module("request")],
            data_json: data.to_owned(),
        };
        bundle.revision = revision(&bundle);
        bundle
    }

    fn decide(decision: &str, data: &str, input: &str) -> Decision {
        let mut evaluator = BundleEvaluator::verified(&bundle(decision, data)).unwrap();
        evaluator.readiness(&serde_json::from_str(input).unwrap())
    }

    #[test]
    fn only_a_clean_allow_allows() {
        let allow = decide(r#"decision := {"allow": true, "reasons": []}"#, "{}", "{}");
        assert_eq!(
            allow,
            Decision {
                allow: true,
                reasons: vec![]
            }
        );
        for (rule, reason) in [
            ("decision := 1 if false", "policy gave no decision"),
            ("decision := true", "policy gave no decision"),
            (r#"decision := {"reasons": []}"#, "policy gave no decision"),
            (
                r#"decision := {"allow": "true", "reasons": []}"#,
                "policy gave no decision",
            ),
            (
                r#"decision := {"allow": 1, "reasons": []}"#,
                "policy gave no decision",
            ),
            (r#"decision := {"allow": true}"#, "policy gave no list of reasons"),
            (
                r#"decision := {"allow": true, "reasons": "none"}"#,
                "policy gave no list of reasons",
            ),
            (
                r#"decision := {"allow": true, "reasons": [1]}"#,
                "policy gave no list of reasons",
            ),
            (
                r#"decision := {"allow": true, "reasons": ["but"]}"#,
                "policy allowed and gave reasons against it",
            ),
            (
                r#"decision := {"allow": false, "reasons": []}"#,
                "policy gave no reason",
            ),
            (
                r#"decision := {"allow": false, "reasons": {"because"}}"#,
                "because",
            ),
            (
                r#"decision := {"allow": true, "reasons": [to_number(input.x)]}"#,
                "policy gave no decision",
            ),
        ] {
            assert_eq!(decide(rule, "{}", "{}"), Decision::deny(reason), "{rule}");
        }
    }

    #[test]
    fn a_failing_builtin_and_an_endless_rule_deny() {
        let broken = r#"decision := {"allow": to_number(input.x) == 1, "reasons": []}"#;
        assert_eq!(
            decide(broken, "{}", r#"{"x": "abc"}"#),
            Decision::deny("policy evaluation failed")
        );
        let slow = r#"
decision := {"allow": count([1 | some a in numbers.range(1, input.n); some b in numbers.range(1, input.n); a == b]) > 0, "reasons": []}
"#;
        let begun = std::time::Instant::now();
        assert_eq!(
            decide(slow, "{}", r#"{"n": 100000}"#),
            Decision::deny("policy evaluation failed")
        );
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn numbers_are_numbers_in_input_and_data() {
        let rule = r#"decision := {"allow": true, "reasons": []} if {
    is_number(input.small)
    input.small + 1 == data.limit
    input.large == 18446744073709551615
    input.large > data.limit
    input.fraction > 0.49
    input.fraction < data.half
}"#;
        let data = r#"{"limit": 42, "half": 0.5}"#;
        let input = r#"{"small": 41, "large": 18446744073709551615, "fraction": 0.4999}"#;
        assert!(decide(rule, data, input).allow);
        assert!(!decide(rule, data, &input.replace("41", "\"41\"")).allow);
        assert!(!decide(rule, data, &input.replace("551615", "551614")).allow);
    }

    #[test]
    fn a_changed_bundle_and_one_without_the_rules_are_refused() {
        let good = bundle(r#"decision := {"allow": true, "reasons": []}"#, "{}");
        let mut changed = good.clone();
        changed.data_json = r#"{"x": 1}"#.to_owned();
        assert!(matches!(
            BundleEvaluator::verified(&changed),
            Err(BundleError::RevisionMismatch)
        ));
        let mut renamed = good.clone();
        renamed.modules.pop();
        renamed.revision = revision(&renamed);
        assert!(matches!(
            BundleEvaluator::verified(&renamed),
            Err(BundleError::Rego(_))
        ));
        let mut broken = good;
        broken.modules[0].rego.push_str("decision :=");
        broken.revision = revision(&broken);
        assert!(matches!(
            BundleEvaluator::verified(&broken),
            Err(BundleError::Rego(_))
        ));
    }

    #[test]
    fn it_can_cross_threads() {
        fn send<T: Send + Clone>() {}
        send::<BundleEvaluator>();
    }
}
