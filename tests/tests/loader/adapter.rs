//! An adapter that is merged while loading gives the numbers of a model that was merged before, to the last bit.

use std::collections::BTreeMap;

use deltagate_checkpoint::inspect;
use serde_json::{Value, json};

use crate::{
    folder::{Folder, Tensor, safetensors, text_config},
    spellings::logits,
};

const RANK: usize = 4;
const ALPHA: f64 = 8.0;
const TARGETS: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
];

fn config() -> Value {
    json!({
        "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3.5-4B", "r": RANK, "lora_alpha": ALPHA,
        "target_modules": TARGETS, "bias": "none", "lora_dropout": 0.05, "use_dora": false, "use_rslora": false,
        "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": null, "fan_in_fan_out": false,
        "init_lora_weights": true, "inference_mode": true, "task_type": "CAUSAL_LM", "peft_version": "0.21.2"
    })
}

/// A multiple of 1/64 below 1/4 in size, so that f32 and f64 make the same sums of products.
fn value(seed: usize, i: usize) -> f32 {
    let step = (1.7 * seed as f64 + 0.37 * i as f64).sin() * 16.0;
    step.round() as f32 / 64.0
}

/// The base as `dtype`, with its adapter in `folder`; and the same with the product added to its weights beforehand, in f64.
fn both(dtype: &'static str, folder: &str, prefix: &str) -> (Folder, Folder) {
    let mut base = Folder::startlux();
    base.config = text_config(1, 2);
    base.files.remove("decision_config.json");
    let mut merged = Folder::startlux();
    let mut tensors = BTreeMap::new();
    for (seed, (name, tensor)) in base.tensors.iter_mut().enumerate() {
        tensor.dtype = dtype;
        merged.tensors.get_mut(name).unwrap().dtype = dtype;
        let Some(module) = name.strip_suffix(".weight") else {
            continue;
        };
        if !TARGETS
            .iter()
            .any(|target| module.ends_with(&format!(".{target}")))
        {
            continue;
        }
        let (outputs, inputs) = (tensor.shape[0], tensor.shape[1]);
        let mut add = |side: &str, shape: Vec<usize>, dtype, seed| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i| value(seed, i)).collect();
            let full = format!("base_model.model.{prefix}{module}.lora_{side}.weight");
            tensors.insert(
                full,
                Tensor {
                    dtype,
                    shape,
                    values: values.clone(),
                },
            );
            values
        };
        let a = add("A", vec![RANK, inputs], "F32", 2 * seed);
        let b = add("B", vec![outputs, RANK], "BF16", 2 * seed + 1);
        let values = &mut merged.tensors.get_mut(name).unwrap().values;
        for o in 0..outputs {
            for i in 0..inputs {
                let product = |k: usize| f64::from(b[o * RANK + k]) * f64::from(a[k * inputs + i]);
                let delta: f64 = (0..RANK).map(product).sum::<f64>() * ALPHA / RANK as f64;
                let sum = (f64::from(values[o * inputs + i]) + delta) as f32;
                values[o * inputs + i] = if dtype == "BF16" { to_bf16(sum) } else { sum };
            }
        }
    }
    base.json(&format!("{folder}adapter_config.json"), &config());
    base.files.insert(
        format!("{folder}adapter_model.safetensors"),
        safetensors(tensors.iter()),
    );
    (base, merged)
}

/// The nearest one; of two that are equally near, the one whose last bit is 0.
fn to_bf16(x: f32) -> f32 {
    let low = f32::from_bits(x.to_bits() & 0xFFFF_0000);
    let high = f32::from_bits(low.to_bits() + 0x1_0000);
    let (below, above) = (f64::from(x - low).abs(), f64::from(high - x).abs());
    let even = low.to_bits() & 0x1_0000 == 0;
    if below < above || (below == above && even) {
        low
    } else {
        high
    }
}

#[test]
fn an_adapter_merged_while_loading_is_one_merged_before() {
    for (dtype, folder, prefix) in [
        ("BF16", "text/", "model.language_model."),
        ("F32", "text/", "model."),
        ("BF16", "", ""),
    ] {
        let (with_adapter, merged) = both(dtype, folder, prefix);
        let (got, want) = (logits(&with_adapter), logits(&merged));
        assert_eq!(got, want, "{dtype} {folder}");
        // The adapter changes the numbers, or the comparison says nothing.
        let mut base = merged.clone();
        base.tensors = with_adapter.tensors.clone();
        assert_ne!(got, logits(&base));
    }
}

#[test]
fn a_sum_that_is_not_finite_names_the_weight() {
    let (mut folder, _) = both("BF16", "text/", "model.");
    let tensor = folder
        .tensors
        .get_mut("layers.3.self_attn.k_proj.weight")
        .unwrap();
    tensor.values.fill(f32::from_bits(0x7F7F_0000));
    let mut large = config();
    large["lora_alpha"] = json!(1e38);
    folder.json("text/adapter_config.json", &large);
    let dir = folder.write();
    let found = inspect(dir.path()).findings;
    assert!(
        found.iter().any(|finding| {
            finding.to_string().contains(
                "text/adapter_model.safetensors: `layers.3.self_attn.k_proj.weight` is not finite at element",
            )
        }),
        "{found:?}"
    );
}
