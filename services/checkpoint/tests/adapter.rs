//! Adapters: which are recognised, and what is wrong with the others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{collections::BTreeMap, fs, path::Path};

use deltagate_checkpoint::{Checkpoint, Finding};
use serde_json::{Value, json};
use support::{Folder, Tensor, findings, only, safetensors, write_json};
use tempfile::TempDir;

const CONFIG: &str = "text/adapter_config.json";
const WEIGHTS: &str = "text/adapter_model.safetensors";
const WRAPPED: &str = "base_model.model.model.language_model.layers.3.self_attn";

/// As PEFT 0.21 writes it.
fn config() -> Value {
    json!({
        "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "Qwen/Qwen3.5-4B", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
        "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
        "init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
        "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 32, "lora_bias": false, "lora_dropout": 0.05,
        "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
        "monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 2,
        "rank_pattern": {}, "revision": null, "target_modules": ["q_proj", "self_attn.o_proj"],
        "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null,
        "use_dora": false, "use_qalora": false, "use_rslora": false, "velora_config": null
    })
}

fn tensors() -> BTreeMap<String, Tensor> {
    let tensor = |dtype, shape: [usize; 2], seed| Tensor {
        dtype,
        shape: shape.to_vec(),
        seed,
    };
    BTreeMap::from([
        (
            format!("{WRAPPED}.q_proj.lora_A.weight"),
            tensor("F32", [2, 8], 1),
        ),
        (
            format!("{WRAPPED}.q_proj.lora_B.weight"),
            tensor("F32", [32, 2], 2),
        ),
        (
            format!("{WRAPPED}.o_proj.lora_A.weight"),
            tensor("BF16", [2, 16], 3),
        ),
        (
            format!("{WRAPPED}.o_proj.lora_B.weight"),
            tensor("F16", [8, 2], 4),
        ),
    ])
}

fn base() -> Folder {
    let mut folder = Folder::startlux("model.");
    folder.decision = Value::Null;
    folder
}

fn write(folder: &str, config: &Value, tensors: &BTreeMap<String, Tensor>) -> TempDir {
    let dir = base().write();
    add(dir.path(), folder, config, tensors);
    dir
}

fn add(dir: &Path, folder: &str, config: &Value, tensors: &BTreeMap<String, Tensor>) {
    let folder = dir.join(folder);
    fs::create_dir_all(&folder).unwrap();
    write_json(&folder, "adapter_config.json", config);
    fs::write(
        folder.join("adapter_model.safetensors"),
        safetensors(tensors.iter()),
    )
    .unwrap();
}

fn refused_config(config: &Value) -> Vec<Finding> {
    findings(write("text", config, &tensors()).path())
}

fn refused_tensors(change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> Vec<Finding> {
    let mut tensors = tensors();
    change(&mut tensors);
    findings(write("text", &config(), &tensors).path())
}

#[test]
fn an_adapter_is_recognised_in_either_place_and_belongs_to_the_digest() {
    let base = base().open().unwrap().card().digest.clone();
    let mut digests = vec![base];
    for folder in ["text", ""] {
        let dir = write(folder, &config(), &tensors());
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let card = checkpoint.card();
        assert_eq!(card.family.as_deref(), Some("cua_s1"));
        assert_eq!(card.family_config, config());
        assert_eq!(
            card.max_tokens, 512,
            "16,384, and never more than the backbone takes"
        );
        checkpoint.check_values().unwrap();
        assert!(!digests.contains(&card.digest));
        digests.push(card.digest.clone());
        let name = "layers.3.self_attn.q_proj.weight";
        let (file, loaded) = (
            checkpoint.tensor(name).unwrap(),
            checkpoint.weights(name).unwrap(),
        );
        assert_ne!(file.bytes, loaded.view().bytes);
        assert_eq!(
            (file.dtype, file.shape),
            (loaded.view().dtype, loaded.view().shape)
        );
        let name = "layers.3.self_attn.k_proj.weight";
        let (file, loaded) = (
            checkpoint.tensor(name).unwrap(),
            checkpoint.weights(name).unwrap(),
        );
        assert_eq!(file.bytes, loaded.view().bytes);
    }
    let mut other = tensors();
    other
        .get_mut(&format!("{WRAPPED}.q_proj.lora_B.weight"))
        .unwrap()
        .seed = 9;
    let dir = write("text", &config(), &other);
    assert!(!digests.contains(&Checkpoint::open(dir.path()).unwrap().card().digest));
}

#[test]
fn an_adapter_config_is_checked_key_by_key() {
    for (key, value, problem) in [
        ("peft_type", json!("LOHA"), "the only kind"),
        ("base_model_name_or_path", json!("Qwen/Qwen3.5-9B"), "Qwen3.5-4B"),
        ("base_model_name_or_path", Value::Null, "Qwen3.5-4B"),
        ("r", json!(0), "from 1 to 4096"),
        ("r", json!("2"), "from 1 to 4096"),
        ("lora_alpha", json!(-1), "above 0"),
        ("lora_alpha", json!(1e308), "too large"),
        ("target_modules", json!("all-linear"), "pattern"),
        ("target_modules", json!([]), "empty"),
        (
            "target_modules",
            json!(["q_proj", "o_proj", "linear_fc1"]),
            "images",
        ),
        (
            "target_modules",
            json!(["q_proj", "o_proj", "lm_head"]),
            "names `lm_head`",
        ),
        (
            "target_modules",
            json!(["q_proj", "o_proj", "roj"]),
            "names `roj`",
        ),
        ("bias", json!("lora_only"), "biases"),
        ("init_lora_weights", json!("pissa"), "weights of the base"),
        ("task_type", json!("SEQ_CLS"), "neither"),
        ("alpha_pattern", json!({"q_proj": 64}), "plain LoRA"),
        ("rank_pattern", json!({"q_proj": 4}), "plain LoRA"),
        ("exclude_modules", json!(["o_proj"]), "plain LoRA"),
        ("fan_in_fan_out", json!(true), "plain LoRA"),
        ("layer_replication", json!([[0, 4]]), "plain LoRA"),
        ("layers_pattern", json!("layers"), "plain LoRA"),
        ("layers_to_transform", json!([3]), "plain LoRA"),
        ("lora_bias", json!(true), "plain LoRA"),
        ("modules_to_save", json!(["lm_head"]), "plain LoRA"),
        ("target_parameters", json!(["x"]), "plain LoRA"),
        ("trainable_token_indices", json!([1]), "plain LoRA"),
        ("use_dora", json!(true), "plain LoRA"),
        ("use_rslora", json!(true), "plain LoRA"),
        ("use_qalora", json!(true), "plain LoRA"),
        ("alora_invocation_tokens", json!([1]), "plain LoRA"),
        ("lora_magnitude", json!(1), "does not know"),
    ] {
        let mut config = config();
        config[key] = value;
        only(&refused_config(&config), CONFIG, key, problem);
    }
    for key in [
        "peft_type",
        "r",
        "lora_alpha",
        "target_modules",
        "base_model_name_or_path",
    ] {
        let mut config = config();
        config.as_object_mut().unwrap().shift_remove(key).unwrap();
        only(&refused_config(&config), CONFIG, key, "");
    }
}

#[test]
fn tensors_of_an_adapter_are_matched_one_by_one() {
    let b = format!("{WRAPPED}.q_proj.lora_B.weight");
    only(
        &refused_tensors(|t| drop(t.remove(&b))),
        WEIGHTS,
        &b,
        "is missing",
    );
    let found = refused_tensors(|t| t.get_mut(&b).unwrap().shape = vec![32, 3]);
    only(&found, WEIGHTS, &b, "has shape [32, 3], not [32, 2]");
    let found = refused_tensors(|t| t.get_mut(&b).unwrap().dtype = "I64");
    only(&found, WEIGHTS, &b, "dtype");
    for name in [
        format!("{WRAPPED}.k_proj.lora_A.weight"),
        format!("{WRAPPED}.q_proj.lora_B.bias"),
        format!("{WRAPPED}.q_proj.lora_magnitude_vector"),
        "base_model.model.lm_head.weight".to_owned(),
        "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight".to_owned(),
    ] {
        let found = refused_tensors(|t| drop(t.insert(name.clone(), t[&b].clone())));
        // An own prefix that sorts first would be the prefix of all.
        if name.starts_with("base_model.model.model.layers") {
            assert!(
                found
                    .iter()
                    .any(|finding| finding.key_or_tensor.as_deref() == Some(name.as_str())),
                "{found:?}"
            );
        } else {
            only(&found, WEIGHTS, &name, "does not know");
        }
    }
    let infinite = write("text", &config(), &tensors());
    let path = infinite.path().join(WEIGHTS);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let inspection = deltagate_checkpoint::inspect(infinite.path());
    only(&inspection.findings, WEIGHTS, &b, "holds inf at element 63");
}

#[test]
fn files_of_an_adapter_are_all_there_and_once() {
    for (file, missing) in [(CONFIG, WEIGHTS), (WEIGHTS, CONFIG)] {
        let dir = write("text", &config(), &tensors());
        fs::remove_file(dir.path().join(missing)).unwrap();
        only(&findings(dir.path()), missing, "", "is missing");
        assert!(dir.path().join(file).is_file());
    }
    let twice = write("text", &config(), &tensors());
    add(twice.path(), "", &config(), &tensors());
    only(
        &findings(twice.path()),
        CONFIG,
        "",
        "lies beside `adapter_config.json`",
    );

    let pickled = base().write();
    fs::write(pickled.path().join("adapter_model.bin"), [0]).unwrap();
    only(&findings(pickled.path()), "adapter_config.json", "", "is missing");

    let mut other = Folder::startlux("model.");
    other.files.insert("adapter_model.safetensors", vec![0]);
    let found = other.refused();
    assert!(
        found
            .iter()
            .any(|finding| finding.to_string().contains("several families: cua_s1, startlux")),
        "{found:?}"
    );
}
