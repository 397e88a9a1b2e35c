//! One model, written in every way that is accepted, gives the same numbers to the last bit.

use std::{ops::ControlFlow, time::Duration};

use deltagate_checkpoint::{Checkpoint, LayerKind, inspect};
use deltagate_executor::engine::{
    Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone, SequencePlan,
};
use deltagate_kernels_api::{KernelFamily, Preference, Preferences};
use deltagate_kernels_reference as reference;
use serde_json::json;

use crate::folder::{Folder, Tensor, text_config};

struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

const IDS: [u32; 7] = [3, 10, 17, 96, 0, 42, 5];

/// Rows of a projection, through the real loader and engine.
fn rows(folder: &Folder, projection: Projection) -> Vec<Vec<f32>> {
    let dir = folder.write();
    let inspection = inspect(dir.path());
    assert!(inspection.would_load, "{:?}", inspection.findings);
    let checkpoint = Checkpoint::open(dir.path()).unwrap_or_else(|error| panic!("{error}"));
    // One algorithm, whichever is faster at the moment.
    let mut preferences = Preferences::default();
    preferences.set(
        KernelFamily::DeltaRule,
        Preference::One("cpu.recurrent".to_owned()),
    );
    let settings = EngineSettings {
        preferences,
        probe_timeout: Duration::from_secs(120),
        ..EngineSettings::default()
    };
    let mut engine = Engine::load(&checkpoint, &settings, &mut |_| {}).unwrap();
    let sequence = SequencePlan {
        token_ids: IDS.to_vec(),
        rows: RowSelection::All,
        projection,
    };
    let plan = ForwardPlan {
        sequences: vec![sequence],
        noncausal_full_attention: false,
    };
    let output = engine.forward(&plan, &mut Unwatched).unwrap();
    output.sequences[0].iter().map(|row| row.values.clone()).collect()
}

pub(crate) fn logits(folder: &Folder) -> Vec<Vec<f32>> {
    rows(folder, Projection::OutputEmbedding((0..97).collect()))
}

/// A variant by its description.
type Variant = (&'static str, Folder);

fn with(change: impl FnOnce(&mut Folder)) -> Folder {
    let mut folder = base();
    change(&mut folder);
    folder
}

fn base() -> Folder {
    Folder::backbone(text_config(1, 2))
}

fn drop_keys(folder: &mut Folder, keys: &[&str]) {
    for key in keys {
        folder.config.as_object_mut().unwrap().shift_remove(*key).unwrap();
    }
}

fn dtype_of_vectors(folder: &mut Folder, dtype: &'static str) {
    let vectors = folder
        .tensors
        .values_mut()
        .filter(|tensor| tensor.shape.len() == 1);
    vectors.for_each(|tensor| tensor.dtype = dtype);
}

/// An untied head that holds the same numbers as the embedding.
fn own_head(folder: &mut Folder, name: &str) {
    let embedding = folder.tensors["embed_tokens.weight"].clone();
    folder.tensors.insert(name.to_owned(), embedding);
    folder.config["tie_word_embeddings"] = json!(false);
}

fn places() -> Vec<Variant> {
    let sharded = |mut folder: Folder, shards| {
        folder.shards = shards;
        folder
    };
    vec![
        (
            "`model.`, flat, two shards",
            sharded(base().prefixed("model."), 2),
        ),
        (
            "`language_model.`, nested, one file",
            base().prefixed("language_model.").nested(Some(true)),
        ),
        (
            "`model.language_model.`, nested, five shards",
            sharded(base().prefixed("model.language_model."), 5).nested(Some(true)),
        ),
        (
            "no prefix, nested, three shards",
            sharded(base(), 3).nested(Some(true)),
        ),
    ]
}

fn spellings() -> Vec<Variant> {
    vec![
        (
            "1-D tensors in F32",
            with(|folder| dtype_of_vectors(folder, "F32")),
        ),
        (
            "everything in F32",
            with(|folder| {
                folder
                    .tensors
                    .values_mut()
                    .for_each(|tensor| tensor.dtype = "F32")
            }),
        ),
        ("tied at the text level of a nested config", base().nested(None)),
        (
            "tied at the root, untied at the text level",
            with(|folder| folder.config["tie_word_embeddings"] = json!(false)).nested(Some(true)),
        ),
        ("a head at the root", {
            let mut folder = base();
            own_head(&mut folder, "lm_head.weight");
            folder
        }),
        ("a head beside the backbone, untied at the root", {
            let mut folder = base();
            own_head(&mut folder, "lm_head.weight");
            folder.prefixed("language_model.").nested(Some(false))
        }),
        (
            "an interval",
            with(|folder| {
                drop_keys(folder, &["layer_types"]);
                folder.config["full_attention_interval"] = json!(4);
            }),
        ),
        (
            "neither layer types nor interval",
            with(|folder| drop_keys(folder, &["layer_types"])),
        ),
        (
            "rope keys at the text level",
            with(|folder| {
                drop_keys(folder, &["rope_parameters"]);
                folder.config["rope_theta"] = json!(10_000_000);
                folder.config["partial_rotary_factor"] = json!(0.25);
            }),
        ),
        (
            "rope keys in both places",
            with(|folder| folder.config["rope_theta"] = json!(1e7)),
        ),
        (
            "keys that change nothing",
            with(|folder| {
                for (key, value) in [
                    ("output_gate_type", json!("swish")),
                    ("attention_dropout", json!(0.1)),
                    ("mtp_num_hidden_layers", json!(1)),
                    ("mamba_ssm_dtype", json!("float32")),
                    ("attn_output_gate", json!(true)),
                    ("use_cache", json!(true)),
                    ("quantization_config", json!(null)),
                ] {
                    folder.config[key] = value;
                }
                let mrope = folder.config["rope_parameters"].as_object_mut().unwrap();
                mrope.insert("mrope_section".to_owned(), json!([4, 2, 2]));
                mrope.insert("mrope_interleaved".to_owned(), json!(true));
            }),
        ),
        (
            "vision and multi-token prediction beside it",
            with(|folder| {
                for name in [
                    "mtp.fc.weight",
                    "model.visual.patch_embed.proj.weight",
                    "visual.merger.norm.bias",
                ] {
                    let values = vec![f32::NAN; 6];
                    let tensor = Tensor {
                        dtype: "F32",
                        shape: vec![2, 3],
                        values,
                    };
                    folder.tensors.insert(name.to_owned(), tensor);
                }
            }),
        ),
    ]
}

#[test]
fn every_spelling_of_a_model_gives_the_same_numbers() {
    let expected = logits(&base());
    assert!(expected.iter().flatten().all(|z| z.is_finite()));
    assert!(expected[0] != expected[6]);
    for (what, folder) in places().into_iter().chain(spellings()) {
        assert!(logits(&folder) == expected, "{what}: other numbers");
    }
    // And numbers do change when the model does.
    let other = with(|folder| folder.config["rope_parameters"]["rope_theta"] = json!(1e4));
    assert!(logits(&other) != expected);
}

#[test]
fn sixteen_thirty_two_and_forty_eight_value_heads_agree_with_the_naive_model() {
    for value_heads in [16, 32, 48] {
        let folder = Folder::backbone(text_config(16, value_heads)).prefixed("model.language_model.");
        let actual = rows(&folder, Projection::Hidden);
        let dir = folder.write();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let c = &checkpoint.card().config;
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
        // The values as they were written, not as the loader reads them.
        let tensor = |name: &str| -> Vec<f64> {
            let tensor = &folder.tensors[&format!("model.language_model.{name}")];
            tensor.values.iter().copied().map(f64::from).collect()
        };
        let expected = reference::backbone(&config, &tensor, &IDS, false).unwrap();
        for (i, (a, e)) in actual.iter().flatten().zip(&expected).enumerate() {
            let distance = (f64::from(*a) - e).abs() / e.abs().max(1.0);
            assert!(
                distance <= 1e-4,
                "{value_heads} heads, value {i}: {a} instead of {e}"
            );
        }
        assert_eq!(actual.iter().flatten().count(), expected.len());
    }
}
