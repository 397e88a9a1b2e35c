//! The oracle gives the numbers of transformers' own model.
//!
//! The golden backbone has formula weights, so that it can be checked without any file; the other fixtures come from
//! `tests/fixtures/backbone/make.py`, which writes what `Qwen3_5TextModel` computes in f32 for generated weights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use deltagate_kernels_reference::{BackboneConfig, Mixer, backbone, tensor_shapes};
use serde_json::Value;

const GOLDEN: &str = include_str!("../../../tests/fixtures/backbone/golden.json");
const GENERATED: [(&str, &str); 3] = [
    ("gva1", include_str!("../../../tests/fixtures/backbone/gva1.json")),
    ("gva2", include_str!("../../../tests/fixtures/backbone/gva2.json")),
    ("gva3", include_str!("../../../tests/fixtures/backbone/gva3.json")),
];

fn config(value: &Value) -> BackboneConfig {
    let size = |key: &str| usize::try_from(value[key].as_u64().expect(key)).unwrap();
    let layers = match value.get("layer_types") {
        Some(kinds) => kinds
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| kind == "full_attention")
            .collect::<Vec<_>>(),
        None => (1..=size("num_hidden_layers"))
            .map(|i| i.is_multiple_of(size("full_attention_interval")))
            .collect(),
    };
    let rope = &value["rope_parameters"];
    BackboneConfig {
        hidden_size: size("hidden_size"),
        intermediate_size: size("intermediate_size"),
        layers: layers
            .iter()
            .map(|&full| {
                if full {
                    Mixer::FullAttention
                } else {
                    Mixer::LinearAttention
                }
            })
            .collect(),
        num_attention_heads: size("num_attention_heads"),
        num_key_value_heads: size("num_key_value_heads"),
        head_dim: size("head_dim"),
        rotary_dim: (size("head_dim") as f64 * rope["partial_rotary_factor"].as_f64().unwrap()) as usize,
        rope_theta: rope["rope_theta"].as_f64().unwrap(),
        linear_num_key_heads: size("linear_num_key_heads"),
        linear_num_value_heads: size("linear_num_value_heads"),
        linear_key_head_dim: size("linear_key_head_dim"),
        linear_value_head_dim: size("linear_value_head_dim"),
        linear_conv_kernel_dim: size("linear_conv_kernel_dim"),
        rms_norm_eps: value["rms_norm_eps"].as_f64().unwrap(),
        vocab_size: size("vocab_size"),
    }
}

fn golden_tensors(config: &BackboneConfig) -> HashMap<String, Vec<f64>> {
    let mut shapes = tensor_shapes(config);
    shapes.sort();
    let formula = |(t, (name, shape)): (usize, (String, Vec<usize>))| {
        let value = |i: usize| {
            let s = (1.3 * t as f64 + 0.71 * i as f64 + 0.2).sin();
            if name.ends_with(".A_log")
                || name.ends_with(".dt_bias")
                || name.ends_with(".conv1d.weight")
                || t == 0
            {
                0.5 * s
            } else if name.ends_with(".linear_attn.norm.weight") {
                1.0 + 0.2 * s
            } else if shape.len() == 1 {
                0.2 * s
            } else {
                s * 1.5 / (shape[shape.len() - 1] as f64).sqrt()
            }
        };
        let values = (0..shape.iter().product()).map(value).collect();
        (name, values)
    };
    shapes.into_iter().enumerate().map(formula).collect()
}

fn fnv1a64(data: &[u8]) -> u64 {
    data.iter().fold(0xCBF2_9CE4_8422_2325, |value, &byte| {
        (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Outputs of the SplitMix64 stream that a label seeds.
fn draws(label: &str) -> impl Iterator<Item = u64> {
    let mut state = fnv1a64(label.as_bytes());
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

fn generated_tensor(label: &str, name: &str, shape: &[usize]) -> Vec<f32> {
    let (scale, offset) = match name {
        _ if name.ends_with(".A_log") => (2.0, -2.0),
        _ if name.ends_with(".dt_bias") => (2.0, -1.5),
        _ if name.ends_with(".linear_attn.norm.weight") => (0.25, 1.0),
        _ if shape.len() == 1 => (0.25, 0.0),
        _ if name.ends_with(".conv1d.weight") => (0.75, 0.0),
        "embed_tokens.weight" => (1.0, 0.0),
        _ => ((3.0 / shape[shape.len() - 1] as f64).sqrt(), 0.0),
    };
    let unit = |draw: u64| (draw >> 11) as f64 * 2f64.powi(-53);
    draws(&format!("{label}/{name}"))
        .take(shape.iter().product())
        .map(|draw| ((2.0 * unit(draw) - 1.0) * scale + offset) as f32)
        .collect()
}

/// Greatest distance of the printed rows, and whether every sum is near enough.
fn compare(case: &Value, hidden: &[f64], width: usize, tolerance: f64) {
    let at = format!("{} {}", case["length"], case["mode"]);
    for row in case["rows"].as_array().unwrap() {
        let index = usize::try_from(row["index"].as_u64().unwrap()).unwrap();
        let values = row["values"].as_array().unwrap();
        assert_eq!(values.len(), width, "{at}");
        for (j, (expected, actual)) in values.iter().zip(&hidden[index * width..]).enumerate() {
            let distance = (expected.as_f64().unwrap() - actual).abs();
            assert!(
                distance < tolerance,
                "{at}: row {index} value {j} is {distance:e} away"
            );
        }
    }
    let sum: f64 = hidden.iter().sum();
    let abs_sum: f64 = hidden.iter().map(|v| v.abs()).sum();
    assert!(
        (sum - case["sum"].as_f64().unwrap()).abs() < 1e-5 * abs_sum,
        "{at}: sum {sum}"
    );
    assert!(
        (abs_sum - case["abs_sum"].as_f64().unwrap()).abs() < 1e-5 * abs_sum,
        "{at}: absolute sum {abs_sum}"
    );
}

#[test]
fn golden_backbone_causal_and_noncausal() {
    let fixture: Value = serde_json::from_str(GOLDEN).unwrap();
    let config = config(&fixture["config"]);
    let tensors = golden_tensors(&config);
    assert_eq!(tensors.len(), 108);
    let ids: Vec<u32> = (0..70).map(|i| (7 * i + 3) % 97).collect();
    let published = [
        (
            false,
            [-0.25280, 1.17029, 2.01659, 1.65739, 0.62664, -0.26899],
            [-0.71055, 1.22538, 1.79146, 0.77805, -0.50533, -1.04241],
            72.480,
            3840.75,
        ),
        (
            true,
            [-0.25262, 1.17014, 2.01613, 1.65695, 0.62648, -0.26882],
            [-0.61142, 1.15928, 1.61309, 0.67369, -0.42451, -0.79817],
            74.122,
            3840.02,
        ),
    ];
    for (noncausal, last, fifth, sum, abs_sum) in published {
        let hidden = backbone(&config, &|name| tensors[name].clone(), &ids, noncausal).unwrap();
        for (row, expected) in [(69, last), (5, fifth)] {
            for (actual, expected) in hidden[row * 64..].iter().zip(expected) {
                assert!(
                    (actual - expected).abs() < 1e-4,
                    "row {row}: {actual} is not {expected}"
                );
            }
        }
        assert!((hidden.iter().sum::<f64>() - sum).abs() < 1e-2);
        assert!((hidden.iter().map(|v| v.abs()).sum::<f64>() - abs_sum).abs() < 1e-1);
        let mode = if noncausal { "noncausal" } else { "causal" };
        let case = fixture["cases"]
            .as_array()
            .unwrap()
            .iter()
            .find(|case| case["mode"] == mode)
            .unwrap();
        compare(case, &hidden, 64, 1e-4);
    }
}

#[test]
fn generated_backbones_of_every_length_and_head_ratio() {
    for (name, text) in GENERATED {
        let fixture: Value = serde_json::from_str(text).unwrap();
        let config = config(&fixture["config"]);
        let mut shapes = tensor_shapes(&config);
        shapes.sort();
        let mut bytes = Vec::new();
        let mut tensors = HashMap::new();
        for (tensor, shape) in shapes {
            let values = generated_tensor(name, &tensor, &shape);
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            tensors.insert(tensor, values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
        }
        assert_eq!(
            format!("{:016x}", fnv1a64(&bytes)),
            fixture["weights"]["fnv1a64"],
            "weights of {name}"
        );

        let cases = fixture["cases"].as_array().unwrap();
        assert!(cases.len() >= 20);
        for case in cases {
            let length = usize::try_from(case["length"].as_u64().unwrap()).unwrap();
            let vocab = config.vocab_size as u64;
            let ids: Vec<u32> = draws(case["ids_label"].as_str().unwrap())
                .take(length)
                .map(|d| (d % vocab) as u32)
                .collect();
            let noncausal = case["mode"] == "noncausal";
            let hidden = backbone(&config, &|tensor| tensors[tensor].clone(), &ids, noncausal).unwrap();
            // The fixture was computed in f32 and says itself how far f64 may be away from it.
            let tolerance = 1e-4f64.max(2.0 * case["naive_max_abs_diff"].as_f64().unwrap());
            compare(case, &hidden, config.hidden_size, tolerance);
        }
    }
}
