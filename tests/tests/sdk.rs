//! The official System-One client, unmodified, against a running mesh: answers, errors, and its own retries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use deltagate_tests::{
    cluster::{Cluster, Service},
    http,
    ports::url,
    process::eventually,
    requests::largest_difference,
    tools::Sdk,
};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// The client asks for this model when it is told none.
const ALIAS: &str = "gateway.aliases.jev-latest";
const MINI: &str = "deltagate-mini";

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_gets_what_plain_http_gives() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set(ALIAS, MINI);
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let base = url(cluster.ports.http);

    let mut plain_answers = Value::Null;
    for sdk in Sdk::ALL {
        let seen = sdk.run("ask", &base).await.unwrap();
        assert_eq!(seen["version"], "0.7.5");
        let (answered, sent) = (&seen["answered"], list(&seen["sent"]));
        // Python 3.14 and later compress without the extra.
        let compresses = sdk == Sdk::Zstd || seen["python"][1].as_u64() >= Some(14);
        let encoding = if compresses { json!("zstd") } else { Value::Null };
        assert_eq!(sent[0]["encoding"], encoding, "{sdk:?}");
        assert_eq!(
            (sent.len(), &sent[2]["encoding"]),
            (4, &Value::Null),
            "short bodies are sent as they are"
        );

        assert_eq!(
            (&answered["model"], &answered["output_tokens"]),
            (&json!(MINI), &json!(0))
        );
        let names = |kind: &str| answered["kinds"][kind].clone();
        assert_eq!(
            names("choice"),
            json!([" as a dictionary ", "described", "team", "tone"])
        );
        assert_eq!(names("score"), json!(["severity"]));
        assert_eq!(
            names("noul"),
            json!(["a.b[0] \"ü\" 🎫", "no described", "urgent", "yes described"])
        );
        let ids: BTreeSet<_> = ["answered", "named", "array_state"]
            .map(|call| seen[call]["request_id"].as_str().unwrap())
            .into();
        assert_eq!(ids.len(), 3, "each call has an id of its own: {ids:?}");
        let models: Vec<_> = list(&seen["models"]).iter().map(|m| &m["name"]).collect();
        assert_eq!(models, [MINI, "jev-latest"]);
        assert_eq!(seen["named"]["model"], MINI);

        // What the client made of it is what was sent, number for number.
        if sdk == Sdk::Plain && !compresses {
            let calls = [("answered", 0), ("named", 2), ("array_state", 3)];
            for (call, place) in calls {
                let web = http::post(&format!("{base}/v1/systemone"), &sent[place]["body"])
                    .await
                    .unwrap();
                assert_eq!(web.status, 200, "{}", web.body);
                let difference = largest_difference(&seen[call]["answers"], &web.body["answers"]);
                assert_eq!(difference, Ok(0.0), "{call}");
                assert_eq!(seen[call]["input_tokens"], web.body["usage"]["input_tokens"]);
            }
            assert_eq!(sent[0]["body"]["model"], "jev-latest");
        }
        match &plain_answers {
            Value::Null => plain_answers = answered["answers"].clone(),
            plain => assert_eq!(&answered["answers"], plain, "compression changes nothing"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_raises_the_right_error_for_each_refusal() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set(ALIAS, MINI);
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let question = json!(["body", "questions", 0]);
    let expected = [
        (
            "model",
            "TypeSafeNotFoundError",
            404,
            json!(["body", "model"]),
            "model_not_found",
        ),
        (
            "levels",
            "TypeSafeUnprocessableEntityError",
            422,
            json!(["body", "questions", 0, "criteria"]),
            "level_count",
        ),
        (
            "options",
            "TypeSafeUnprocessableEntityError",
            422,
            json!(["body", "questions", 0, "criteria"]),
            "option_count",
        ),
        (
            "box",
            "TypeSafeUnprocessableEntityError",
            422,
            json!(["body", "questions", 0, "type"]),
            "unsupported_type",
        ),
        (
            "empty id",
            "TypeSafeUnprocessableEntityError",
            422,
            question.clone(),
            "invalid_id",
        ),
        (
            "no instructions",
            "TypeSafeUnprocessableEntityError",
            422,
            json!(["body", "questions", 0, "instructions"]),
            "missing",
        ),
        (
            "too long",
            "TypeSafeUnprocessableEntityError",
            422,
            question,
            "prompt_too_long",
        ),
        (
            "too large",
            "TypeSafeAPIError",
            413,
            json!(["body"]),
            "body_too_large",
        ),
        (
            "encoding",
            "TypeSafeAPIError",
            415,
            json!(["body"]),
            "unsupported_encoding",
        ),
        (
            "broken zstd",
            "TypeSafeBadRequestError",
            400,
            json!(["body"]),
            "unreadable_body",
        ),
    ];
    for sdk in Sdk::ALL {
        let seen = sdk.run("errors", &url(cluster.ports.http)).await.unwrap();
        let cases = seen["seen"].as_object().unwrap();
        assert_eq!(cases.len(), expected.len());
        for (name, error, status, place, kind) in &expected {
            let case = &cases[*name];
            assert_eq!(
                (&case["error"], &case["status"]),
                (&json!(error), &json!(status)),
                "{name}: {case}"
            );
            assert_eq!(
                (&case["detail"][0]["loc"], &case["detail"][0]["type"]),
                (place, &json!(kind)),
                "{name}: {case}"
            );
            let id = case["request_id"].as_str().unwrap();
            assert!(
                !id.is_empty() && case["text"].as_str().unwrap().contains(id),
                "{name}: {case}"
            );
        }
        assert_eq!(seen["after"]["model"], MINI, "the next request is answered");
    }
}

/// The pauses between a refusal with this status and the same caller's next request, in seconds; and what the refusals
/// asked for, in milliseconds.
fn pauses(seen: &Value, status: u16) -> Vec<(f64, f64)> {
    let (sent, received) = (list(&seen["sent"]), list(&seen["received"]));
    let at = |event: &Value| event["at"].as_f64().unwrap();
    let refusals = received.iter().filter(|r| r["status"] == status);
    refusals
        .map(|refusal| {
            let next = sent
                .iter()
                .filter(|s| s["caller"] == refusal["caller"] && at(s) > at(refusal))
                .map(at);
            let next = next.fold(f64::INFINITY, f64::min);
            assert!(next.is_finite(), "a refusal was not tried again: {refusal}");
            assert!(refusal["retry_after"].is_string(), "no Retry-After: {refusal}");
            let asked = refusal["retry_after_ms"].as_str().unwrap().parse().unwrap();
            (next - at(refusal), asked)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_the_official_client_succeeds_once_the_mesh_is_ready() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set(ALIAS, MINI);
    cluster.set("policy.bundle", "cpu");
    for service in [Service::Capability, Service::Policy, Service::Gateway] {
        cluster.start(service).unwrap();
    }
    let base = url(cluster.ports.http);
    eventually(Duration::from_secs(20), || async {
        let live = http::get(&format!("{base}/livez")).await?;
        ensure!(live.status == 200, "{}", live.status);
        Ok(())
    })
    .await
    .unwrap();
    let asked = tokio::spawn(async move { Sdk::Plain.run("wait", &base).await });
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    cluster.start(Service::Executor).unwrap();
    let seen = asked
        .await
        .unwrap()
        .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()));
    assert_eq!(seen["answered"]["model"], MINI);
    let statuses: Vec<_> = list(&seen["received"])
        .iter()
        .map(|r| r["status"].as_u64().unwrap())
        .collect();
    let (last, before) = statuses.split_last().unwrap();
    assert_eq!(*last, 200, "{statuses:?}");
    assert!(
        !before.is_empty() && before.iter().all(|s| *s == 503),
        "{statuses:?}"
    );
    let pauses = pauses(&seen, 503);
    println!("{statuses:?}; paused {pauses:?}");
    for (pause, asked) in pauses {
        // By itself it would wait for at most 0.1 s.
        assert!(
            asked >= 500.0 && pause * 1e3 >= asked,
            "waited {pause} s of {asked} ms"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_official_client_that_are_refused_come_back_when_they_are_told_to() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set(ALIAS, MINI);
    cluster.set("gateway.limits.max_concurrent", "1");
    cluster.set("gateway.limits.retry_after", "700ms");
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let seen = Sdk::Zstd.run("crowd", &url(cluster.ports.http)).await.unwrap();
    let answers = list(&seen["answers"]);
    assert_eq!(answers.len(), 8);
    assert!(
        answers.iter().all(|a| *a == answers[0]),
        "callers got different answers"
    );
    let statuses: BTreeSet<_> = list(&seen["received"])
        .iter()
        .map(|r| r["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [200, 429].into());
    let pauses = pauses(&seen, 429);
    println!("{} refusals; paused {pauses:?}", pauses.len());
    for (pause, asked) in pauses {
        assert_eq!(asked, 700.0);
        assert!(pause >= 0.7, "waited {pause} s");
    }
}
