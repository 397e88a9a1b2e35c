//! Weights that are no numbers, and tokenizers of other models.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{fs, path::Path};

use deltagate_checkpoint::{Checkpoint, inspect};
use serde_json::{Value, json};
use support::{Folder, only, tokenizer};

/// Overwrites an element of a tensor in a written file.
fn poke(file: &Path, tensor: &str, element: usize, bytes: &[u8]) {
    let mut content = fs::read(file).unwrap();
    let header = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&content[8..8 + header]).unwrap();
    let start = entries[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let at = 8 + header + start + element * bytes.len();
    content[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(file, content).unwrap();
}

#[test]
fn weights_that_are_no_numbers_are_named_with_their_place() {
    let dir = Folder::startlux("model.").write();
    let file = dir.path().join("model.safetensors");
    poke(
        &file,
        "model.layers.1.linear_attn.conv1d.weight",
        17,
        &[0x80, 0x7F],
    );
    poke(
        &file,
        "model.layers.1.linear_attn.conv1d.weight",
        18,
        &[0xC0, 0x7F],
    );
    poke(
        &file,
        "model.layers.0.linear_attn.A_log",
        1,
        &f32::NAN.to_le_bytes(),
    );
    poke(&file, "lm_head.weight", 511, &[0x80, 0xFF]);
    // Opening reads no weight.
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let found: Vec<String> = inspect(dir.path())
        .findings
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "model.safetensors: `lm_head.weight` holds -inf at element 511",
            "model.safetensors: `model.layers.0.linear_attn.A_log` holds NaN at element 1",
            "model.safetensors: `model.layers.1.linear_attn.conv1d.weight` holds inf at element 17",
        ]
    );
    let error = checkpoint.check_values().unwrap_err();
    let same: Vec<String> = error.findings().iter().map(ToString::to_string).collect();
    assert_eq!(same, found);
    assert!(!inspect(dir.path()).would_load);
}

#[test]
fn tensors_that_are_not_read_may_hold_anything() {
    let mut folder = Folder::startlux("model.");
    let norm = folder.tensors["model.norm.weight"].clone();
    folder.tensors.insert("mtp.norm.weight".to_owned(), norm);
    let dir = folder.write();
    let file = dir.path().join("model.safetensors");
    poke(&file, "mtp.norm.weight", 0, &[0xC0, 0x7F]);
    assert!(inspect(dir.path()).would_load);
    poke(&file, "model.norm.weight", 0, &[0xC0, 0x7F]);
    only(
        &inspect(dir.path()).findings,
        "model.safetensors",
        "model.norm.weight",
        "holds NaN at element 0",
    );
}

fn refused(tokenizer: &Value) -> Vec<deltagate_checkpoint::Finding> {
    let mut folder = Folder::startlux("");
    folder
        .files
        .insert("tokenizer.json", serde_json::to_vec(tokenizer).unwrap());
    folder.refused()
}

#[test]
fn tokenizers_of_another_vocabulary_are_refused() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut tokenizer = tokenizer();
        change(&mut tokenizer);
        refused(&tokenizer)
    };
    let file = "tokenizer.json";
    let found = with(&|t| t["added_tokens"][0]["id"] = json!(64));
    only(
        &found,
        file,
        "added_tokens",
        "token id 64, which is not below `vocab_size` 64",
    );
    let found = with(&|t| t["model"]["vocab"]["hello"] = json!(1_000_000));
    only(&found, file, "model.vocab", "token id 1000000");
    let found = with(&|t| t["model"]["vocab"]["Z"] = json!(3));
    only(&found, file, "model.vocab", "has id 3 for `Z`, and not 57");
    let found = with(&|t| {
        t["model"]["vocab"]
            .as_object_mut()
            .unwrap()
            .shift_remove("C")
            .unwrap();
    });
    only(&found, file, "model.vocab", "no token `C`, which should be 34");
    let found = with(&|t| t["model"]["vocab"] = json!({}));
    only(&found, file, "model.vocab", "has no token");
    // A list, as unigram models have it: its places are the ids.
    let found = with(&|t| t["model"]["vocab"] = json!([["<unk>", 0.0], ["A", -1.5]]));
    only(&found, file, "model.vocab", "has id 1 for `A`, and not 32");
    for broken in [
        json!([]),
        json!({}),
        json!({"model": {}}),
        json!({"model": {"vocab": {"A": "x"}}}),
    ] {
        only(&refused(&broken), file, "", "not valid JSON");
    }
}

#[test]
fn tokens_that_the_config_names_must_be_there() {
    let mut folder = Folder::startlux("");
    for (value, missing) in [
        (json!(58), None),
        (json!([59, 58]), None),
        (json!(5), Some(5)),
        (json!([58, 6]), Some(6)),
    ] {
        folder.config["eos_token_id"] = value;
        match missing {
            None => assert!(folder.open().is_ok()),
            Some(id) => only(
                &folder.refused(),
                "tokenizer.json",
                "added_tokens",
                &format!("no token of id {id}, which is `eos_token_id` of config.json"),
            ),
        }
    }
    // A backbone alone has no prompts.
    folder.decision = Value::Null;
    folder.files.insert("tokenizer.json", b"{}".to_vec());
    assert!(folder.open().is_ok());
}
