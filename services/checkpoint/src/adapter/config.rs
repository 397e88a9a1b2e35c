//! `adapter_config.json`, as PEFT writes it for a LoRA.

use serde_json::{Map, Value};

use crate::{Finding, Problem, family::number};

/// Larger ranks are no low-rank adapters.
const MAX_RANK: u64 = 4096;

/// Keys that say where an adapter comes from, or how it was trained.
const NEUTRAL: [&str; 9] = [
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
];

/// Keys that ask for another arithmetic, other weights or other modules unless they are null, false or empty.
const EMPTY: [&str; 26] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_bias",
    "lora_ga_config",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
    "velora_config",
];

/// Starting points of the training that leave the base as it is. Others take a part of it away when the adapter is made.
const STARTS: [&str; 2] = ["gaussian", "orthogonal"];
/// Tasks whose model is the backbone with its own output embedding, or without one.
const TASKS: [&str; 2] = ["CAUSAL_LM", "FEATURE_EXTRACTION"];

/// What merging needs to know.
pub(crate) struct Settings {
    pub(crate) rank: usize,
    /// `lora_alpha / r`.
    pub(crate) scale: f32,
    /// Last parts of the names of the modules that it changes.
    pub(crate) targets: Vec<String>,
}

/// Settings that come with findings must not be used.
pub(super) fn read(file: &str, value: &Value, findings: &mut Vec<Finding>) -> Option<Settings> {
    let mut refuse = |key: &str, reason: &str| {
        let reason = reason.to_owned();
        findings.push(Finding::of(file, key, Problem::Key { reason }));
    };
    let Some(object) = value.as_object() else {
        let reason = "is not an object".to_owned();
        findings.push(Finding::file(file, Problem::Key { reason }));
        return None;
    };
    if object.get("peft_type").and_then(Value::as_str) != Some("LORA") {
        refuse(
            "peft_type",
            "is not `LORA`, the only kind of adapter that is merged",
        );
        // Another kind may mean anything by the other keys.
        return None;
    }
    for (key, value) in object {
        match key.as_str() {
            "r" | "lora_alpha" | "target_modules" => {}
            "bias" => {
                if value != "none" && !value.is_null() {
                    refuse(key, "is not `none`, and biases are not implemented");
                }
            }
            "init_lora_weights" => {
                let known = value.is_boolean() || value.is_null() || is_one_of(value, &STARTS);
                if !known {
                    refuse(
                        key,
                        "may have changed the weights of the base, which this folder does not have",
                    );
                }
            }
            "task_type" => {
                if !value.is_null() && !is_one_of(value, &TASKS) {
                    refuse(key, "is neither `CAUSAL_LM` nor `FEATURE_EXTRACTION`");
                }
            }
            key if NEUTRAL.contains(&key) => {}
            key if EMPTY.contains(&key) => {
                if !is_empty(value) {
                    refuse(
                        key,
                        "asks for something else than a plain LoRA, which is not implemented",
                    );
                }
            }
            _ => refuse(key, "is a key that this version does not know"),
        }
    }
    let rank = object
        .get("r")
        .and_then(Value::as_u64)
        .filter(|r| (1..=MAX_RANK).contains(r));
    if rank.is_none() {
        refuse("r", "is missing or not an integer from 1 to 4096");
    }
    let alpha = object
        .get("lora_alpha")
        .and_then(number)
        .filter(|alpha| *alpha > 0.0);
    if alpha.is_none() {
        refuse("lora_alpha", "is missing or not a finite number above 0");
    }
    let targets = targets(object, &mut refuse);
    let (rank, alpha) = (rank?, alpha?);
    let scale = (alpha / rank as f64) as f32;
    if !scale.is_finite() {
        refuse("lora_alpha", "is too large");
    }
    Some(Settings {
        rank: usize::try_from(rank).ok()?,
        scale,
        targets: targets?,
    })
}

fn targets(object: &Map<String, Value>, refuse: &mut impl FnMut(&str, &str)) -> Option<Vec<String>> {
    let key = "target_modules";
    let Some(list) = object.get(key).and_then(Value::as_array) else {
        refuse(key, "is not a list of modules; a pattern is not implemented");
        return None;
    };
    let names: Option<Vec<String>> = list.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    let Some(names) = names.filter(|names| !names.is_empty() && names.iter().all(|name| !name.is_empty()))
    else {
        refuse(key, "is not a list of names, or an empty one");
        return None;
    };
    if names
        .iter()
        .any(|name| name == "linear_fc1" || name.ends_with(".linear_fc1"))
    {
        refuse(
            key,
            "holds `linear_fc1`: the adapter is of a model that looks at images",
        );
        return None;
    }
    Some(names)
}

fn is_one_of(value: &Value, known: &[&str]) -> bool {
    value.as_str().is_some_and(|text| known.contains(&text))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
