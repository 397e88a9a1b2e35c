//! Folders with a joint head: two more files, and not one key or tensor too few or too many.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use deltagate_checkpoint::{AttentionMode, Checkpoint, JointHeadConfig, joint_head_tensors};
use serde_json::{Value, json};
use support::{Folder, Tensor, only, safetensors};

const CONFIG: &str = "joint_head_config.json";
const WEIGHTS: &str = "joint_head.safetensors";
const SIZES: JointHeadConfig = JointHeadConfig {
    hidden_size: 8,
    width: 6,
    routing_layers: 2,
    layers: 1,
    heads: 3,
    feedforward: 10,
};

fn config() -> Value {
    serde_json::to_value(SIZES).unwrap()
}

fn tensors() -> BTreeMap<String, Tensor> {
    let tensor = |(seed, (name, shape))| {
        let dtype = if seed % 2 == 0 { "F32" } else { "BF16" };
        (name, Tensor { dtype, shape, seed })
    };
    joint_head_tensors(&SIZES)
        .into_iter()
        .enumerate()
        .map(tensor)
        .collect()
}

fn folder(config: &Value, tensors: &BTreeMap<String, Tensor>) -> Folder {
    let mut folder = Folder::startlux("model.language_model.");
    folder.decision = Value::Null;
    folder.files.insert(CONFIG, serde_json::to_vec(config).unwrap());
    folder.files.insert(WEIGHTS, safetensors(tensors.iter()));
    folder
}

#[test]
fn a_joint_head_is_recognised_and_belongs_to_the_digest() {
    let checkpoint = folder(&config(), &tensors()).open().unwrap();
    let card = checkpoint.card();
    assert_eq!(card.family.as_deref(), Some("clef"));
    assert_eq!(card.family_config, config());
    assert_eq!((card.attention, card.max_tokens), (AttentionMode::Causal, 512));
    let head = checkpoint.joint_head().unwrap();
    assert_eq!(*head.config(), SIZES);
    assert_eq!(head.tensor("layers.0.linear1.weight").unwrap().shape, [10, 6]);
    assert_eq!(head.tensor("residual_gate").unwrap().elements(), 1);
    assert!(head.tensor("layers.1.linear1.weight").is_err());
    checkpoint.check_values().unwrap();

    let plain = Folder::startlux("").open().unwrap();
    assert!(plain.joint_head().is_none());
    let count = joint_head_tensors(&SIZES)
        .into_iter()
        .map(|(_, shape)| shape.iter().product::<usize>() as u64);
    assert_eq!(card.parameters, plain.card().parameters + count.sum::<u64>());

    let mut long = folder(&config(), &tensors());
    long.config["max_position_embeddings"] = json!(262_144);
    assert_eq!(long.open().unwrap().card().max_tokens, 16_384);

    let mut other = tensors();
    other.get_mut("residual_gate").unwrap().seed += 1;
    let changed = folder(&config(), &other).open().unwrap();
    assert_ne!(card.digest, changed.card().digest);
}

#[test]
fn sizes_of_a_joint_head_are_checked_key_by_key() {
    for (key, value, problem) in [
        ("hidden_size", json!(16), "`hidden_size` of the model is 8"),
        ("hidden_size", json!(8.0), "not an integer"),
        ("width", json!(0), "1 to 262144"),
        ("width", json!(-6), "1 to 262144"),
        ("routing_layers", json!(0), "1 to 64"),
        ("layers", json!(65), "1 to 64"),
        ("layers", json!("1"), "1 to 64"),
        ("heads", json!(4), "does not divide `width`"),
        ("feedforward", Value::Null, "not an integer"),
        ("dropout", json!(0.1), "does not know"),
    ] {
        let mut config = config();
        config[key] = value;
        only(&folder(&config, &tensors()).refused(), CONFIG, key, problem);
    }
    for key in config().as_object().unwrap().keys() {
        let mut config = config();
        config.as_object_mut().unwrap().shift_remove(key).unwrap();
        only(&folder(&config, &tensors()).refused(), CONFIG, key, "is missing");
    }
    only(
        &folder(&json!([]), &tensors()).refused(),
        CONFIG,
        "",
        "not an object",
    );
}

#[test]
fn tensors_of_a_joint_head_are_exactly_those_that_its_sizes_ask_for() {
    for name in tensors().keys() {
        let mut tensors = tensors();
        tensors.remove(name).unwrap();
        only(
            &folder(&config(), &tensors).refused(),
            WEIGHTS,
            name,
            "is missing",
        );
    }
    for (name, shape) in [
        ("type_embedding.weight", vec![4, 6]),
        ("residual_gate", vec![1]),
        ("layers.0.self_attn.in_proj_weight", vec![6, 18]),
    ] {
        let mut tensors = tensors();
        tensors.get_mut(name).unwrap().shape = shape;
        only(&folder(&config(), &tensors).refused(), WEIGHTS, name, "has shape");
    }
    for (dtype, problem) in [("F16", "F16"), ("I64", "I64")] {
        let mut tensors = tensors();
        tensors.get_mut("memory_projection.weight").unwrap().dtype = dtype;
        only(
            &folder(&config(), &tensors).refused(),
            WEIGHTS,
            "memory_projection.weight",
            problem,
        );
    }
    for name in [
        "layers.1.linear1.weight",
        "memory_projection.bias",
        "lora_A.weight",
    ] {
        let mut tensors = tensors();
        let extra = tensors["residual_gate"].clone();
        tensors.insert(name.to_owned(), extra);
        only(
            &folder(&config(), &tensors).refused(),
            WEIGHTS,
            name,
            "does not know",
        );
    }
}

#[test]
fn a_joint_head_needs_both_files_a_tokenizer_and_an_output_embedding_of_its_own() {
    for (file, other) in [(CONFIG, WEIGHTS), (WEIGHTS, CONFIG)] {
        let mut folder = folder(&config(), &tensors());
        folder.files.remove(file).unwrap();
        assert!(folder.files.contains_key(other));
        only(&folder.refused(), file, "", "clef needs it");
    }
    let mut lacking = folder(&config(), &tensors());
    lacking.files.remove("tokenizer.json").unwrap();
    only(&lacking.refused(), "tokenizer.json", "", "clef needs it");

    let mut bare = folder(&config(), &tensors());
    bare.tensors.remove("lm_head.weight").unwrap();
    only(
        &bare.refused(),
        "model.safetensors",
        "lm_head.weight",
        "is missing",
    );
    bare.config["tie_word_embeddings"] = json!(true);
    only(
        &bare.refused(),
        "config.json",
        "tie_word_embeddings",
        "of its own",
    );

    for bytes in [b"".to_vec(), vec![0; 7], b"{}".to_vec()] {
        let mut broken = folder(&config(), &tensors());
        broken.files.insert(WEIGHTS, bytes);
        let found = broken.refused();
        assert!(found.len() == 1 && found[0].file == WEIGHTS, "{found:?}");
    }
    let mut broken = folder(&config(), &tensors());
    broken.files.insert(CONFIG, b"{".to_vec());
    only(&broken.refused(), CONFIG, "", "not valid JSON");
}

#[test]
fn a_weight_of_a_joint_head_that_is_no_number_is_named_with_its_place() {
    let mut folder = folder(&config(), &tensors());
    let name = "residual_scorer.3.weight";
    let at = {
        // The tensors lie in the order of their names.
        let before = tensors();
        let before = before.iter().take_while(|(other, _)| other.as_str() < name);
        let size = |tensor: &Tensor| tensor.shape.iter().product::<usize>() * tensor_bytes(tensor);
        before.map(|(_, tensor)| size(tensor)).sum::<usize>()
    };
    let size = tensor_bytes(&tensors()[name]);
    let file = folder.files.get_mut(WEIGHTS).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let nan = &f32::NAN.to_le_bytes()[4 - size..];
    let at = 8 + header + at + 4 * size;
    file[at..at + size].copy_from_slice(nan);
    // Opening does not look at values; `check_values` and `inspect` do.
    let dir = folder.write();
    let inspection = deltagate_checkpoint::inspect(dir.path());
    only(&inspection.findings, WEIGHTS, name, "NaN at element 4");
    let opened = Checkpoint::open(dir.path()).unwrap();
    only(
        opened.check_values().unwrap_err().findings(),
        WEIGHTS,
        name,
        "NaN at element 4",
    );
}

fn tensor_bytes(tensor: &Tensor) -> usize {
    if tensor.dtype == "F32" { 4 } else { 2 }
}
