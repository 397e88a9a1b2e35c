//! Folders that are refused, each with the file and the key or tensor by name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;

use deltagate_checkpoint::{Checkpoint, CheckpointError, ModelConfig, Problem};
use serde_json::{Value, json};
use support::{Folder, INDEX, Tensor, findings, nested, only, text_config, write_json};

/// A key of the text config, a value that it must not have, and a word of the reason.
fn bad_text_values() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("attention_bias", json!(true), "biases in attention"),
        ("hidden_act", json!("gelu"), "`silu`"),
        ("attn_output_gate", json!(false), "output gate"),
        ("mamba_ssm_dtype", json!("bfloat16"), "`float32`"),
        ("quantization_config", json!({"quant_method": "fp8"}), "quantised"),
        ("sliding_window", json!(4096), "sliding"),
        ("use_sliding_window", json!(true), "sliding"),
        ("is_encoder_decoder", json!(true), "decoders"),
        ("linear_conv_kernel_dim", json!(3), "is not 4"),
        ("layer_types", json!(["full_attention"]), "`num_hidden_layers`"),
        ("rms_norm_eps", json!(0.0), "between 0 and 1"),
        ("rms_norm_eps", json!("1e-6"), "not a number"),
        ("hidden_size", json!(0), "integer from 1"),
        ("hidden_size", json!(8.0), "integer from 1"),
        ("hidden_size", json!(-8), "integer from 1"),
        ("vocab_size", json!(1_u64 << 40), "integer from 1"),
        ("num_hidden_layers", json!(1_000_000), "integer from 1"),
        (
            "num_key_value_heads",
            json!(3),
            "does not divide `num_attention_heads`",
        ),
        (
            "linear_num_key_heads",
            json!(3),
            "does not divide `linear_num_value_heads`",
        ),
        ("num_experts", json!(8), "does not know"),
        ("use_qk_norm", json!(false), "does not know"),
        ("tie_word_embeddings", json!("yes"), "neither true nor false"),
        ("rope_parameters", json!(5), "not an object"),
        ("partial_rotary_factor", json!(0.5), "two different values"),
        ("rope_theta", json!(10000), "two different values"),
    ]
}

#[test]
fn values_that_change_the_arithmetic_are_named() {
    for (key, value, problem) in bad_text_values() {
        for (prefix, is_nested) in [("", false), ("text_config.", true)] {
            let mut folder = Folder::startlux("model.");
            if is_nested {
                folder.config = nested(text_config(), false);
            }
            folder.text()[key] = value.clone();
            only(
                &folder.refused(),
                "config.json",
                &format!("{prefix}{key}"),
                problem,
            );
        }
    }
}

#[test]
fn rope_and_layer_kinds_are_named_by_their_place() {
    for (key, value) in [
        ("rope_type", json!("yarn")),
        ("type", json!("linear")),
        ("factor", json!(4.0)),
        ("rope_theta", json!("big")),
    ] {
        let mut folder = Folder::startlux("");
        folder.config["rope_parameters"][key] = value;
        let found = folder.refused();
        assert_eq!(
            found[0].key_or_tensor.as_deref(),
            Some(format!("rope_parameters.{key}").as_str())
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }
    let mut folder = Folder::startlux("");
    folder.config["layer_types"][2] = json!("sliding_attention");
    only(&folder.refused(), "config.json", "layer_types.2", "neither");
    for (factor, problem) in [(0.0, "above 0"), (1.5, "above 1"), (0.4, "even number")] {
        let mut folder = Folder::startlux("");
        folder.config["rope_parameters"]["partial_rotary_factor"] = json!(factor);
        let found = folder.refused();
        assert!(
            found
                .iter()
                .any(|finding| finding.problem.to_string().contains(problem)),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .all(|finding| finding.key_or_tensor.as_deref() == Some("partial_rotary_factor"))
        );
    }
}

#[test]
fn keys_that_contradict_each_other_are_named() {
    for interval in [1, 2, 3, 5] {
        let mut folder = Folder::startlux("");
        folder.config["full_attention_interval"] = json!(interval);
        only(
            &folder.refused(),
            "config.json",
            "full_attention_interval",
            "contradicts `layer_types`",
        );
    }
    let mut folder = Folder::startlux("model.");
    folder.config["tie_word_embeddings"] = json!(true);
    folder.config = nested(folder.config, false);
    only(
        &folder.refused(),
        "config.json",
        "text_config.tie_word_embeddings",
        "of the root is false",
    );
}

#[test]
fn sizes_are_never_invented() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "rms_norm_eps",
        "vocab_size",
        "max_position_embeddings",
    ] {
        let mut folder = Folder::startlux("");
        folder.remove(key);
        only(&folder.refused(), "config.json", key, "is missing");
    }
    let mut folder = Folder::startlux("");
    folder.remove("rope_parameters");
    let keys: Vec<_> = folder
        .refused()
        .into_iter()
        .filter_map(|finding| finding.key_or_tensor)
        .collect();
    assert_eq!(keys, ["rope_theta", "partial_rotary_factor"]);
}

#[test]
fn every_problem_of_a_config_is_reported_at_once() {
    let mut folder = Folder::startlux("");
    folder.config["hidden_act"] = json!("gelu");
    folder.config["attention_bias"] = json!(true);
    folder.remove("vocab_size");
    folder.decision["letter_token_ids"] = json!([1]);
    folder.files.clear();
    let found: Vec<String> = folder
        .refused()
        .iter()
        .map(|f| f.key_or_tensor.clone().unwrap_or(f.file.clone()))
        .collect();
    assert_eq!(
        found,
        [
            "attention_bias",
            "hidden_act",
            "vocab_size",
            "letter_token_ids",
            "tokenizer.json"
        ]
    );
}

#[test]
fn other_models_are_named() {
    for (config, key) in [
        (json!({"model_type": "llama"}), "model_type"),
        (
            json!({"model_type": "qwen3_5_moe", "text_config": {}}),
            "model_type",
        ),
        (json!({"model_type": "qwen3_5"}), "text_config"),
        (json!({}), "model_type"),
        (json!([]), ""),
    ] {
        let mut folder = Folder::startlux("");
        folder.config = config;
        let found = folder.refused();
        assert_eq!(found[0].key_or_tensor.as_deref().unwrap_or(""), key, "{found:?}");
        assert_eq!(found[0].file, "config.json");
    }
    let mut folder = Folder::startlux("");
    folder.config = nested(text_config(), false);
    folder.config["text_config"]["model_type"] = json!("qwen3_next");
    only(
        &folder.refused(),
        "config.json",
        "text_config.model_type",
        "`qwen3_5_text`",
    );
    folder.config = nested(text_config(), false);
    folder.config["quantization_config"] = json!({"bits": 4});
    only(
        &folder.refused(),
        "config.json",
        "quantization_config",
        "quantised",
    );
    folder.config = nested(text_config(), false);
    folder.config["auto_map"] = json!({"AutoModel": "modeling.Model"});
    only(&folder.refused(), "config.json", "auto_map", "does not know");

    let error = ModelConfig::from_json(&json!({"model_type": "llama"})).unwrap_err();
    assert_eq!(error.key, "model_type");
}

#[test]
fn files_that_are_missing_or_not_what_they_should_be() {
    let folder = Folder::startlux("");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let dir = folder.write();
        fs::remove_file(dir.path().join(name)).unwrap();
        only(&findings(dir.path()), name, "", "is missing");
        fs::create_dir(dir.path().join(name)).unwrap();
        let found = findings(dir.path());
        assert!(
            found[0].file == name && found[0].problem.to_string().contains("regular file"),
            "{found:?}"
        );
    }
    let dir = folder.write();
    fs::write(dir.path().join("config.json"), b"{").unwrap();
    only(&findings(dir.path()), "config.json", "", "not valid JSON");
    fs::write(dir.path().join("config.json"), vec![b' '; 5 << 20]).unwrap();
    only(&findings(dir.path()), "config.json", "", "more than");

    let dir = folder.write();
    let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("model.safetensors"), &bytes[..bytes.len() - 3]).unwrap();
    only(
        &findings(dir.path()),
        "model.safetensors",
        "norm.weight",
        "ends at byte",
    );

    let absent = dir.path().join("absent");
    only(&findings(&absent), ".", "", "cannot be read");
    only(
        &findings(&dir.path().join("config.json")),
        ".",
        "",
        "not a folder",
    );
    let error = Checkpoint::open(&absent).unwrap_err();
    assert!(
        error.to_string().contains("absent") && error.findings().len() == 1,
        "{error}"
    );
}

#[test]
fn tensors_that_are_missing_wrong_or_too_many() {
    let name = "model.layers.1.linear_attn.dt_bias";
    let mut folder = Folder::startlux("model.");
    folder.tensors.remove(name);
    only(&folder.refused(), "model.safetensors", name, "is missing");

    let mut folder = Folder::startlux("model.");
    folder.tensors.get_mut(name).unwrap().shape = vec![2, 1];
    only(
        &folder.refused(),
        "model.safetensors",
        name,
        "has shape [2, 1], not [2]",
    );

    for dtype in ["F16", "I64"] {
        let mut folder = Folder::startlux("model.");
        folder.tensors.get_mut(name).unwrap().dtype = dtype;
        only(
            &folder.refused(),
            "model.safetensors",
            name,
            &format!("dtype {dtype}"),
        );
    }
    for extra in [
        "model.layers.4.input_layernorm.weight",
        "model.layers.1.linear_attn.conv1d.bias",
        "lora_A.weight",
    ] {
        let mut folder = Folder::startlux("model.");
        folder.tensors.insert(
            extra.to_owned(),
            Tensor {
                dtype: "BF16",
                shape: vec![8],
                seed: 1,
            },
        );
        only(&folder.refused(), "model.safetensors", extra, "does not know");
    }
    let mut folder = Folder::startlux("model.");
    folder.tensors.insert(
        "score.weight".to_owned(),
        Tensor {
            dtype: "BF16",
            shape: vec![2, 8],
            seed: 1,
        },
    );
    only(
        &folder.refused(),
        "model.safetensors",
        "score.weight",
        "`architectures` of config.json names none",
    );
}

#[test]
fn exactly_one_backbone() {
    let mut folder = Folder::startlux("transformer.");
    let found = folder.refused();
    assert!(
        found
            .iter()
            .any(|f| f.file == "model.safetensors" && matches!(f.problem, Problem::NoBackbone)),
        "{found:?}"
    );
    folder.tensors.extend(Folder::startlux("model.").tensors);
    folder.tensors.extend(Folder::startlux("language_model.").tensors);
    let found = folder.refused();
    let both = |problem: &Problem| matches!(problem, Problem::SeveralBackbones(p) if p == &["language_model.", "model."]);
    assert!(found.iter().any(|finding| both(&finding.problem)), "{found:?}");
}

#[test]
fn heads_that_contradict_the_config() {
    let mut folder = Folder::startlux("model.");
    folder.config["tie_word_embeddings"] = json!(true);
    only(
        &folder.refused(),
        "model.safetensors",
        "lm_head.weight",
        "`tie_word_embeddings` is true",
    );
    let mut folder = Folder::startlux("model.");
    folder.tensors.get_mut("lm_head.weight").unwrap().shape = vec![63, 8];
    only(
        &folder.refused(),
        "model.safetensors",
        "lm_head.weight",
        "[63, 8], not [64, 8]",
    );
    let mut folder = Folder::startlux("model.");
    let copy = folder.tensors["lm_head.weight"].clone();
    folder.tensors.insert("model.lm_head.weight".to_owned(), copy);
    only(
        &folder.refused(),
        "model.safetensors",
        "model.lm_head.weight",
        "does not know",
    );
    let mut folder = Folder::startlux("model.");
    folder.tensors.remove("lm_head.weight");
    only(
        &folder.refused(),
        "model.safetensors",
        "lm_head.weight",
        "is missing",
    );
}

#[test]
fn an_index_must_agree_with_its_shards_and_stay_in_its_folder() {
    let folder = Folder::startlux("model.");
    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    let changed = |change: &dyn Fn(&mut Value)| {
        let dir = folder.write_sharded();
        let mut index: Value = serde_json::from_slice(&fs::read(dir.path().join(INDEX)).unwrap()).unwrap();
        change(&mut index);
        write_json(dir.path(), INDEX, &index);
        dir
    };
    for path in [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/model.safetensors",
        "..",
        "",
        "config.json",
    ] {
        let dir = changed(&|index| index["weight_map"]["model.norm.weight"] = json!(path));
        let found = findings(dir.path());
        assert_eq!(
            (found[0].file.as_str(), found[0].key_or_tensor.as_deref()),
            (INDEX, Some("weight_map.model.norm.weight"))
        );
        assert!(
            matches!(found[0].problem, Problem::IndexPath),
            "{path}: {found:?}"
        );
    }
    let dir = changed(&|index| index["weight_map"]["model.extra.weight"] = json!(first));
    only(&findings(dir.path()), first, "model.extra.weight", "is missing");
    let dir = changed(&|index| {
        index["weight_map"]
            .as_object_mut()
            .unwrap()
            .shift_remove("lm_head.weight")
            .unwrap();
    });
    only(&findings(dir.path()), first, "lm_head.weight", "not in the index");
    let dir = changed(&|index| index["weight_map"] = json!({}));
    assert_eq!(
        findings(dir.path())[0].key_or_tensor.as_deref(),
        Some("weight_map")
    );
    let dir = changed(&|index| index["weight_map"] = json!({"a": 1}));
    only(&findings(dir.path()), INDEX, "", "not valid JSON");
    let dir = changed(&|index| index["more"] = json!(1));
    only(&findings(dir.path()), INDEX, "", "unknown field");

    let dir = folder.write_sharded();
    let text = String::from_utf8(fs::read(dir.path().join(INDEX)).unwrap()).unwrap();
    let twice = text.replacen(
        "\"weight_map\":{",
        &format!("\"weight_map\":{{\"lm_head.weight\":\"{second}\","),
        1,
    );
    fs::write(dir.path().join(INDEX), twice).unwrap();
    only(&findings(dir.path()), INDEX, "weight_map.lm_head.weight", "twice");

    let dir = folder.write_sharded();
    fs::remove_file(dir.path().join(second)).unwrap();
    // Once for the file, and not for each tensor in it.
    only(&findings(dir.path()), second, "", "is missing");

    let dir = folder.write_sharded();
    fs::copy(dir.path().join(first), dir.path().join(second)).unwrap();
    let found = findings(dir.path());
    assert!(
        found
            .iter()
            .any(|f| f.file == second && matches!(f.problem, Problem::DuplicateTensor { .. })),
        "{found:?}"
    );

    let dir = folder.write_sharded();
    fs::copy(
        folder.write().path().join("model.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    only(
        &findings(dir.path()),
        "model.safetensors",
        "",
        "which does not list it",
    );

    let dir = folder.write_sharded();
    fs::remove_file(dir.path().join(INDEX)).unwrap();
    only(&findings(dir.path()), "model.safetensors", "", "is missing");
}

#[test]
fn the_message_stays_short_when_there_are_many_findings() {
    let mut folder = Folder::startlux("model.");
    folder.tensors.retain(|name, _| name == "model.norm.weight");
    let error = folder.open().unwrap_err();
    let CheckpointError::Refused { findings, .. } = &error else {
        panic!("{error}")
    };
    assert!(findings.len() > 40);
    let message = error.to_string();
    assert!(
        message.ends_with(&format!("; and {} more", findings.len() - 8)),
        "{message}"
    );
    let json = serde_json::to_value(&findings[0]).unwrap();
    assert_eq!(json["file"], "model.safetensors");
    assert_eq!(json["key_or_tensor"], "model.embed_tokens.weight");
    assert_eq!(json["problem"], "is missing");
}
