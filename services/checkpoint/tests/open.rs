//! Folders that open.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{fs, path::Path};

use deltagate_checkpoint::{
    AttentionMode, Checkpoint, CheckpointError, Dtype, LayerKind, ModelCard, ModelConfig, embedded_files,
    inspect,
};
use serde_json::json;
use support::{Folder, Tensor, nested, text_config, value};

#[test]
fn every_prefix_flat_and_nested_in_one_file_and_in_shards() {
    for prefix in ["model.language_model.", "language_model.", "model.", ""] {
        for is_nested in [false, true] {
            let mut folder = Folder::startlux(prefix);
            if is_nested {
                folder.config = nested(text_config(), false);
            }
            for dir in [folder.write(), folder.write_sharded()] {
                let checkpoint =
                    Checkpoint::open(dir.path()).unwrap_or_else(|error| panic!("{prefix:?}: {error}"));
                let view = checkpoint.tensor("layers.3.self_attn.q_proj.weight").unwrap();
                assert_eq!(
                    (view.name, view.shape),
                    ("layers.3.self_attn.q_proj.weight", &[32, 8][..])
                );
                assert_eq!(view.dtype, Dtype::Bf16);
                let seed = folder.tensors[&format!("{prefix}layers.3.self_attn.q_proj.weight")].seed;
                assert!(
                    view.to_f32()
                        .iter()
                        .enumerate()
                        .all(|(i, v)| (v - value(seed, i)).abs() < 0.01)
                );
                let a_log = checkpoint.tensor("layers.0.linear_attn.A_log").unwrap();
                assert_eq!((a_log.dtype, a_log.shape), (Dtype::F32, &[2][..]));
            }
        }
    }
}

#[test]
fn the_card_says_what_the_folder_is() {
    let folder = Folder::startlux("model.");
    let dir = folder.write();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let card = checkpoint.card();
    assert_eq!(card.name, dir.path().file_name().unwrap().to_str().unwrap());
    assert_eq!(card.family.as_deref(), Some("startlux"));
    assert_eq!(card.release_date.as_deref(), Some("2026-01-31"));
    assert_eq!(card.family_config, folder.decision);
    assert_eq!((card.attention, card.max_tokens), (AttentionMode::Causal, 512));
    let elements: usize = folder
        .tensors
        .values()
        .map(|tensor| tensor.shape.iter().product::<usize>())
        .sum();
    assert_eq!(card.parameters, elements as u64);
    assert_eq!(
        card.weight_bytes,
        2 * elements as u64 + 2 * 2 * 3,
        "three A_log of two values are F32"
    );
    let expected = ModelConfig {
        hidden_size: 8,
        intermediate_size: 12,
        layers: [
            [LayerKind::LinearAttention; 3].as_slice(),
            &[LayerKind::FullAttention],
        ]
        .concat(),
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 8,
        rotary_dim: 2,
        rope_theta: 1e7,
        linear_num_key_heads: 1,
        linear_num_value_heads: 2,
        linear_key_head_dim: 4,
        linear_value_head_dim: 6,
        linear_conv_kernel_dim: 4,
        rms_norm_eps: 1e-6,
        vocab_size: 64,
        tie_word_embeddings: false,
        max_position_embeddings: 512,
    };
    assert_eq!(card.config, expected);

    let [asset] = &card.assets[..] else {
        panic!("{:?}", card.assets)
    };
    let tokenizer = folder.files["tokenizer.json"].as_slice();
    assert_eq!(
        (asset.name.as_str(), asset.size_bytes),
        ("tokenizer.json", tokenizer.len() as u64)
    );
    assert_eq!(
        fs::read(checkpoint.asset_path(&asset.sha256).unwrap()).unwrap(),
        tokenizer
    );
    assert_eq!(checkpoint.asset_path(&"0".repeat(64)), None);

    let text = serde_json::to_string(card).unwrap();
    assert_eq!(
        &serde_json::from_str::<ModelCard>(&text).unwrap(),
        card,
        "it travels as JSON"
    );
    let inspection = inspect(dir.path());
    assert!(inspection.would_load && inspection.findings.is_empty());
    assert_eq!(inspection.card.as_ref(), Some(card));
}

#[test]
fn the_digest_follows_what_decides_an_answer_and_nothing_else() {
    let digest = |folder: &Folder| folder.open().unwrap().card().digest.clone();
    let base = digest(&Folder::startlux(""));
    assert_eq!(base.len(), 64);
    assert_eq!(
        digest(&Folder::startlux("")),
        base,
        "the folder's own name does not count"
    );
    let changes: [&dyn Fn(&mut Folder); 5] = [
        &|folder| folder.config["rms_norm_eps"] = json!(1e-5),
        &|folder| folder.decision["temperature_by_type"]["noul"] = json!(1.3),
        &|folder| folder.tensors.get_mut("norm.weight").unwrap().seed = 7,
        &|folder| folder.files.get_mut("tokenizer.json").unwrap().push(b' '),
        &|folder| {
            folder
                .tensors
                .get_mut("layers.0.linear_attn.A_log")
                .unwrap()
                .dtype = "BF16"
        },
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut folder = Folder::startlux("");
        change(&mut folder);
        assert_ne!(digest(&folder), base, "change {i}");
    }
    let mut folder = Folder::startlux("");
    folder.files.insert("README.md", b"about".to_vec());
    assert_eq!(digest(&folder), base);
}

#[test]
fn heads_are_own_tied_or_absent() {
    let own = Folder::startlux("model.").open().unwrap();
    assert_eq!(own.output_embedding().unwrap().unwrap().name, "lm_head.weight");

    // Tied at the root, at the text level, and flat.
    let mut tied_text = text_config();
    tied_text["tie_word_embeddings"] = json!(true);
    let mut root_is_silent = nested(tied_text.clone(), true);
    root_is_silent
        .as_object_mut()
        .unwrap()
        .shift_remove("tie_word_embeddings");
    for config in [nested(text_config(), true), root_is_silent, tied_text.clone()] {
        let mut folder = Folder::startlux("model.");
        folder.config = config;
        let head = folder.tensors.remove("lm_head.weight").unwrap();
        let tied = folder.open().unwrap();
        assert!(tied.card().config.tie_word_embeddings);
        let embedding = tied.output_embedding().unwrap().unwrap();
        assert_eq!(
            (embedding.name, embedding.shape),
            ("embed_tokens.weight", &[64, 8][..])
        );
        assert_eq!(
            tied.card().parameters + 64 * 8,
            own.card().parameters,
            "counted once"
        );

        // A copy of the embedding is the same head.
        let copy = Tensor {
            seed: folder.tensors["model.embed_tokens.weight"].seed,
            ..head
        };
        folder.tensors.insert("lm_head.weight".to_owned(), copy);
        assert_eq!(
            folder.open().unwrap().output_embedding().unwrap().unwrap().name,
            "embed_tokens.weight"
        );
    }

    // Beside the backbone, as models with a whole language model under a prefix have it.
    for (prefix, name) in [
        ("language_model.", "language_model.lm_head.weight"),
        ("model.", "model.lm_head.weight"),
    ] {
        let mut folder = Folder::startlux(prefix);
        let head = folder.tensors.remove("lm_head.weight").unwrap();
        folder.tensors.insert(name.to_owned(), head);
        let beside = folder.open().unwrap();
        let view = beside.output_embedding().unwrap().unwrap();
        assert_eq!((view.name, view.shape), ("lm_head.weight", &[64, 8][..]));
        assert_eq!(beside.card().parameters, own.card().parameters);
    }

    let mut bare = Folder::startlux("");
    bare.decision = json!(null);
    bare.files.clear();
    bare.tensors.remove("lm_head.weight");
    let bare = bare.open().unwrap();
    assert!(bare.output_embedding().unwrap().is_none());
    assert_eq!(
        (bare.card().family.as_deref(), bare.card().release_date.as_deref()),
        (None, None)
    );
    assert!(bare.card().family_config.is_null() && bare.card().assets.is_empty());
}

#[test]
fn every_way_to_write_the_same_config() {
    let expected = ModelConfig::from_json(&text_config()).unwrap();
    let rope = text_config()["rope_parameters"].clone();
    let variants: [&dyn Fn(&mut Folder); 6] = [
        &|folder| folder.remove("layer_types"),
        &|folder| {
            folder.remove("layer_types");
            folder.remove("full_attention_interval");
        },
        &|folder| {
            folder.remove("rope_parameters");
            folder.config["rope_theta"] = json!(10_000_000);
            folder.config["partial_rotary_factor"] = json!(0.25);
        },
        &|folder| {
            folder.remove("rope_parameters");
            folder.config["rope_scaling"] = rope.clone();
        },
        &|folder| folder.config["partial_rotary_factor"] = json!(0.25),
        &|folder| {
            for key in [
                "attn_output_gate",
                "attention_bias",
                "hidden_act",
                "output_gate_type",
                "tie_word_embeddings",
            ] {
                folder.remove(key);
            }
            folder.config["sliding_window"] = json!(4096);
            folder.config["use_sliding_window"] = json!(false);
            folder.config["a_new_key"] = json!(null);
        },
    ];
    for (i, change) in variants.iter().enumerate() {
        let mut folder = Folder::startlux("");
        change(&mut folder);
        let read =
            ModelConfig::from_json(&folder.config).unwrap_or_else(|error| panic!("variant {i}: {error}"));
        assert_eq!(read, expected, "variant {i}");
    }
}

#[test]
fn any_layer_types_and_any_interval_are_followed() {
    let kinds = |config: &serde_json::Value| -> String {
        let layers = ModelConfig::from_json(config).unwrap().layers;
        layers
            .iter()
            .map(|kind| {
                if *kind == LayerKind::FullAttention {
                    'F'
                } else {
                    'L'
                }
            })
            .collect()
    };
    let mut config = text_config();
    config
        .as_object_mut()
        .unwrap()
        .shift_remove("full_attention_interval");
    config["layer_types"] = json!([
        "full_attention",
        "linear_attention",
        "linear_attention",
        "linear_attention"
    ]);
    assert_eq!(kinds(&config), "FLLL");
    config.as_object_mut().unwrap().shift_remove("layer_types");
    config["full_attention_interval"] = json!(3);
    config["num_hidden_layers"] = json!(7);
    assert_eq!(kinds(&config), "LLFLLFL");
}

#[test]
fn vision_and_multi_token_prediction_are_not_looked_at() {
    let mut folder = Folder::startlux("model.language_model.");
    for name in [
        "mtp.layers.0.mlp.up_proj.weight",
        "model.visual.blocks.0.norm1.weight",
        "visual.patch_embed.proj.bias",
    ] {
        folder.tensors.insert(
            name.to_owned(),
            Tensor {
                dtype: "I64",
                shape: vec![3],
                seed: 1,
            },
        );
    }
    let checkpoint = folder.open().unwrap();
    assert_eq!(
        checkpoint.card().parameters,
        Folder::startlux("").open().unwrap().card().parameters
    );
    let error = checkpoint.tensor("mtp.layers.0.mlp.up_proj.weight").unwrap_err();
    assert!(matches!(error, CheckpointError::NoTensor { .. }), "{error}");
}

#[test]
fn a_family_file_may_leave_out_what_has_a_default() {
    let mut folder = Folder::startlux("");
    folder.decision = json!({"letter_token_ids": (32..58).collect::<Vec<u32>>(), "base_model": "x", "wide_choice": {"keep": 12}});
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.card().release_date.as_deref(), Some("2026-10-01"));
}

#[test]
fn the_embedded_model_opens_like_any_other() {
    let cache = tempfile::TempDir::new().unwrap();
    let Some(files) = embedded_files() else {
        assert!(matches!(
            Checkpoint::embedded_in(cache.path()).unwrap_err(),
            CheckpointError::NotEmbedded
        ));
        return;
    };
    let checkpoint = Checkpoint::embedded_in(cache.path()).unwrap();
    let card = checkpoint.card();
    assert_eq!(
        (card.name.as_str(), card.family.as_deref()),
        ("deltagate-mini", Some("startlux"))
    );
    assert!(checkpoint.dir().starts_with(cache.path()));
    assert!(checkpoint.output_embedding().unwrap().is_some());
    for file in files {
        assert_eq!(fs::read(checkpoint.dir().join(file.name)).unwrap(), file.bytes);
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/models/deltagate-mini");
    assert_eq!(
        Checkpoint::open(&source).unwrap().card(),
        card,
        "the same as the folder that it was made from"
    );
}

#[test]
fn configs_that_transformers_writes_have_no_unknown_key() {
    for (name, text) in [
        (
            "golden",
            include_str!("../../../tests/fixtures/backbone/golden.json"),
        ),
        ("gva1", include_str!("../../../tests/fixtures/backbone/gva1.json")),
        ("gva2", include_str!("../../../tests/fixtures/backbone/gva2.json")),
        ("gva3", include_str!("../../../tests/fixtures/backbone/gva3.json")),
    ] {
        let fixture: serde_json::Value = serde_json::from_str(text).unwrap();
        let config =
            ModelConfig::from_json(&fixture["config"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            json!(config.layers.len()),
            fixture["config"]["num_hidden_layers"],
            "{name}"
        );
    }
    // What `PreTrainedConfig.to_dict` of transformers 5.24 adds at either level.
    let bookkeeping = json!({
        "transformers_version": "5.24.0", "architectures": null, "output_hidden_states": false, "return_dict": true,
        "dtype": null, "chunk_size_feed_forward": 0, "is_encoder_decoder": false, "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0}, "problem_type": null, "pad_token_id": null, "bos_token_id": null,
        "eos_token_id": null, "_name_or_path": "", "output_attentions": false
    });
    let mut text = text_config();
    let mut root = nested(json!(null), false);
    for (key, value) in bookkeeping.as_object().unwrap() {
        text[key] = value.clone();
        root[key] = value.clone();
    }
    root["text_config"] = text;
    assert_eq!(
        ModelConfig::from_json(&root).unwrap(),
        ModelConfig::from_json(&text_config()).unwrap()
    );
}
