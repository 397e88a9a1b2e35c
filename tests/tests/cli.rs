//! The command line against a running mesh, and its configuration: what it prints, and what it exits with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use deltagate_tests::{
    cluster::Cluster,
    ports::url,
    process::{self, Run},
    requests::ticket_body,
};
use serde_json::json;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
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
        "--state",
        "I was charged twice for order #4411.",
        "--choice",
        "Which team should handle this ticket?",
        "--option",
        "shipping=Delivery and tracking",
        "--option",
        "billing=Payments, refunds and invoices",
        "--option",
        "other",
        "--yes-no",
        "Is the customer angry?",
    ])
    .await;
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(
        ["shipping", "billing", "other"]
            .iter()
            .any(|o| text.out.contains(o)),
        "{}",
        text.out
    );
    assert!(text.out.contains("tokens in"), "{}", text.out);

    let score = ask(&[
        "--state-json",
        "{\"uptime\": 0.5}",
        "--score",
        "How bad?",
        "--level",
        "fine",
        "--level",
        "bad",
        "--json",
    ])
    .await;
    assert_eq!(score.code, Some(0), "{score:?}");
    let document = score.json().unwrap();
    let answers = document["answers"].as_object().unwrap();
    assert_eq!(answers.len(), 1);
    assert_eq!(
        answers.values().next().unwrap()["legend"],
        json!({"0": "fine", "1": "bad"})
    );

    // A file written for HTTP, from a file and from standard input, gives what HTTP gives.
    let dir = process::folder().unwrap();
    let file = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let asked = ask(&["--request", &file, "--json"]).await;
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let document = asked.json().unwrap();
    let web = deltagate_tests::http::post(
        &format!("{}/v1/systemone", url(cluster.ports.http)),
        &ticket_body(),
    )
    .await;
    let web = web.unwrap();
    assert_eq!(document["answers"], web.body["answers"]);
    assert_eq!(document["input_tokens"], web.body["usage"]["input_tokens"]);
    let streamed = ask(&["--request", &file, "--stream"]).await;
    assert_eq!(streamed.code, Some(0), "{streamed:?}");
    assert!(
        streamed.out.contains("accepted ") && streamed.out.contains("team: "),
        "{}",
        streamed.out
    );

    // Refusals.
    let unknown = ask(&["--request", &file, "--model", "gpt-19"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.err.contains("MODEL_NOT_FOUND"), "{unknown:?}");
    let both = ask(&["--request", &file, "--state", "x"]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
    let bad = process::write(dir.path(), "bad.json", "{\"state\": 1").unwrap();
    assert_eq!(ask(&["--request", &bad]).await.code, Some(2));
    let away = run(&[
        "classify",
        "--endpoint",
        "http://127.0.0.1:9",
        "--request",
        &file,
        "--timeout",
        "3s",
    ])
    .await;
    assert_eq!(away.code, Some(1), "{away:?}");

    // What is bound.
    let caps = run(&[
        "caps",
        "--endpoint",
        &url(cluster.ports.capability),
        "--json",
        "--require-ready",
    ])
    .await;
    assert_eq!(caps.code, Some(0), "{caps:?}");
    let view = caps.json().unwrap();
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
    assert!(
        text.out.contains("delta_rule") && text.out.contains("ready"),
        "{}",
        text.out
    );
    let nobody = run(&["caps", "--endpoint", "http://127.0.0.1:9"]).await;
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn config_shows_where_each_value_comes_from_and_refuses_unknown_keys() {
    let dir = process::folder().unwrap();
    let file = process::write(
        dir.path(),
        "deltagate.toml",
        "[executor]\nsegment_tokens = 256\nmax_segments = 4\n[executor.kernels]\ndelta_rule = \"cpu.recurrent\"\n",
    ).unwrap();
    let env = [
        ("DELTAGATE_EXECUTOR__QUEUE__MAX_REQUESTS", "7"),
        // An empty variable counts as unset.
        ("DELTAGATE_GATEWAY__DEFAULT_MODEL", ""),
    ];
    let show = [
        "--config",
        &file,
        "--set",
        "executor.max_segments=6",
        "config",
        "show",
        "--json",
    ];
    let show = process::run(BINARY, &show, &env).await.unwrap();
    assert_eq!(show.code, Some(0), "{show:?}");
    let shown = show.json().unwrap();
    let of = |key: &str| {
        let all = shown.as_array().unwrap();
        let found = all
            .iter()
            .find(|o| o["key"] == key)
            .unwrap_or_else(|| panic!("{key} is not shown"));
        (
            found["value"].clone(),
            found["origin"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(of("executor.segment_tokens"), (json!(256), file.clone()));
    assert_eq!(
        of("executor.kernels.delta_rule"),
        (json!("cpu.recurrent"), file.clone())
    );
    let (value, origin) = of("executor.max_segments");
    assert_eq!(value, 6);
    assert!(origin.starts_with("flag"), "{origin}");
    let (value, origin) = of("executor.queue.max_requests");
    assert_eq!(value, 7);
    assert!(
        origin.contains("DELTAGATE_EXECUTOR__QUEUE__MAX_REQUESTS"),
        "{origin}"
    );
    assert_eq!(of("executor.queue.max_tokens").1, "default");
    assert_eq!(of("policy.bundle"), (json!("gpu"), "default".to_owned()));
    assert_eq!(of("gateway.grpc_listen").0, "127.0.0.1:50051");
    assert_eq!(of("gateway.http_listen").0, "127.0.0.1:8080");

    let sound = run(&["--config", &file, "config", "check"]).await;
    assert_eq!(sound.code, Some(0), "{sound:?}");

    // Unknown keys and bad values, from every source: exit code 2, and the source is named.
    let refused = |run: &Run, key: &str, source: &str| {
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.err.contains(key) && run.err.contains(source),
            "{key} of {source} is not named: {run:?}"
        );
    };
    let typo = process::write(dir.path(), "typo.toml", "[executor]\nsegment_token = 256\n").unwrap();
    refused(
        &run(&["--config", &typo, "config", "check"]).await,
        "segment_token",
        &typo,
    );
    refused(
        &run(&["--config", &typo, "up", "--cpu"]).await,
        "segment_token",
        &typo,
    );
    refused(
        &run(&["--config", &typo, "executor"]).await,
        "segment_token",
        &typo,
    );
    let section = process::write(dir.path(), "section.toml", "[executer]\ndtype = \"f32\"\n").unwrap();
    refused(
        &run(&["--config", &section, "config", "check"]).await,
        "executer",
        &section,
    );
    let family = process::write(
        dir.path(),
        "family.toml",
        "[executor.kernels]\ndelta_rul = \"auto\"\n",
    )
    .unwrap();
    refused(
        &run(&["--config", &family, "config", "check"]).await,
        "delta_rul",
        &family,
    );
    let kind = process::write(dir.path(), "kind.toml", "[executor]\nsegment_tokens = \"many\"\n").unwrap();
    refused(
        &run(&["--config", &kind, "config", "check"]).await,
        "segment_tokens",
        &kind,
    );
    let flag = run(&["--set", "policy.bundel=cpu", "config", "check"]).await;
    refused(&flag, "policy.bundel", "flag");
    let env = [("DELTAGATE_GATEWAY__GRPC_LISTN", "127.0.0.1:1")];
    let variable = process::run(BINARY, &["config", "check"], &env).await.unwrap();
    refused(&variable, "gateway.grpc_listn", "DELTAGATE_GATEWAY__GRPC_LISTN");
    for (value, key) in [
        ("executor.threads=0", "executor.threads"),
        ("gateway.policy=here", "gateway.policy"),
    ] {
        let run = run(&["--set", value, "config", "check"]).await;
        refused(&run, key, "");
    }
    let missing = run(&["--config", "/nonexistent/deltagate.toml", "config", "check"]).await;
    refused(&missing, "/nonexistent/deltagate.toml", "");
    let shapeless = run(&["--set", "policy.bundle", "config", "check"]).await;
    refused(&shapeless, "policy.bundle", "KEY=VALUE");
}
