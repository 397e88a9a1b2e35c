//! Folders whose family has a decision head of its own: in a file beside the weights, or beside the backbone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use deltagate_checkpoint::{AttentionMode, Dtype};
use serde_json::{Value, json};
use support::{Folder, Tensor, only, safetensors, value};

const VOCABULARY: usize = 300;

fn matrix(dtype: &'static str, name: &str, shape: Vec<usize>) -> Vec<u8> {
    let tensor = Tensor {
        dtype,
        shape,
        seed: 7,
    };
    safetensors(BTreeMap::from([(name.to_owned(), tensor)]).iter())
}

/// Codes `c0`, `c1`, … with ids from 40 on.
fn decision() -> Value {
    json!({
        "format_version": 1, "codes": (0..255).map(|i| format!("c{i}")).collect::<Vec<_>>(),
        "token_ids": (40..295).collect::<Vec<u32>>(), "temperature": 1.75, "pooling": "last"
    })
}

fn pplx(decision: Value) -> Folder {
    let mut folder = Folder::startlux("language_model.");
    folder.config["vocab_size"] = json!(VOCABULARY);
    folder.tensors.remove("lm_head.weight").unwrap();
    let embedding = folder
        .tensors
        .get_mut("language_model.embed_tokens.weight")
        .unwrap();
    embedding.shape[0] = VOCABULARY;
    folder.decision = decision;
    let vocabulary: serde_json::Map<_, _> = (0..255).map(|i| (format!("c{i}"), json!(40 + i))).collect();
    let tokenizer = json!({"added_tokens": [], "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
    folder
        .files
        .insert("tokenizer.json", tokenizer.to_string().into_bytes());
    folder
        .files
        .insert("readout.safetensors", matrix("BF16", "weight", vec![255, 8]));
    folder
}

#[test]
fn a_pplx_folder_is_recognised_in_both_versions() {
    let checkpoint = pplx(decision()).open().unwrap();
    let card = checkpoint.card();
    assert_eq!(
        (card.family.as_deref(), card.attention),
        (Some("pplx_v1"), AttentionMode::Causal)
    );
    assert_eq!(card.family_config["temperature"], json!(1.75));
    assert_eq!(card.family_config["max_length"], json!(8192));
    // The backbone takes less than the family would.
    assert_eq!(card.max_tokens, 512);
    assert!(checkpoint.output_embedding().unwrap().is_none());
    let head = checkpoint.decision_head().unwrap().unwrap();
    assert_eq!((head.shape, head.dtype), (&[255, 8][..], Dtype::Bf16));
    let bf16 = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    assert_eq!(head.to_f32()[1234], bf16(value(7, 1234)));

    let mut newer = decision();
    newer["attention_mode"] = json!("noncausal_full_attention");
    newer["max_length"] = json!(256);
    newer["lora_alpha"] = json!(32);
    newer["base_model"] = json!("Qwen/Qwen3.8-27B");
    let mut folder = pplx(newer);
    folder
        .files
        .insert("readout.safetensors", matrix("F32", "weight", vec![255, 8]));
    let checkpoint = folder.open().unwrap();
    let other = checkpoint.card();
    assert_eq!(other.family.as_deref(), Some("pplx_v1_1"));
    assert_eq!(
        (other.attention, other.max_tokens),
        (AttentionMode::NoncausalFullAttention, 256)
    );

    // The matrix decides answers, and so belongs to the digest.
    let mut folder = pplx(decision());
    let seeded = Tensor {
        dtype: "BF16",
        shape: vec![255, 8],
        seed: 8,
    };
    let matrix = safetensors(BTreeMap::from([("weight".to_owned(), seeded)]).iter());
    folder.files.insert("readout.safetensors", matrix);
    assert_ne!(folder.open().unwrap().card().digest, card.digest);
}

#[test]
fn a_pplx_config_is_checked_key_by_key() {
    let file = "decision_config.json";
    let mut twice: Vec<u32> = (40..295).collect();
    twice[3] = 40;
    for (key, value, problem) in [
        ("format_version", json!(2), "is not 1"),
        ("format_version", json!("1"), "is not 1"),
        ("codes", json!(["A"]), "255 different strings"),
        ("codes", json!(vec!["A"; 255]), "255 different strings"),
        ("token_ids", json!(twice), "255 different token ids"),
        (
            "token_ids",
            json!((46..301).collect::<Vec<u32>>()),
            "`vocab_size`",
        ),
        ("temperature", json!(0), "above 0"),
        ("temperature", json!("1"), "above 0"),
        ("pooling", json!("mean"), "not `last`"),
        ("attention_mode", json!("bidirectional"), "is neither"),
        ("max_length", json!(0), "above 0"),
        ("prompt", json!("x"), "does not know"),
        ("threshold", json!(0.5), "does not know"),
    ] {
        let mut config = decision();
        config[key] = value;
        only(&pplx(config).refused(), file, key, problem);
    }
    for key in ["format_version", "codes", "token_ids", "temperature", "pooling"] {
        let mut config = decision();
        config.as_object_mut().unwrap().shift_remove(key).unwrap();
        only(&pplx(config).refused(), file, key, "is missing");
    }
    let mut folder = pplx(decision());
    folder.decision = Value::Null;
    only(&folder.refused(), file, "", "pplx needs it");
    // Another vocabulary is another model.
    let mut config = decision();
    config["token_ids"] = json!((41..296).collect::<Vec<u32>>());
    only(
        &pplx(config).refused(),
        "tokenizer.json",
        "model.vocab",
        "has id 40 for `c0`, and not 41",
    );
}

#[test]
fn a_readout_matrix_must_be_as_it_is_read() {
    let file = "readout.safetensors";
    let with = |bytes: Vec<u8>| {
        let mut folder = pplx(decision());
        folder.files.insert(file, bytes);
        folder.refused()
    };
    only(
        &with(matrix("BF16", "weight", vec![254, 8])),
        file,
        "weight",
        "shape [254, 8]",
    );
    only(
        &with(matrix("I64", "weight", vec![255, 8])),
        file,
        "weight",
        "I64",
    );
    let found = with(matrix("BF16", "readout", vec![255, 8]));
    assert_eq!(found.len(), 2);
    only(&found[..1], file, "weight", "is missing");
    only(&found[1..], file, "readout", "does not know");
    let mut cut = matrix("BF16", "weight", vec![255, 8]);
    cut.truncate(1000);
    let found = with(cut);
    assert!(found.len() == 1 && found[0].file == file, "{found:?}");
    let mut folder = pplx(decision());
    folder.files.remove(file);
    only(&folder.refused(), file, "", "pplx_v1 needs it");

    // A weight that is no number is found where the backbone's are.
    let mut bytes = matrix("F32", "weight", vec![255, 8]);
    let at = bytes.len() - 4 * 10;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    folder = pplx(decision());
    folder.files.insert(file, bytes);
    let found = deltagate_checkpoint::inspect(folder.write().path()).findings;
    only(&found, file, "weight", "NaN at element 2030");
}

fn classifier() -> Folder {
    let mut folder = Folder::startlux("model.");
    folder.decision = Value::Null;
    folder.tensors.remove("lm_head.weight").unwrap();
    let head = Tensor {
        dtype: "F32",
        shape: vec![3, 8],
        seed: 5,
    };
    folder.tensors.insert("score.weight".to_owned(), head);
    folder.config["architectures"] = json!(["Qwen3_5TextForSequenceClassification"]);
    folder.config["id2label"] = json!({"0": "spam", "1": "ham", "2": "other"});
    folder
}

#[test]
fn a_classifier_is_recognised_by_its_architecture() {
    let mut folder = classifier();
    folder.config["label2id"] = json!({"spam": 0, "ham": 1, "other": 2});
    folder.config["problem_type"] = json!("single_label_classification");
    let checkpoint = folder.open().unwrap();
    let card = checkpoint.card();
    assert_eq!(card.family.as_deref(), Some("sequence_classification"));
    assert_eq!(card.family_config, json!({"labels": ["spam", "ham", "other"]}));
    let head = checkpoint.decision_head().unwrap().unwrap();
    assert_eq!((head.shape, head.to_f32()[23]), (&[3, 8][..], value(5, 23)));
    assert_eq!(folder.write_sharded().path().read_dir().unwrap().count(), 5);
    assert!(deltagate_checkpoint::Checkpoint::open(folder.write_sharded().path()).is_ok());
}

#[test]
fn labels_and_head_of_a_classifier_must_agree() {
    type Change = fn(&mut Folder);
    let cases: [(Change, &str, &str, &str); 9] = [
        (
            |f| f.config["id2label"] = json!({"0": "a"}),
            "config.json",
            "id2label",
            "two or more",
        ),
        (
            |f| f.config["id2label"] = json!({"0": "a", "1": "a"}),
            "config.json",
            "id2label",
            "different",
        ),
        (
            |f| f.config["id2label"] = json!({"0": "a", "2": "b"}),
            "config.json",
            "id2label",
            "`1`",
        ),
        (
            |f| f.config["id2label"] = json!(["a", "b"]),
            "config.json",
            "id2label",
            "labels",
        ),
        (
            |f| f.config["label2id"] = json!({"spam": 1, "ham": 0, "other": 2}),
            "config.json",
            "label2id",
            "contradicts",
        ),
        (
            |f| f.config["problem_type"] = json!("multi_label_classification"),
            "config.json",
            "problem_type",
            "no other is implemented",
        ),
        (
            |f| f.config["id2label"] = json!({"0": "a", "1": "b"}),
            "model.safetensors",
            "score.weight",
            "shape [3, 8], not [2, 8]",
        ),
        (
            |f| drop(f.tensors.remove("score.weight")),
            "model.safetensors",
            "score.weight",
            "is missing",
        ),
        (
            |f| drop(f.files.remove("tokenizer.json")),
            "tokenizer.json",
            "",
            "sequence_classification needs it",
        ),
    ];
    for (change, file, key, problem) in cases {
        let mut folder = classifier();
        change(&mut folder);
        let found = folder.refused();
        // Without labels the head is of no known shape either.
        only(&found[..1], file, key, problem);
    }
    for label in ["", " ", "a\nb", &"x".repeat(201)] {
        let mut folder = classifier();
        folder.config["id2label"]["1"] = json!(label);
        only(&folder.refused(), "config.json", "id2label.1", "is blank");
    }
    let mut folder = classifier();
    folder
        .files
        .insert("readout.safetensors", matrix("BF16", "weight", vec![255, 8]));
    assert!(
        folder
            .refused()
            .iter()
            .any(|f| f.to_string().contains("several families"))
    );
}
