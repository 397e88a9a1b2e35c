//! Parity of the whole backbone: known numbers, `transformers`, the naive f64 model, and bf16 against f32.
//!
//! The weights are formulas (see fixtures/backbone/README.md), so nothing but numbers is stored.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::{collections::BTreeMap, fs, ops::ControlFlow, time::Duration};

use deltagate_checkpoint::{Dtype as FileDtype, LayerKind, ModelConfig, TensorView, backbone_tensors};
use deltagate_executor::engine::{
    Dtype, Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone,
    SequencePlan, TensorSource,
};
use deltagate_kernels_api::{KernelFamily, Preference, Preferences, Random};
use deltagate_kernels_reference as reference;
use deltagate_tests::tree::root;
use serde_json::Value;

const FIXTURES: [&str; 3] = ["gva1", "gva2", "gva3"];
const DELTA_RULES: [&str; 2] = ["cpu.chunked", "cpu.recurrent"];
/// Of each value, absolute below 1 and relative above.
const LIMIT: f64 = 1e-4;

/// Shape, values, and their bytes.
type Stored = (Vec<usize>, Vec<f32>, Vec<u8>);

/// A model whose weights are formulas.
struct Formula {
    fixture: Value,
    config: ModelConfig,
    tensors: BTreeMap<String, Stored>,
}

impl Formula {
    fn open(name: &str) -> Self {
        let path = root().join(format!("tests/fixtures/backbone/{name}.json"));
        let fixture: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let config = ModelConfig::from_json(&fixture["config"]).unwrap();
        let mut shapes = backbone_tensors(&config);
        shapes.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let tensor = |(position, (tensor, shape)): (usize, (String, Vec<usize>))| {
            let values = if name == "golden" {
                golden(position, &tensor, &shape)
            } else {
                stream(name, &tensor, &shape)
            };
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            (tensor, (shape, values, bytes))
        };
        let tensors = shapes.into_iter().enumerate().map(tensor).collect();
        Self {
            fixture,
            config,
            tensors,
        }
    }

    fn ids(&self, case: &Value) -> Vec<u32> {
        let length = case["length"].as_u64().unwrap() as usize;
        let Some(label) = case["ids_label"].as_str() else {
            return (0..length).map(|i| (7 * i + 3) as u32 % 97).collect();
        };
        let mut random = Random::new(fnv1a64(label.as_bytes()));
        let ids: Vec<u32> = (0..length)
            .map(|_| (random.next() % self.config.vocab_size as u64) as u32)
            .collect();
        let head: Vec<u32> = serde_json::from_value(case["ids_head"].clone()).unwrap();
        assert_eq!(ids[..head.len()], head[..], "the id stream {label}");
        ids
    }

    fn engine(&self, delta_rule: &str, dtype: Dtype) -> Engine {
        let mut preferences = Preferences::default();
        preferences.set(KernelFamily::DeltaRule, Preference::One(delta_rule.to_owned()));
        let settings = EngineSettings {
            dtype,
            preferences,
            probe_timeout: Duration::from_secs(120),
            ..EngineSettings::default()
        };
        let engine = Engine::from_source(self, &settings, &mut |_| {}).unwrap();
        engine.is_bound().unwrap();
        assert_eq!(
            engine.report().binding(KernelFamily::DeltaRule).unwrap().backend,
            delta_rule
        );
        engine
    }

    /// The naive f64 model, `[T, H]`.
    fn naive(&self, ids: &[u32], noncausal: bool) -> Vec<f64> {
        let c = &self.config;
        let mixer = |kind: &LayerKind| match kind {
            LayerKind::LinearAttention => reference::Mixer::LinearAttention,
            LayerKind::FullAttention => reference::Mixer::FullAttention,
        };
        let config = reference::BackboneConfig {
            hidden_size: c.hidden_size,
            intermediate_size: c.intermediate_size,
            layers: c.layers.iter().map(mixer).collect(),
            num_attention_heads: c.num_attention_heads,
            num_key_value_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            rotary_dim: c.rotary_dim,
            rope_theta: c.rope_theta,
            linear_num_key_heads: c.linear_num_key_heads,
            linear_num_value_heads: c.linear_num_value_heads,
            linear_key_head_dim: c.linear_key_head_dim,
            linear_value_head_dim: c.linear_value_head_dim,
            linear_conv_kernel_dim: c.linear_conv_kernel_dim,
            rms_norm_eps: c.rms_norm_eps,
            vocab_size: c.vocab_size,
        };
        let tensor = |name: &str| self.tensors[name].1.iter().copied().map(f64::from).collect();
        reference::backbone(&config, &tensor, ids, noncausal).unwrap()
    }
}

impl TensorSource for Formula {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        let (name, (shape, _, bytes)) = self
            .tensors
            .get_key_value(name)
            .ok_or("there is no such tensor")?;
        Ok(TensorView {
            name,
            dtype: FileDtype::F32,
            shape,
            bytes,
        })
    }

    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String> {
        Ok(None)
    }
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)
    })
}

fn stream(config: &str, name: &str, shape: &[usize]) -> Vec<f32> {
    let columns = *shape.last().unwrap() as f64;
    let (scale, offset) = match name {
        n if n.ends_with(".A_log") => (2.0, -2.0),
        n if n.ends_with(".dt_bias") => (2.0, -1.5),
        n if n.ends_with(".linear_attn.norm.weight") => (0.25, 1.0),
        _ if shape.len() == 1 => (0.25, 0.0),
        n if n.ends_with(".conv1d.weight") => (0.75, 0.0),
        "embed_tokens.weight" => (1.0, 0.0),
        _ => ((3.0 / columns).sqrt(), 0.0),
    };
    let mut random = Random::new(fnv1a64(format!("{config}/{name}").as_bytes()));
    let value = |_| {
        let unit = (random.next() >> 11) as f64 * 2f64.powi(-53);
        ((2.0 * unit - 1.0) * scale + offset) as f32
    };
    (0..shape.iter().product()).map(value).collect()
}

fn golden(position: usize, name: &str, shape: &[usize]) -> Vec<f32> {
    let value = |index: usize| {
        let s = (1.3 * position as f64 + 0.71 * index as f64 + 0.2).sin();
        let half = name.ends_with(".A_log") || name.ends_with(".dt_bias") || name.ends_with(".conv1d.weight");
        let value = if half || name == "embed_tokens.weight" {
            0.5 * s
        } else if name.ends_with(".linear_attn.norm.weight") {
            1.0 + 0.2 * s
        } else if shape.len() == 1 {
            0.2 * s
        } else {
            s * 1.5 / (*shape.last().unwrap() as f64).sqrt()
        };
        value as f32
    };
    (0..shape.iter().product()).map(value).collect()
}

struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn hidden(engine: &mut Engine, ids: &[u32], noncausal: bool) -> Vec<Vec<f32>> {
    let sequence = SequencePlan {
        token_ids: ids.to_vec(),
        rows: RowSelection::All,
        projection: Projection::Hidden,
    };
    let plan = ForwardPlan {
        sequences: vec![sequence],
        noncausal_full_attention: noncausal,
    };
    let output = engine.forward(&plan, &mut Unwatched).unwrap();
    let rows = output.sequences.into_iter().next().unwrap();
    assert!(
        rows.iter()
            .enumerate()
            .all(|(at, row)| row.position as usize == at)
    );
    rows.into_iter().map(|row| row.values).collect()
}

/// The largest difference, absolute below 1 and relative above.
fn distance(actual: impl IntoIterator<Item = f32>, expected: impl IntoIterator<Item = f64>) -> f64 {
    let (mut actual, mut expected) = (actual.into_iter(), expected.into_iter());
    let mut worst = 0.0f64;
    loop {
        match (actual.next(), expected.next()) {
            (Some(a), Some(e)) => {
                let d = (f64::from(a) - e).abs() / e.abs().max(1.0);
                // A NaN must not be lost in `max`.
                worst = if d > worst || d.is_nan() { d } else { worst };
            }
            (None, None) => return worst,
            _ => panic!("different lengths"),
        }
    }
}

/// Every row and both sums of every case, on both delta rules.
fn check_fixture(name: &str) {
    let formula = Formula::open(name);
    for delta_rule in DELTA_RULES {
        let mut engine = formula.engine(delta_rule, Dtype::F32);
        let mut worst = 0.0f64;
        let cases = formula.fixture["cases"].as_array().unwrap();
        for case in cases {
            let ids = formula.ids(case);
            let rows = hidden(&mut engine, &ids, case["mode"] == "noncausal");
            let label = format!("{name}, {delta_rule}, {} tokens, {}", ids.len(), case["mode"]);
            for row in case["rows"].as_array().unwrap() {
                let expected: Vec<f64> = serde_json::from_value(row["values"].clone()).unwrap();
                let actual = &rows[row["index"].as_u64().unwrap() as usize];
                let away = distance(actual.iter().copied(), expected);
                assert!(away < LIMIT, "{label}, row {}: {away:e}", row["index"]);
                worst = worst.max(away);
            }
            let values = || rows.iter().flatten().copied().map(f64::from);
            let (sum, abs_sum): (f64, f64) = (values().sum(), values().map(f64::abs).sum());
            let expected = case["abs_sum"].as_f64().unwrap();
            assert!(
                (abs_sum - expected).abs() < 1e-5 * expected,
                "{label}: {abs_sum} is not {expected}"
            );
            let apart = (sum - case["sum"].as_f64().unwrap()).abs();
            assert!(apart < 1e-5 * expected, "{label}: sums are {apart} apart");
        }
        println!(
            "{name}, {delta_rule}: {} cases, at most {worst:.2e} from transformers",
            cases.len()
        );
    }
}

#[test]
fn the_golden_backbone_gives_the_printed_numbers() {
    let formula = Formula::open("golden");
    assert_eq!(formula.tensors.len(), 108);
    for delta_rule in DELTA_RULES {
        let mut engine = formula.engine(delta_rule, Dtype::F32);
        for (noncausal, last, fifth, sum, abs_sum) in [
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
        ] {
            let ids: Vec<u32> = (0..70).map(|i| (7 * i + 3) % 97).collect();
            let rows = hidden(&mut engine, &ids, noncausal);
            let away = distance(rows[69][..6].iter().copied(), last)
                .max(distance(rows[5][..6].iter().copied(), fifth));
            assert!(away < LIMIT, "{delta_rule}, noncausal {noncausal}: {away:e}");
            let values = || rows.iter().flatten().copied().map(f64::from);
            assert!((values().sum::<f64>() - sum).abs() < 2e-2);
            assert!((values().map(f64::abs).sum::<f64>() - abs_sum).abs() < 2e-2);
            println!(
                "golden, {delta_rule}, noncausal {noncausal}: at most {away:.2e} from the printed numbers"
            );
        }
    }
    check_fixture("golden");
}

#[test]
fn the_backbone_agrees_with_transformers() {
    FIXTURES.into_iter().for_each(check_fixture);
}

#[test]
fn the_weights_are_those_of_the_fixtures() {
    for name in FIXTURES {
        let formula = Formula::open(name);
        let weights = &formula.fixture["weights"];
        let bytes: Vec<u8> = formula
            .tensors
            .values()
            .flat_map(|(_, _, bytes)| bytes)
            .copied()
            .collect();
        assert_eq!(
            weights["fnv1a64"].as_str().unwrap(),
            format!("{:016x}", fnv1a64(&bytes)),
            "{name}"
        );
        assert_eq!(weights["tensors"].as_u64(), Some(formula.tensors.len() as u64));
    }
}

#[test]
fn the_backbone_agrees_with_the_naive_f64_model() {
    for name in FIXTURES.into_iter().chain(["golden"]) {
        let formula = Formula::open(name);
        let mut engines = DELTA_RULES.map(|delta_rule| formula.engine(delta_rule, Dtype::F32));
        let mut worst = 0.0f64;
        for length in [1, 3, 64, 65, 129] {
            let mut random = Random::new(length as u64);
            let ids: Vec<u32> = (0..length)
                .map(|_| random.below(formula.config.vocab_size) as u32)
                .collect();
            for noncausal in [false, true] {
                let expected = formula.naive(&ids, noncausal);
                for engine in &mut engines {
                    let actual = hidden(engine, &ids, noncausal).into_iter().flatten();
                    worst = worst.max(distance(actual, expected.iter().copied()));
                }
            }
        }
        println!("{name}: at most {worst:.2e} from f64");
        assert!(worst < LIMIT, "{name}: {worst:e}");
    }
}

/// bf16 keeps 8 bits: a rounding is worth 2^-9, and some dozens of them meet in a value of these models.
const BF16_RELATIVE_L2: f64 = 4e-2;
/// Of one or two tokens: a single badly conditioned row is not evened out by others.
const BF16_RELATIVE_L2_OF_FEW: f64 = 8e-2;

#[test]
fn bf16_stays_within_its_bound_of_f32() {
    for name in FIXTURES {
        let formula = Formula::open(name);
        let mut wide = formula.engine("cpu.chunked", Dtype::F32);
        let mut narrow = DELTA_RULES.map(|delta_rule| formula.engine(delta_rule, Dtype::Bf16));
        let mut worst = 0.0f64;
        for case in formula.fixture["cases"].as_array().unwrap() {
            let (ids, noncausal) = (formula.ids(case), case["mode"] == "noncausal");
            let expected = hidden(&mut wide, &ids, noncausal);
            for engine in &mut narrow {
                let actual = hidden(engine, &ids, noncausal);
                let (mut difference, mut norm) = (0.0, 0.0);
                for (a, b) in actual.iter().flatten().zip(expected.iter().flatten()) {
                    difference += f64::from(a - b).powi(2);
                    norm += f64::from(*b).powi(2);
                }
                let relative = (difference / norm).sqrt();
                let limit = if ids.len() <= 2 {
                    BF16_RELATIVE_L2_OF_FEW
                } else {
                    BF16_RELATIVE_L2
                };
                assert!(relative < limit, "{name}, {} tokens: {relative:e}", ids.len());
                assert!(relative > 1e-4, "{name}: bf16 cannot be this close to f32");
                worst = worst.max(relative);
            }
        }
        println!("{name}: bf16 is at most {worst:.2e} (relative L2) from f32");
    }
}
