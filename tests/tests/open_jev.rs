//! The Open-Jev family, from its prompts to its answers: a folder with an export beside the embedded backbone, served by a
//! real mesh, against the same arithmetic done here on the rows that `forward` prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
const BIAS: f64 = -0.25;
const TEMPERATURE: f64 = 2.534_369_029_847_298_3;

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_candidates_of_the_specification_byte_for_byte() {
    let dir = process::folder().unwrap();
    let request = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    let explained = run(&[
        "explain",
        "--family",
        "open_jev",
        "--tokenizer",
        &tokenizer,
        "--request",
        &request,
        "--json",
    ])
    .await;
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let document = explained.json().unwrap();
    let sequences = document["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 7, "three options, three levels, one noul");
    // Those that the family's documentation prints: index, option, tokens, start of the prompt's SHA-256.
    for (index, option, tokens, hash) in [
        (0, json!("shipping"), 82, "56a332147351e8d5"),
        (1, json!("billing"), 84, "4386d580281db616"),
        (3, json!("0"), 77, "365f4a7a590bdbbc"),
        (6, Value::Null, 74, "ceb98779e7d9af61"),
    ] {
        let sequence = &sequences[index];
        let digest = hex::encode(Sha256::digest(sequence["text"].as_str().unwrap()));
        let count = sequence["ids"].as_array().unwrap().len();
        assert_eq!((count, &digest[..16]), (tokens, hash), "{sequence}");
        assert_eq!(sequence["read"], json!([tokens - 1]));
        assert_eq!(sequence["option"], option);
    }
}

fn weight(index: usize) -> f64 {
    (0.37 * index as f64 + 0.2).sin()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_an_export_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let model = cluster.path("jev");
    model_folder::copy(&root().join("deploy/models/deltagate-mini"), &model).unwrap();
    std::fs::remove_file(model.join("decision_config.json")).unwrap();
    let export = json!({
        "format": "open-jev-text-merged/1",
        "model_id": "test/jev",
        "base_revision": "1",
        "checkpoint_revision": "2",
        "temperature": TEMPERATURE,
        "max_length": 512,
        "chat_prefix": "<|im_start|>user\n",
        "chat_suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "head_weight": (0..HIDDEN).map(weight).collect::<Vec<_>>(),
        "head_bias": BIAS,
    });
    std::fs::write(model.join("open_jev_export.json"), export.to_string()).unwrap();
    let model = model.display().to_string();
    let check = run(&["check", &model, "--json"]).await;
    assert_eq!(check.code, Some(0), "{check:?}");
    let card = check.json().unwrap()["card"].clone();
    assert_eq!(
        (&card["family"], &card["max_tokens"]),
        (&json!("open_jev"), &json!(512))
    );

    // What the answer must be, from the rows that the engine gives for the explained sequences.
    let request = process::write(&cluster.path(""), "request.json", &ticket_body().to_string()).unwrap();
    let explained = run(&["explain", "--model", &model, "--request", &request, "--json"]).await;
    let explained = explained.json().unwrap();
    let mut logits = Vec::new();
    let mut tokens = 0;
    for (index, sequence) in explained["sequences"].as_array().unwrap().iter().enumerate() {
        let ids = &sequence["ids"];
        tokens += ids.as_array().unwrap().len();
        let file = process::write(&cluster.path(""), &format!("ids-{index}.json"), &ids.to_string()).unwrap();
        let forward = run(&["forward", "--model", &model, "--ids", &file, "--json"]).await;
        let row = forward.json().unwrap()["rows"][0]["values"].clone();
        let row = row.as_array().unwrap();
        assert_eq!(row.len(), HIDDEN);
        let products = row
            .iter()
            .enumerate()
            .map(|(i, h)| weight(i) * h.as_f64().unwrap());
        logits.push(products.sum::<f64>() + BIAS);
    }
    let softmax = |logits: &[f64]| -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|z| (z / TEMPERATURE).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| e / sum).collect()
    };
    let (team, severity) = (softmax(&logits[..3]), softmax(&logits[3..6]));
    let urgent = softmax(&[0.0, logits[6]])[1];

    let mut up = cluster.up(&["--cpu", "--in-process", "--model", &model]).unwrap();
    cluster.ready().await.unwrap();
    let answer = http::post(
        &format!("{}/v1/systemone", url(cluster.ports.http)),
        &ticket_body(),
    )
    .await
    .unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let near = |got: &Value, want: f64| {
        let got = got.as_f64().unwrap();
        assert!((got - want).abs() < 1e-5, "{got} is not {want}");
    };
    let answers = &answer.body["answers"];
    for (name, want) in ["shipping", "billing", "other"].iter().zip(&team) {
        near(&answers["team"]["probabilities"][name], *want);
    }
    near(&answers["severity"]["score"], severity[1] + 2.0 * severity[2]);
    near(&answers["urgent"]["noul"], urgent);
    assert_eq!(answer.body["usage"]["input_tokens"], json!(tokens));
    // The head tells prompts apart, or the comparison says nothing.
    assert!(team.iter().any(|p| (p - team[0]).abs() > 1e-3), "{team:?}");

    let mut long = ticket_body();
    long["state"] = json!("word ".repeat(600));
    let refused = http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), &long)
        .await
        .unwrap();
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(
        refused.body["error"].as_str().unwrap().contains("512"),
        "{}",
        refused.body
    );
    up.kill().await.unwrap();
}
