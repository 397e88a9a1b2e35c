//! The command line: what it prints, and what it exits with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use deltagate_tests::{
    cluster::Cluster,
    model_folder,
    ports::url,
    process::{command, finish},
    requests::ticket_body,
    tree::{files, root},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// What a run gave.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

async fn run_with(arguments: &[&str], env: &[(&str, &Path)]) -> Run {
    let mut command = command(BINARY);
    command.args(arguments).envs(env.iter().copied());
    let output = finish(command, Duration::from_secs(100)).await.unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn run(arguments: &[&str]) -> Run {
    run_with(arguments, &[]).await
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("deltagate-cli-").tempdir().unwrap()
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name).display().to_string()
}

/// The folder with this config file below a cache.
fn unpacked(cache: &Path) -> PathBuf {
    let configs = files(cache, "config.json");
    let model = configs.iter().find(|p| p.file_name().is_some_and(|n| n == "config.json"));
    model.unwrap_or_else(|| panic!("nothing was unpacked under {}", cache.display())).parent().unwrap().to_path_buf()
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_gives_three_decisions_and_check_judges_its_model() {
    let dir = folder();
    let cache = dir.path().join("cache");
    let demo = run_with(&["demo"], &[("DELTAGATE_CACHE_DIR", &cache)]).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    for shown in ["team: ", "severity: ", "refund: ", "delta_rule", "cpu.", "launches"] {
        assert!(demo.out.contains(shown), "the demo does not show `{shown}`:\n{}", demo.out);
    }
    println!("{}", demo.out);

    let demo = run_with(&["demo", "--json"], &[("DELTAGATE_CACHE_DIR", &cache)]).await;
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let document = demo.json();
    let decisions = document["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 3);
    let kinds: Vec<_> = decisions
        .iter()
        .map(|d| d["response"]["answers"].as_object().unwrap().values().next().unwrap()["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["choice", "score", "noul"]);
    for decision in decisions {
        assert!(decision["response"]["timings_ms"]["forward"].as_f64().unwrap() > 0.0, "{decision}");
        assert!(!decision["response"]["timings_ms"]["kernels"].as_array().unwrap().is_empty(), "{decision}");
    }
    assert_eq!(document["capabilities"]["executors"][0]["bindings"].as_array().map(Vec::len), Some(10));
    println!("ready after {} ms", document["ready_after_ms"]);

    // The model that it unpacked, as it is.
    let model = unpacked(&cache);
    let good = run(&["check", &model.display().to_string(), "--json"]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    let inspection = good.json();
    assert_eq!(inspection["would_load"], true);
    assert_eq!(inspection["card"]["family"], "startlux");
    assert_eq!(inspection["findings"], json!([]));
    let text = run(&["check", &model.display().to_string()]).await;
    assert!(text.out.contains("startlux") && text.out.contains("would load"), "{}", text.out);

    // And broken, one thing at a time.
    type Break = fn(&Path);
    let breaks: [(&str, &str, Break); 5] = [
        ("without its tokenizer", "tokenizer.json", |d| fs::remove_file(d.join("tokenizer.json")).unwrap()),
        ("without its config", "config.json", |d| fs::remove_file(d.join("config.json")).unwrap()),
        ("with cut weights", ".safetensors", |d| {
            let weights = files(d, ".safetensors").remove(0);
            let bytes = fs::read(&weights).unwrap();
            fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
        }),
        ("with another hidden size", "hidden_size", |d| {
            let mut config: Value = serde_json::from_slice(&fs::read(d.join("config.json")).unwrap()).unwrap();
            let text = match config.get_mut("text_config") {
                Some(text) => text,
                None => &mut config,
            };
            text["hidden_size"] = json!(72);
            fs::write(d.join("config.json"), config.to_string()).unwrap();
        }),
        ("with letters of another tokenizer", "letter_token_ids", |d| {
            let file = d.join("decision_config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            config["letter_token_ids"] = json!([1, 2]);
            fs::write(file, config.to_string()).unwrap();
        }),
    ];
    for (name, named, break_it) in breaks {
        let broken = dir.path().join(name.replace(' ', "-"));
        model_folder::copy(&model, &broken).unwrap();
        break_it(&broken);
        let verdict = run(&["check", &broken.display().to_string(), "--json"]).await;
        assert_eq!(verdict.code, Some(1), "{name}: {verdict:?}");
        let inspection = verdict.json();
        assert_eq!(inspection["would_load"], false, "{name}");
        let findings = inspection["findings"].as_array().unwrap();
        assert!(!findings.is_empty(), "{name}");
        // A wrong size shows at the tensors that it is the size of.
        let told = inspection["findings"].to_string();
        let expected = if named == "hidden_size" { "embed_tokens.weight" } else { named };
        assert!(told.contains(expected), "{name}: {told} does not name {expected}");
    }
    let nothing = run(&["check", "/nonexistent/folder"]).await;
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn classify_and_caps_ask_a_running_mesh() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let endpoint = url(cluster.ports.gateway);
    let ask = |more: &[&str]| {
        let arguments: Vec<String> = ["classify", "--endpoint", &endpoint]
            .iter()
            .chain(more)
            .map(|a| (*a).to_owned())
            .collect();
        async move { run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await }
    };

    let text = ask(&[
        "--state", "I was charged twice for order #4411.",
        "--choice", "Which team should handle this ticket?",
        "--option", "shipping=Delivery and tracking",
        "--option", "billing=Payments, refunds and invoices",
        "--option", "other",
        "--yes-no", "Is the customer angry?",
    ])
    .await;
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(["shipping", "billing", "other"].iter().any(|o| text.out.contains(o)), "{}", text.out);
    assert!(text.out.contains("tokens in"), "{}", text.out);

    let score = ask(&[
        "--state-json", "{\"uptime\": 0.5}", "--score", "How bad?", "--level", "fine", "--level", "bad", "--json",
    ])
    .await;
    assert_eq!(score.code, Some(0), "{score:?}");
    let document = score.json();
    let answers = document["answers"].as_object().unwrap();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers.values().next().unwrap()["legend"], json!({"0": "fine", "1": "bad"}));

    // A file written for HTTP, from a file and from standard input, gives what HTTP gives.
    let dir = folder();
    let file = write(dir.path(), "request.json", &ticket_body().to_string());
    let asked = ask(&["--request", &file, "--json"]).await;
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let document = asked.json();
    let web = deltagate_tests::http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), &ticket_body()).await;
    let web = web.unwrap();
    assert_eq!(document["answers"], web.body["answers"]);
    assert_eq!(document["input_tokens"], web.body["usage"]["input_tokens"]);
    let streamed = ask(&["--request", &file, "--stream"]).await;
    assert_eq!(streamed.code, Some(0), "{streamed:?}");
    assert!(streamed.out.contains("accepted ") && streamed.out.contains("team: "), "{}", streamed.out);

    // Refusals.
    let unknown = ask(&["--request", &file, "--model", "gpt-19"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.err.contains("MODEL_NOT_FOUND"), "{unknown:?}");
    let both = ask(&["--request", &file, "--state", "x"]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
    let bad = write(dir.path(), "bad.json", "{\"state\": 1");
    assert_eq!(ask(&["--request", &bad]).await.code, Some(2));
    let away = run(&["classify", "--endpoint", "http://127.0.0.1:9", "--request", &file, "--timeout", "3s"]).await;
    assert_eq!(away.code, Some(1), "{away:?}");

    // What is bound.
    let caps = run(&["caps", "--endpoint", &url(cluster.ports.capability), "--json", "--require-ready"]).await;
    assert_eq!(caps.code, Some(0), "{caps:?}");
    let view = caps.json();
    let executor = &view["executors"][0];
    assert_eq!(executor["phase"], "ready");
    assert_eq!(executor["fingerprint"], document["capability_fingerprint"]);
    let bindings = executor["bindings"].as_array().unwrap();
    assert_eq!(bindings.len(), 10);
    for binding in bindings {
        assert_eq!(binding["state"], "bound", "{binding}");
        assert!(!binding["candidates"].as_array().unwrap().is_empty(), "{binding}");
    }
    let text = run(&["caps", "--endpoint", &url(cluster.ports.capability)]).await;
    assert!(text.out.contains("delta_rule") && text.out.contains("ready"), "{}", text.out);
    let nobody = run(&["caps", "--endpoint", "http://127.0.0.1:9"]).await;
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn config_shows_where_each_value_comes_from_and_refuses_unknown_keys() {
    let dir = folder();
    let file = write(
        dir.path(),
        "deltagate.toml",
        "[executor]\nsegment_tokens = 256\nmax_segments = 4\n[executor.kernels]\ndelta_rule = \"cpu.recurrent\"\n",
    );
    let mut command = command(BINARY);
    command
        .args(["--config", &file, "--set", "executor.max_segments=6", "config", "show", "--json"])
        .env("DELTAGATE_EXECUTOR__QUEUE__MAX_REQUESTS", "7")
        .env("DELTAGATE_GATEWAY__DEFAULT_MODEL", "");
    let output = finish(command, Duration::from_secs(20)).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| {
        let all = shown.as_array().unwrap();
        let found = all.iter().find(|o| o["key"] == key).unwrap_or_else(|| panic!("{key} is not shown"));
        (found["value"].clone(), found["origin"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("executor.segment_tokens"), (json!(256), file.clone()));
    assert_eq!(of("executor.kernels.delta_rule"), (json!("cpu.recurrent"), file.clone()));
    let (value, origin) = of("executor.max_segments");
    assert_eq!(value, 6);
    assert!(origin.starts_with("flag"), "{origin}");
    let (value, origin) = of("executor.queue.max_requests");
    assert_eq!(value, 7);
    assert!(origin.contains("DELTAGATE_EXECUTOR__QUEUE__MAX_REQUESTS"), "{origin}");
    assert_eq!(of("executor.queue.max_tokens").1, "default");
    assert_eq!(of("policy.bundle"), (json!("gpu"), "default".to_owned()));
    assert_eq!(of("gateway.grpc_listen").0, "127.0.0.1:50051");
    assert_eq!(of("gateway.http_listen").0, "127.0.0.1:8080");

    let sound = run(&["--config", &file, "config", "check"]).await;
    assert_eq!(sound.code, Some(0), "{sound:?}");

    // Unknown keys and bad values, from every source: exit code 2, and the source is named.
    let refused = |run: &Run, key: &str, source: &str| {
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains(key) && run.err.contains(source), "{key} of {source} is not named: {run:?}");
    };
    let typo = write(dir.path(), "typo.toml", "[executor]\nsegment_token = 256\n");
    refused(&run(&["--config", &typo, "config", "check"]).await, "segment_token", &typo);
    refused(&run(&["--config", &typo, "up", "--cpu"]).await, "segment_token", &typo);
    refused(&run(&["--config", &typo, "executor"]).await, "segment_token", &typo);
    let section = write(dir.path(), "section.toml", "[executer]\ndtype = \"f32\"\n");
    refused(&run(&["--config", &section, "config", "check"]).await, "executer", &section);
    let family = write(dir.path(), "family.toml", "[executor.kernels]\ndelta_rul = \"auto\"\n");
    refused(&run(&["--config", &family, "config", "check"]).await, "delta_rul", &family);
    let kind = write(dir.path(), "kind.toml", "[executor]\nsegment_tokens = \"many\"\n");
    refused(&run(&["--config", &kind, "config", "check"]).await, "segment_tokens", &kind);
    let flag = run(&["--set", "policy.bundel=cpu", "config", "check"]).await;
    refused(&flag, "policy.bundel", "flag");
    let mut command = deltagate_tests::process::command(BINARY);
    command.args(["config", "check"]).env("DELTAGATE_GATEWAY__GRPC_LISTN", "127.0.0.1:1");
    let output = finish(command, Duration::from_secs(20)).await.unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("gateway.grpc_listn") && err.contains("DELTAGATE_GATEWAY__GRPC_LISTN"), "{err}");
    for (value, key) in [("executor.threads=0", "executor.threads"), ("gateway.policy=here", "gateway.policy")] {
        let run = run(&["--set", value, "config", "check"]).await;
        refused(&run, key, "");
    }
    let missing = run(&["--config", "/nonexistent/deltagate.toml", "config", "check"]).await;
    refused(&missing, "/nonexistent/deltagate.toml", "");
    let shapeless = run(&["--set", "policy.bundle", "config", "check"]).await;
    refused(&shapeless, "policy.bundle", "KEY=VALUE");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_prompts_of_the_specification_byte_for_byte() {
    let tokenizer = root().join("target/fixtures/qwen35/tokenizer.json");
    assert!(
        tokenizer.is_file(),
        "{} is missing: make it with `bash tests/scripts/fetch-tokenizer.sh`",
        tokenizer.display()
    );
    let dir = folder();
    let request = write(dir.path(), "request.json", &ticket_body().to_string());
    let tokenizer = tokenizer.display().to_string();
    let explain = ["explain", "--family", "startlux", "--tokenizer", &tokenizer, "--request", &request];
    let explained = run(&[&explain[..], &["--json"]].concat()).await;
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let document = explained.json();
    assert_eq!(document["family"], "startlux");
    let sequences: Vec<_> = document["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            let ids = s["ids"].as_array().unwrap();
            let digest = hex::encode(Sha256::digest(s["text"].as_str().unwrap()));
            assert_eq!(s["read"], json!([ids.len() - 1]), "the last token is read");
            let end: Vec<_> = ids[ids.len() - 6..].iter().map(|i| i.as_u64().unwrap()).collect();
            assert_eq!(end, [74455, 198, 248_068, 271, 248_069, 271]);
            (s["question"].as_str().unwrap().to_owned(), ids.len(), digest[..16].to_owned())
        })
        .collect();
    let expected = [
        ("team", 108, "674258b26a8541fb"),
        ("severity", 108, "0839895fb1f07199"),
        ("urgent", 94, "589636c756dad410"),
    ];
    assert_eq!(sequences, expected.map(|(q, n, h)| (q.to_owned(), n, h.to_owned())));

    let text = run(&explain).await;
    assert!(text.out.contains("B) billing: Payments, refunds and invoices"), "{}", text.out);
    let short = run(&[&explain[..], &["--max-length", "100"]].concat()).await;
    assert_eq!(short.code, Some(2), "too long is refused, never cut: {short:?}");
    let unknown = run(&["explain", "--family", "oracle", "--tokenizer", &tokenizer, "--request", &request]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    let alone = run(&["explain", "--family", "startlux", "--request", &request]).await;
    assert_eq!(alone.code, Some(2), "{alone:?}");
}

/// The printed numbers of the golden backbone: leading values of rows 69 and 5, the sum, the sum of absolutes.
struct Golden {
    flags: &'static [&'static str],
    row_69: [f64; 6],
    row_5: [f64; 6],
    sum: f64,
    abs_sum: f64,
}

const GOLDEN: [Golden; 2] = [
    Golden {
        flags: &[],
        row_69: [-0.25280, 1.17029, 2.01659, 1.65739, 0.62664, -0.26899],
        row_5: [-0.71055, 1.22538, 1.79146, 0.77805, -0.50533, -1.04241],
        sum: 72.480,
        abs_sum: 3840.75,
    },
    Golden {
        flags: &["--noncausal"],
        row_69: [-0.25262, 1.17014, 2.01613, 1.65695, 0.62648, -0.26882],
        row_5: [-0.61142, 1.15928, 1.61309, 0.67369, -0.42451, -0.79817],
        sum: 74.122,
        abs_sum: 3840.02,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn forward_reproduces_the_golden_backbone() {
    let dir = folder();
    let ids: Vec<u32> = (0..70).map(|i| (7 * i + 3) % 97).collect();
    let ids = write(dir.path(), "ids.json", &json!(ids).to_string());
    for prefix in ["", "model.", "language_model.", "model.language_model."] {
        let model = dir.path().join(format!("golden-{prefix}"));
        model_folder::write_golden(&model, prefix).unwrap();
        let model = model.display().to_string();
        let check = run(&["check", &model, "--json"]).await;
        assert_eq!((check.code, check.json()["card"]["family"].clone()), (Some(0), Value::Null), "`{prefix}`: {check:?}");
        // One prefix with both masks; the arithmetic does not depend on the prefix.
        let cases = if prefix == "model." { &GOLDEN[..] } else { &GOLDEN[..1] };
        for golden in cases {
            let flags = [&["forward", "--model", &model, "--ids", &ids, "--rows", "all", "--json"], golden.flags].concat();
            let forward = run(&flags).await;
            assert_eq!(forward.code, Some(0), "{forward:?}");
            let document = forward.json();
            assert_eq!((&document["tokens"], document["rows"].as_array().map(Vec::len)), (&json!(70), Some(70)));
            let near = |got: f64, want: f64, tolerance: f64, what: &str| {
                assert!((got - want).abs() <= tolerance, "{:?} {what}: {got} is not {want}", golden.flags);
            };
            for (row, expected) in [(69, golden.row_69), (5, golden.row_5)] {
                let row = &document["rows"][row];
                for (i, want) in expected.into_iter().enumerate() {
                    near(row["values"][i].as_f64().unwrap(), want, 2e-4, &format!("row {} [{i}]", row["index"]));
                }
            }
            near(document["sum"].as_f64().unwrap(), golden.sum, 2e-2, "sum");
            near(document["abs_sum"].as_f64().unwrap(), golden.abs_sum, 5e-2, "abs sum");
            assert_eq!(document["logits"].as_array().map(Vec::len), Some(97), "the embedding is tied");
        }
    }

    let model = dir.path().join("golden-").display().to_string();
    let last = run(&["forward", "--model", &model, "--ids", &ids]).await;
    assert!(last.out.contains("70 tokens") && last.out.contains("row 69:"), "{}", last.out);
    let beyond = write(dir.path(), "beyond.json", "[1, 97]");
    assert_eq!(run(&["forward", "--model", &model, "--ids", &beyond]).await.code, Some(1));
    let words = write(dir.path(), "words.json", "[\"one\"]");
    assert_eq!(run(&["forward", "--model", &model, "--ids", &words]).await.code, Some(2));
    // A backbone without a decider is nothing to serve or to explain.
    let request = write(dir.path(), "request.json", &ticket_body().to_string());
    let explain = run(&["explain", "--model", &model, "--request", &request]).await;
    assert_eq!(explain.code, Some(2), "{explain:?}");
}
