//! What rules may look at: snapshots for readiness, shapes for requests. Never text.

use std::{collections::BTreeMap, time::Duration};

use deltagate_proto::v1;
use serde_json::{Value, json};

/// The shape of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts<'a> {
    /// Who asks, as the gateway knows it; `anonymous` when nothing was said.
    pub caller: &'a str,
    /// The served model.
    pub model: &'a str,
    /// Number of questions.
    pub questions: u64,
    /// How many of each kind.
    pub kinds: KindCounts,
    /// Tokens of the first step.
    pub tokens: u64,
    /// Sequences of the first step, when known.
    pub sequences: Option<u64>,
}

/// Questions by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KindCounts {
    /// Choice questions.
    pub choice: u64,
    /// Score questions.
    pub score: u64,
    /// Yes/no questions.
    pub noul: u64,
}

impl RequestFacts<'_> {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "caller": self.caller,
            "model": self.model,
            "questions": self.questions,
            "kinds": {"choice": self.kinds.choice, "score": self.kinds.score, "noul": self.kinds.noul},
            "tokens": self.tokens,
            "sequences": self.sequences,
        })
    }
}

/// The input of the readiness rule.
pub fn readiness_input(snapshot: &v1::CapabilitySnapshot, age: Duration, lease: Duration) -> Value {
    let device = snapshot.device.as_ref().map(
        |d| json!({"kind": d.kind, "name": d.name, "compute_capability": d.compute_capability, "id": d.id}),
    );
    let model = snapshot.model.as_ref().map(|m| {
        json!({
            "name": m.name, "family": m.family, "digest": m.digest, "max_tokens": m.max_tokens,
            "parameters": m.parameters, "dtype": m.dtype, "release_date": m.release_date,
        })
    });
    json!({
        "snapshot": {
            "instance_id": snapshot.instance_id,
            "revision": snapshot.revision,
            "endpoint": snapshot.endpoint,
            "phase": lower(snapshot.phase().as_str_name(), "EXECUTOR_PHASE_"),
            "reasons": snapshot.reasons,
            "model": model,
            "device": &device,
            "bindings": bindings(&snapshot.bindings),
            "fingerprint": snapshot.fingerprint,
            "version": snapshot.version,
        },
        "age_ms": millis(age),
        "lease_ms": millis(lease),
        "device": device,
    })
}

/// By family name. A family that is reported twice is not bound, whatever the reports say.
fn bindings(bindings: &[v1::KernelBinding]) -> BTreeMap<String, Value> {
    let mut by_family = BTreeMap::new();
    for binding in bindings {
        // An enum value of a newer executor keeps its number, which no rule knows.
        let family = match v1::KernelFamily::try_from(binding.family) {
            Ok(family) => family.name().to_owned(),
            Err(_) => format!("unknown_{}", binding.family),
        };
        let state = match v1::BindingState::try_from(binding.state) {
            Ok(state) => lower(state.as_str_name(), "BINDING_STATE_"),
            Err(_) => "unknown".to_owned(),
        };
        let probed: Vec<_> = binding
            .candidates
            .iter()
            .filter(|c| !c.backend.is_empty() && c.backend == binding.backend)
            .collect();
        let described = json!({
            "state": state,
            "backend": binding.backend,
            "version": binding.version,
            "source_digest": binding.source_digest,
            "preference": binding.preference,
            "probe_passed": !probed.is_empty() && probed.iter().all(|c| c.passed),
        });
        by_family
            .entry(family)
            .and_modify(|first: &mut Value| first["state"] = json!("duplicate"))
            .or_insert(described);
    }
    by_family
}

fn lower(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
