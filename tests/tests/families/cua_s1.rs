//! Cua-S1: a base, an adapter that is merged while it loads, and choices.

use deltagate_checkpoint::{ModelConfig, backbone_tensors};
use deltagate_tests::{cluster::Cluster, model_folder, requests::ticket_body, tree::qwen35_tokenizer};
use serde_json::{Value, json};

use super::*;

const RANK: usize = 3;
const TARGETS: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// The choices of the documented request.
fn choices() -> Value {
    let mut body = ticket_body();
    body["questions"]
        .as_object_mut()
        .unwrap()
        .retain(|name, _| name == "team");
    body["questions"]["next"] =
        json!({"type": "choice", "instructions": null, "criteria": {"open": ["a"], "close": null}});
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_cua_s1_prompt_of_the_specification_byte_for_byte() {
    let dir = process::folder().unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    let explained = explained(
        dir.path(),
        &["--family", "cua_s1", "--tokenizer", &tokenizer],
        &choices(),
    )
    .await;
    assert_eq!(mark(&explained[0]), (190, "72a3ef47a26d40b7".to_owned()));
    assert!(
        explained[0]["text"]
            .as_str()
            .unwrap()
            .ends_with("<|im_start|>assistant\n<think>\n")
    );
    let end: Vec<u64> = ids(&explained[0])
        .iter()
        .rev()
        .take(5)
        .rev()
        .map(|id| id.as_u64().unwrap())
        .collect();
    assert_eq!(end, [248_045, 74_455, 198, 248_068, 198]);
    assert_eq!(
        tokens(&qwen35_tokenizer().unwrap(), &["A", "B", "Z"]),
        [32, 33, 57]
    );
}

/// Writes an adapter of random-looking values into `text/`.
fn adapt(model: &Path) {
    let config = serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let mut tensors = Vec::new();
    for (seed, (name, shape)) in backbone_tensors(&config).into_iter().enumerate() {
        let Some(module) = name.strip_suffix(".weight") else {
            continue;
        };
        if !TARGETS
            .iter()
            .any(|target| module.ends_with(&format!(".{target}")))
        {
            continue;
        }
        for (side, shape) in [("A", vec![RANK, shape[1]]), ("B", vec![shape[0], RANK])] {
            let value = |i: usize| (0.2 * (1.3 * seed as f64 + 0.71 * i as f64).sin()) as f32;
            let values = (0..shape.iter().product()).map(value).collect();
            let name = format!("base_model.model.model.language_model.{module}.lora_{side}.weight");
            tensors.push((name, shape, values));
        }
    }
    let adapter = json!({
        "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3.5-4B", "r": RANK, "lora_alpha": 2 * RANK,
        "target_modules": TARGETS, "bias": "none", "use_dora": false, "use_rslora": false, "task_type": "CAUSAL_LM"
    });
    std::fs::create_dir(model.join("text")).unwrap();
    std::fs::write(model.join("text/adapter_config.json"), adapter.to_string()).unwrap();
    model_folder::write_safetensors(&model.join("text/adapter_model.safetensors"), &tensors).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_cua_s1_adapter_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let (dir, model, base) = (cluster.path(""), cluster.path("cua"), cluster.path("base"));
    backbone(&base);
    backbone(&model);
    adapt(&model);
    let letters = tokens(&model.join("tokenizer.json"), &["A", "B", "C"]);
    let (model, base) = (model.display().to_string(), base.display().to_string());
    assert_eq!(checked(&model).await["family"], "cua_s1");
    let explained = explained(&dir, &["--model", &model], &choices()).await;
    let (mut expected, mut count) = (Vec::new(), 0);
    for sequence in &explained {
        let options = sequence["spans"]["letters"].as_object().unwrap();
        let of = |logits: Vec<f64>| {
            letters
                .iter()
                .take(options.len())
                .map(|id| logits[*id])
                .collect::<Vec<f64>>()
        };
        let adapted = of(logits(&dir, &model, ids(sequence)).await);
        let plain = of(logits(&dir, &base, ids(sequence)).await);
        // The adapter changes the answer, or the comparison says nothing of it.
        assert!(
            adapted.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 0.05),
            "{adapted:?} {plain:?}"
        );
        expected.push((
            options
                .values()
                .map(|name| name.as_str().unwrap())
                .collect::<Vec<_>>(),
            softmax(&adapted, 1.0),
        ));
        count += ids(sequence).len();
    }

    let mut up = serve(&cluster, &model).await;
    let answer = ask(&cluster, &choices()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (question, (names, p)) in ["team", "next"].iter().zip(&expected) {
        let answer = &answer.body["answers"][question];
        for (name, p) in names.iter().zip(p) {
            near(&answer["probabilities"][name], *p);
        }
        let n = p.len() as f64;
        let top = p.iter().copied().fold(0.0, f64::max);
        near(&answer["confidence"], (n * top - 1.0) / (n - 1.0));
        let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
        near(&answer["x_confidence"], 1.0 - entropy / n.ln());
    }
    assert_eq!(answer.body["usage"]["input_tokens"], json!(count));
    let refused = ask(&cluster, &ticket_body()).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let message = refused.body["error"].as_str().unwrap();
    assert!(
        message.contains("questions[1].type") && message.contains("questions[2].type"),
        "{message}"
    );
    up.kill().await.unwrap();
}
