//! Families with a decision head of their own, from folder to answer: served by a real mesh, against the same arithmetic
//! done here on the rows that `forward` prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use deltagate_gateway::HfTokenizer;
use deltagate_tests::{
    cluster::Cluster,
    http, model_folder,
    ports::url,
    process::{self, Run},
    requests::ticket_body,
    tree::{qwen35_tokenizer, root},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");
const HIDDEN: usize = 128;

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_pplx_prompts_of_the_specification() {
    let dir = process::folder().unwrap();
    let request = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    for family in ["pplx_v1", "pplx_v1_1"] {
        let arguments = [
            "explain",
            "--family",
            family,
            "--tokenizer",
            &tokenizer,
            "--request",
            &request,
            "--json",
        ];
        let explained = run(&arguments).await;
        assert_eq!(explained.code, Some(0), "{explained:?}");
        let document = explained.json().unwrap();
        let printed = [
            (130, "99253d8ce052045d"),
            (121, "dfbdaaa5b4bde677"),
            (120, "4dbdaaaee0d8681d"),
        ];
        for (sequence, (tokens, hash)) in document["sequences"].as_array().unwrap().iter().zip(printed) {
            let digest = hex::encode(Sha256::digest(sequence["text"].as_str().unwrap()));
            let count = sequence["ids"].as_array().unwrap().len();
            assert_eq!((count, &digest[..16]), (tokens, hash), "{sequence}");
            assert_eq!(sequence["read"], json!([tokens - 1]));
        }
    }
}

/// The embedded backbone without its family.
fn backbone(dir: &Path) {
    model_folder::copy(&root().join("deploy/models/deltagate-mini"), dir).unwrap();
    std::fs::remove_file(dir.join("decision_config.json")).unwrap();
}

fn weight(row: usize, column: usize) -> f32 {
    (1.3 * row as f64 + 0.37 * column as f64 + 0.2).sin() as f32
}

fn head(rows: usize) -> Vec<f32> {
    (0..rows * HIDDEN)
        .map(|i| weight(i / HIDDEN, i % HIDDEN))
        .collect()
}

/// 255 words that are one token each of the embedded tokenizer, and those tokens.
fn codes(dir: &Path) -> (Vec<String>, Vec<u32>) {
    let bytes = std::fs::read(dir.join("tokenizer.json")).unwrap();
    let file: Value = serde_json::from_slice(&bytes).unwrap();
    let tokenizer = HfTokenizer::from_bytes(&bytes).unwrap();
    let words = file["model"]["vocab"].as_object().unwrap().keys();
    let words = words.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic()));
    let one = |word: &String| match deltagate_decider::Tokenizer::encode(&tokenizer, word).unwrap()[..] {
        [id] => Some((word.clone(), id)),
        _ => None,
    };
    let codes: (Vec<_>, Vec<_>) = words.filter_map(one).take(255).unzip();
    assert_eq!(codes.0.len(), 255);
    codes
}

/// Logits of every explained sequence: the head on the row that `forward` gives.
async fn logits(
    dir: &Path,
    request: &str,
    noncausal: bool,
    rows: impl Fn(usize) -> Vec<usize>,
) -> Vec<Vec<f64>> {
    let model = dir.display().to_string();
    let explained = run(&["explain", "--model", &model, "--request", request, "--json"]).await;
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let explained = explained.json().unwrap();
    let mut logits = Vec::new();
    for (index, sequence) in explained["sequences"].as_array().unwrap().iter().enumerate() {
        let ids = process::write(dir.parent().unwrap(), "ids.json", &sequence["ids"].to_string()).unwrap();
        let mut arguments = vec!["forward", "--model", &model, "--ids", &ids, "--json"];
        if noncausal {
            arguments.push("--noncausal");
        }
        let row = run(&arguments).await.json().unwrap()["rows"][0]["values"].clone();
        let row: Vec<f64> = serde_json::from_value(row).unwrap();
        assert_eq!(row.len(), HIDDEN);
        let product = |at: usize| {
            row.iter()
                .enumerate()
                .map(|(i, h)| h * f64::from(weight(at, i)))
                .sum()
        };
        logits.push(rows(index).into_iter().map(product).collect());
    }
    logits
}

fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let exp: Vec<f64> = logits.iter().map(|z| (z / temperature).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

fn near(got: &Value, want: f64) {
    let got = got.as_f64().unwrap();
    assert!((got - want).abs() < 1e-5, "{got} is not {want}");
}

/// Answers of a folder, served.
async fn served(cluster: &Cluster, dir: &Path, body: &Value) -> http::Answer {
    let model = dir.display().to_string();
    let mut up = cluster.up(&["--cpu", "--in-process", "--model", &model]).unwrap();
    cluster.ready().await.unwrap();
    let answer = http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), body)
        .await
        .unwrap();
    up.kill().await.unwrap();
    answer
}

async fn a_pplx_folder(mode: &str, id: &str) -> Vec<f64> {
    let cluster = Cluster::new(BINARY).unwrap();
    let dir = cluster.path("pplx");
    backbone(&dir);
    let (codes, token_ids) = codes(&dir);
    let decision = json!({
        "format_version": 1, "codes": codes, "token_ids": token_ids, "temperature": 2.2076, "pooling": "last",
        "attention_mode": mode,
    });
    std::fs::write(dir.join("decision_config.json"), decision.to_string()).unwrap();
    model_folder::write_safetensors(
        &dir.join("readout.safetensors"),
        &[("weight".to_owned(), vec![255, HIDDEN], head(255))],
    )
    .unwrap();
    let check = run(&["check", &dir.display().to_string(), "--json"]).await;
    assert_eq!(check.code, Some(0), "{check:?}");
    assert_eq!(check.json().unwrap()["card"]["family"], json!(id));

    let request = process::write(&cluster.path(""), "request.json", &ticket_body().to_string()).unwrap();
    let widths = [3, 3, 2];
    let noncausal = mode != "causal";
    let logits = logits(&dir, &request, noncausal, |question| {
        (0..widths[question]).collect()
    })
    .await;
    let p: Vec<Vec<f64>> = logits.iter().map(|z| softmax(z, 2.2076)).collect();
    let answer = served(&cluster, &dir, &ticket_body()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answers = &answer.body["answers"];
    for (name, want) in ["shipping", "billing", "other"].iter().zip(&p[0]) {
        near(&answers["team"]["probabilities"][name], *want);
    }
    near(&answers["severity"]["score"], p[1][1] + 2.0 * p[1][2]);
    near(&answers["urgent"]["noul"], p[2][1]);
    // The head tells options apart, or the comparison says nothing.
    assert!(p[0].iter().any(|x| (x - p[0][0]).abs() > 1e-3), "{p:?}");
    p.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn pplx_folders_of_both_versions_are_served() {
    let causal = a_pplx_folder("causal", "pplx_v1").await;
    let noncausal = a_pplx_folder("noncausal_full_attention", "pplx_v1_1").await;
    // The only difference is what the full-attention layers see.
    assert!(
        causal.iter().zip(&noncausal).any(|(a, b)| (a - b).abs() > 1e-4),
        "{causal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_classification_head_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let dir = cluster.path("classifier");
    backbone(&dir);
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["architectures"] = json!(["Qwen3_5TextForSequenceClassification"]);
    config["id2label"] = json!({"0": "spam", "1": "ham", "2": "other one", "3": "none"});
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    model_folder::write_safetensors(
        &dir.join("head.safetensors"),
        &[("score.weight".to_owned(), vec![4, HIDDEN], head(4))],
    )
    .unwrap();
    model_folder::write_index(&dir).unwrap();

    let body = json!({
        "state": "Dear winner, claim your prize today.",
        "questions": {
            "all": {"type": "choice", "criteria": ["none", "spam", "other one", "ham"]},
            "two": {"type": "choice", "criteria": {"ham": null, "spam": null}},
        }
    });
    let request = process::write(&cluster.path(""), "request.json", &body.to_string()).unwrap();
    let rows = [vec![3, 0, 2, 1], vec![1, 0]];
    let logits = logits(&dir, &request, false, |question| rows[question].clone()).await;
    let answer = served(&cluster, &dir, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (question, names) in [
        ("all", &["none", "spam", "other one", "ham"][..]),
        ("two", &["ham", "spam"]),
    ] {
        let p = softmax(&logits[usize::from(question == "two")], 1.0);
        for (name, want) in names.iter().zip(&p) {
            near(&answer.body["answers"][question]["probabilities"][name], *want);
        }
        assert!((p[0] - p[1]).abs() > 1e-3, "{p:?}");
    }
}
