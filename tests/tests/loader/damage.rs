//! Every way in which a model folder is broken here, and what must be said about it.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::folder::{Folder, INDEX, shard_name};

/// A broken folder, and the file and the key or tensor that must be named.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) file: &'static str,
    /// Empty if the whole file is meant.
    pub(crate) key_or_tensor: &'static str,
    /// A part of the problem.
    pub(crate) problem: &'static str,
    pub(crate) write: fn() -> TempDir,
}

const MODEL: &str = "model.safetensors";
const NORM: &str = "norm.weight";
const LAST: &str = "model-00002-of-00002.safetensors";

fn sharded() -> TempDir {
    assert_eq!(shard_name(1, 2), LAST);
    let mut folder = Folder::startlux();
    folder.shards = 2;
    folder.write()
}

/// A good folder whose weights file is changed bytewise.
fn bytes(change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let dir = Folder::startlux().write();
    let path = dir.path().join(MODEL);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    dir
}

fn folder(change: impl FnOnce(&mut Folder)) -> TempDir {
    let mut folder = Folder::startlux();
    change(&mut folder);
    folder.write()
}

fn files(dir: TempDir, change: impl FnOnce(&Path)) -> TempDir {
    change(dir.path());
    dir
}

fn index(change: impl FnOnce(&mut Value)) -> TempDir {
    files(sharded(), |dir| {
        let mut index: Value = serde_json::from_slice(&fs::read(dir.join(INDEX)).unwrap()).unwrap();
        change(&mut index);
        fs::write(dir.join(INDEX), index.to_string()).unwrap();
    })
}

fn json_of(folder: &mut Folder, name: &str, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&folder.files[name]).unwrap();
    change(&mut value);
    folder.json(name, &value);
}

/// Something else in the place of a file.
fn instead(name: &'static str, put: impl FnOnce(&Path)) -> TempDir {
    files(Folder::startlux().write(), |dir| {
        let path = dir.join(name);
        fs::remove_file(&path).unwrap();
        put(&path);
    })
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn loops(path: &Path) {
    symlink(path.file_name().unwrap(), path).unwrap();
}

fn dangles(path: &Path) {
    symlink("not-here", path).unwrap();
}

fn directory(path: &Path) {
    fs::create_dir(path).unwrap();
}

fn set(folder: &mut Folder, tensor: &str, at: usize, value: f32) {
    folder.tensors.get_mut(tensor).unwrap().values[at] = value;
}

const fn case(
    what: &'static str,
    (file, key_or_tensor): (&'static str, &'static str),
    problem: &'static str,
    write: fn() -> TempDir,
) -> Case {
    Case {
        what,
        file,
        key_or_tensor,
        problem,
        write,
    }
}

/// Weights files.
pub(crate) const WEIGHTS: &[Case] = &[
    case("truncated data", (MODEL, NORM), "ends at byte", || {
        bytes(|b| b.truncate(b.len() - 3))
    }),
    case("truncated header", (MODEL, ""), "does not fit", || {
        bytes(|b| b.truncate(100))
    }),
    case("an empty file", (MODEL, ""), "does not fit", || bytes(Vec::clear)),
    case(
        "bytes over at the end",
        (MODEL, ""),
        "belong to no tensor",
        || bytes(|b| b.extend([0; 5])),
    ),
    case(
        "a header length beyond the file",
        (MODEL, ""),
        "does not fit",
        || bytes(|b| b[..8].copy_from_slice(&u64::MAX.to_le_bytes())),
    ),
    case(
        "a header length that is too short",
        (MODEL, ""),
        "header is not valid",
        || bytes(|b| b[0] = b[0].wrapping_sub(1)),
    ),
    case(
        "a header that is no JSON",
        (MODEL, ""),
        "header is not valid",
        || bytes(|b| b[8] = b'?'),
    ),
    case("a missing weights file", (MODEL, ""), "is missing", || {
        instead(MODEL, |_| {})
    }),
    case("a missing shard", (LAST, ""), "is missing", || {
        files(sharded(), |dir| fs::remove_file(dir.join(LAST)).unwrap())
    }),
    case("a truncated shard", (LAST, ""), "does not fit", || {
        files(sharded(), |dir| {
            fs::write(dir.join(LAST), [9, 0, 0, 0, 0, 0, 0, 0]).unwrap()
        })
    }),
    case(
        "an index that points nowhere",
        ("gone.safetensors", ""),
        "is missing",
        || index(|i| i["weight_map"]["layers.0.mlp.up_proj.weight"] = json!("gone.safetensors")),
    ),
    case(
        "an index that points outside",
        (INDEX, "weight_map.norm.weight"),
        "outside of the folder",
        || index(|i| i["weight_map"]["norm.weight"] = json!("../model.safetensors")),
    ),
    case(
        "an index that lists what is not there",
        (LAST, "ghost.weight"),
        "is missing",
        || index(|i| i["weight_map"]["ghost.weight"] = json!(LAST)),
    ),
    case("an index that is no JSON", (INDEX, ""), "not valid JSON", || {
        files(sharded(), |dir| fs::write(dir.join(INDEX), "{").unwrap())
    }),
    case(
        "a tensor of a wrong shape",
        (MODEL, "layers.1.mlp.up_proj.weight"),
        "has shape [64, 96], not [96, 64]",
        || {
            folder(|f| {
                f.tensors
                    .get_mut("layers.1.mlp.up_proj.weight")
                    .unwrap()
                    .shape
                    .reverse()
            })
        },
    ),
    case(
        "a tensor of a wrong dtype",
        (MODEL, NORM),
        "has dtype F16",
        || folder(|f| f.tensors.get_mut(NORM).unwrap().dtype = "F16"),
    ),
    case(
        "a tensor too few",
        (MODEL, "layers.2.linear_attn.A_log"),
        "is missing",
        || folder(|f| drop(f.tensors.remove("layers.2.linear_attn.A_log"))),
    ),
    case(
        "NaN in a matrix",
        (MODEL, "layers.3.self_attn.q_proj.weight"),
        "holds NaN at element 1000",
        || folder(|f| set(f, "layers.3.self_attn.q_proj.weight", 1000, f32::NAN)),
    ),
    case(
        "an infinity in a vector",
        (MODEL, NORM),
        "holds inf at element 63",
        || folder(|f| set(f, NORM, 63, f32::INFINITY)),
    ),
    case(
        "NaN in convolution taps in a shard",
        (LAST, "layers.0.linear_attn.conv1d.weight"),
        "holds NaN at element 5",
        || {
            let mut folder = Folder::startlux();
            folder.shards = 2;
            let name = "layers.0.linear_attn.conv1d.weight";
            assert_eq!(folder.tensors.keys().position(|key| key == name).unwrap() % 2, 1);
            set(&mut folder, name, 5, f32::NAN);
            folder.write()
        },
    ),
    case(
        "an infinity in the embedding",
        (MODEL, "embed_tokens.weight"),
        "holds -inf at element 0",
        || folder(|f| set(f, "embed_tokens.weight", 0, f32::NEG_INFINITY)),
    ),
];

/// Everything else in the folder.
pub(crate) const FILES: &[Case] = &[
    case(
        "a tokenizer with ids beyond the vocabulary",
        ("tokenizer.json", "added_tokens"),
        "token id 248046, which is not below `vocab_size` 97",
        || {
            folder(|f| {
                json_of(f, "tokenizer.json", |t| {
                    t["added_tokens"][0] = json!({"id": 248_046, "content": "<|im_end|>"})
                })
            })
        },
    ),
    case(
        "a tokenizer with other letters",
        ("tokenizer.json", "model.vocab"),
        "has id 7 for `B`, and not 33",
        || folder(|f| json_of(f, "tokenizer.json", |t| t["model"]["vocab"]["B"] = json!(7))),
    ),
    case(
        "a smaller tokenizer with the same letters",
        ("tokenizer.json", "added_tokens"),
        "no token of id 90, which is `eos_token_id`",
        || folder(|f| json_of(f, "tokenizer.json", |t| t["added_tokens"] = json!([]))),
    ),
    case(
        "a tokenizer that is none",
        ("tokenizer.json", ""),
        "not valid JSON",
        || folder(|f| f.json("tokenizer.json", &json!({"model": {"type": "BPE"}}))),
    ),
    case(
        "a decision_config.json of a newer format",
        ("decision_config.json", "format_version"),
        "does not know",
        || folder(|f| json_of(f, "decision_config.json", |d| d["format_version"] = json!(2))),
    ),
    case(
        "a decision_config.json of a format without today's keys",
        ("decision_config.json", "letter_token_ids"),
        "is missing",
        || {
            folder(|f| {
                f.json(
                    "decision_config.json",
                    &json!({"format_version": 2, "letters": {}}),
                )
            })
        },
    ),
    case(
        "a config.json with an unknown key",
        ("config.json", "num_experts"),
        "does not know",
        || folder(|f| f.config["num_experts"] = json!(8)),
    ),
    case(
        "a config.json that contradicts itself",
        ("config.json", "full_attention_interval"),
        "contradicts `layer_types`",
        || folder(|f| f.config["full_attention_interval"] = json!(2)),
    ),
    case("a link to itself", ("config.json", ""), "cannot be read", || {
        instead("config.json", loops)
    }),
    case(
        "links in a circle to the weights",
        (MODEL, ""),
        "cannot be read",
        || {
            instead(MODEL, |path| {
                symlink("round.safetensors", path).unwrap();
                symlink(MODEL, path.with_file_name("round.safetensors")).unwrap();
            })
        },
    ),
    case(
        "a dangling link to the weights",
        (MODEL, ""),
        "leads nowhere",
        || instead(MODEL, dangles),
    ),
    case(
        "a dangling link to the tokenizer",
        ("tokenizer.json", ""),
        "leads nowhere",
        || instead("tokenizer.json", dangles),
    ),
    case(
        "a directory in place of the weights",
        (MODEL, ""),
        "not a regular file",
        || instead(MODEL, directory),
    ),
    case(
        "a directory in place of the family's file",
        ("decision_config.json", ""),
        "not a regular file",
        || instead("decision_config.json", directory),
    ),
    case(
        "a pipe in place of the weights",
        (MODEL, ""),
        "not a regular file",
        || instead(MODEL, pipe),
    ),
    case(
        "a pipe in place of the config",
        ("config.json", ""),
        "not a regular file",
        || instead("config.json", pipe),
    ),
    case("no config", ("config.json", ""), "is missing", || {
        instead("config.json", |_| {})
    }),
];
