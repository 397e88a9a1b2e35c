//! Families whose folders are made here from the embedded backbone, from prompts to answers: each is served by a real mesh and compared
//! with the same arithmetic done on the logits that `forward` prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cua_s1;
mod decider_2b;
mod intern;

use std::path::Path;

use deltagate_tests::{
    cluster::Cluster,
    http, model_folder,
    ports::url,
    process::{self, Process, Run},
    tree::root,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

/// The embedded model's folder, without what makes it a StartLux model.
fn backbone(to: &Path) {
    model_folder::copy(&root().join("deploy/models/deltagate-mini"), to).unwrap();
    std::fs::remove_file(to.join("decision_config.json")).unwrap();
}

/// What `explain` gives; `of` are its arguments beside the request.
async fn explained(dir: &Path, of: &[&str], body: &Value) -> Vec<Value> {
    let request = process::write(dir, "request.json", &body.to_string()).unwrap();
    let run = run(&[&["explain", "--request", &request, "--json"], of].concat()).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    run.json().unwrap()["sequences"].as_array().unwrap().clone()
}

/// Logits of the whole vocabulary after these tokens.
async fn logits(dir: &Path, model: &str, ids: &[Value]) -> Vec<f64> {
    let file = process::write(dir, "ids.json", &Value::from(ids).to_string()).unwrap();
    let forward = run(&["forward", "--model", model, "--ids", &file, "--json"]).await;
    assert_eq!(forward.code, Some(0), "{forward:?}");
    let logits = forward.json().unwrap()["logits"].clone();
    serde_json::from_value(logits).unwrap()
}

fn ids(sequence: &Value) -> &[Value] {
    sequence["ids"].as_array().unwrap()
}

/// Number of tokens, and the start of the SHA-256 of the text.
fn mark(sequence: &Value) -> (usize, String) {
    let digest = hex::encode(Sha256::digest(sequence["text"].as_str().unwrap()));
    (ids(sequence).len(), digest[..16].to_owned())
}

/// Token ids of texts that are one token each.
fn tokens(tokenizer: &Path, texts: &[&str]) -> Vec<usize> {
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(tokenizer).unwrap()).unwrap();
    let vocabulary = &tokenizer["model"]["vocab"];
    texts
        .iter()
        .map(|text| vocabulary[text].as_u64().unwrap() as usize)
        .collect()
}

fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let exp: Vec<f64> = logits.iter().map(|z| ((z - top) / temperature).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

#[track_caller]
fn near(got: &Value, want: f64) {
    let got = got.as_f64().unwrap_or_else(|| panic!("{got} is no number"));
    assert!((got - want).abs() < 2e-5, "{got} is not {want}");
}

/// Starts a mesh with this model.
async fn serve(cluster: &Cluster, model: &str) -> Process {
    let up = cluster.up(&["--cpu", "--in-process", "--model", model]).unwrap();
    cluster.ready().await.unwrap();
    up
}

async fn ask(cluster: &Cluster, body: &Value) -> http::Answer {
    http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), body)
        .await
        .unwrap()
}

async fn checked(model: &str) -> Value {
    let check = run(&["check", model, "--json"]).await;
    assert_eq!(check.code, Some(0), "{check:?}");
    check.json().unwrap()["card"].clone()
}
