//! The Clef family, from its prompt to its answers: a folder with a joint head, served by a real mesh, against the f64 model of
//! the head on the rows that `forward` prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;

use deltagate_checkpoint::JointHeadConfig;
use deltagate_kernels_reference::{JointHeadShape, JointQuestion, joint_head};
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
const VOCABULARY: usize = 4096;
const SIZES: JointHeadConfig = JointHeadConfig {
    hidden_size: 128,
    width: 48,
    routing_layers: 2,
    layers: 2,
    heads: 3,
    feedforward: 80,
};

async fn run(arguments: &[&str]) -> Run {
    let run = process::run(BINARY, arguments, &[]).await.unwrap();
    assert_eq!(run.code, Some(0), "{run:?}");
    run
}

fn numbers(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

fn span(value: &Value) -> Range<usize> {
    let ends = numbers(value);
    ends[0] as usize..ends[1] as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_spans_of_the_specification() {
    let dir = process::folder().unwrap();
    let request = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    let explained = run(&[
        "explain",
        "--family",
        "clef",
        "--tokenizer",
        &tokenizer,
        "--request",
        &request,
        "--json",
    ])
    .await;
    let document = explained.json().unwrap();
    let [sequence] = &document["sequences"].as_array().unwrap()[..] else {
        panic!("{document}")
    };
    assert_eq!(sequence["ids"].as_array().unwrap().len(), 340);
    let digest = hex::encode(Sha256::digest(sequence["text"].as_str().unwrap()));
    assert_eq!(&digest[..16], "b38427e5db941050");
    let option = |name: &str, start: usize, end: usize| json!({"option": name, "span": [start, end]});
    let fields = json!([
        {"question": "team", "type": 1, "span": [89, 96], "options":
            [option("billing", 107, 121), option("other", 127, 133), option("shipping", 139, 151)]},
        {"question": "severity", "type": 2, "span": [172, 178], "options":
            [option("0", 189, 200), option("1", 206, 218), option("2", 224, 236)]},
        {"question": "urgent", "type": 0, "span": [258, 265], "options":
            [option("true", 276, 294), option("false", 300, 318)]},
    ]);
    assert_eq!(sequence["spans"]["fields"], fields);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_joint_head_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let model = cluster.path("clef");
    model_folder::copy(&root().join("deploy/models/deltagate-mini"), &model).unwrap();
    std::fs::remove_file(model.join("decision_config.json")).unwrap();
    let embedding: Vec<f32> = (0..VOCABULARY * SIZES.hidden_size)
        .map(|i| (0.37 * (i % 7919) as f64 + 0.11 * (i / 7919) as f64).sin() as f32)
        .collect();
    model_folder::untie(&model, VOCABULARY, SIZES.hidden_size, embedding.clone()).unwrap();
    let tensors = model_folder::write_joint_head(&model, &SIZES).unwrap();
    let model = model.display().to_string();
    let card = run(&["check", &model, "--json"]).await.json().unwrap()["card"].clone();
    assert_eq!(
        (&card["family"], &card["max_tokens"]),
        (&json!("clef"), &json!(4096))
    );

    // What the answer must be, from the rows that the engine gives for the explained sequence.
    let request = process::write(&cluster.path(""), "request.json", &ticket_body().to_string()).unwrap();
    let explained = run(&["explain", "--model", &model, "--request", &request, "--json"]).await;
    let sequence = explained.json().unwrap()["sequences"][0].clone();
    let ids: Vec<u32> = serde_json::from_value(sequence["ids"].clone()).unwrap();
    let file = process::write(&cluster.path(""), "ids.json", &sequence["ids"].to_string()).unwrap();
    let forward = run(&[
        "forward", "--model", &model, "--ids", &file, "--rows", "all", "--json",
    ])
    .await;
    let rows: Vec<f64> = forward.json().unwrap()["rows"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| numbers(&row["values"]))
        .collect();
    assert_eq!(rows.len(), ids.len() * SIZES.hidden_size);
    let questions: Vec<JointQuestion> = sequence["spans"]["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| {
            let options = field["options"].as_array().unwrap().iter();
            JointQuestion {
                kind: usize::try_from(field["type"].as_u64().unwrap()).unwrap(),
                span: span(&field["span"]),
                options: options.map(|option| span(&option["span"])).collect(),
            }
        })
        .collect();
    let shape = JointHeadShape {
        hidden: SIZES.hidden_size,
        width: SIZES.width,
        routing_layers: SIZES.routing_layers,
        layers: SIZES.layers,
        heads: SIZES.heads,
        feedforward: SIZES.feedforward,
    };
    let embedding: Vec<f64> = embedding.into_iter().map(f64::from).collect();
    let logits = joint_head(&shape, &tensors, &rows, &embedding, &ids, &questions).logits;
    let softmax = |logits: &[f64]| -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|z| z.exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| e / sum).collect()
    };
    let (team, severity, urgent) = (
        softmax(&logits[..3]),
        softmax(&logits[3..6]),
        softmax(&logits[6..]),
    );

    let mut up = cluster.up(&["--cpu", "--in-process", "--model", &model]).unwrap();
    cluster.ready().await.unwrap();
    let service = format!("{}/v1/systemone", url(cluster.ports.http));
    let answer = http::post(&service, &ticket_body()).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let near = |got: &Value, want: f64| {
        let got = got.as_f64().unwrap();
        assert!((got - want).abs() < 1e-4, "{got} is not {want}");
    };
    let answers = &answer.body["answers"];
    // In the prompt the options are sorted, in the answer they are as they were asked.
    for (name, want) in ["billing", "other", "shipping"].iter().zip(&team) {
        near(&answers["team"]["probabilities"][name], *want);
    }
    let names: Vec<&String> = answers["team"]["probabilities"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(names, ["shipping", "billing", "other"]);
    near(
        &answers["team"]["x_confidence"],
        team.iter().copied().fold(0.0, f64::max),
    );
    near(&answers["severity"]["score"], severity[1] + 2.0 * severity[2]);
    near(&answers["urgent"]["noul"], urgent[0]);
    assert_eq!(answer.body["usage"]["input_tokens"], json!(ids.len()));
    // The head tells options apart, or the comparison says nothing.
    for p in [&team, &severity, &urgent] {
        assert!(p.iter().any(|other| (other - p[0]).abs() > 1e-2), "{p:?}");
    }

    let mut long = ticket_body();
    long["state"] = json!("word ".repeat(5000));
    let refused = http::post(&service, &long).await.unwrap();
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(
        refused.body["error"].as_str().unwrap().contains("4096"),
        "{}",
        refused.body
    );
    up.kill().await.unwrap();
}
