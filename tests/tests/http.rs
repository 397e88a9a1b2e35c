//! `POST /v1/systemone` as an unmodified client speaks it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use deltagate_tests::{
    cluster::Cluster,
    http::{self, Answer},
    ports::url,
    requests::ticket_body,
};
use serde_json::{Value, json};
use ureq::http::Method;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

struct Client {
    url: String,
}

impl Client {
    async fn post(&self, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
        http::send(Method::POST, &self.url, headers, body.into())
            .await
            .unwrap()
    }

    async fn json(&self, body: &Value) -> Answer {
        self.post(&[("content-type", "application/json")], body.to_string())
            .await
    }

    /// The ticket with one thing changed.
    async fn changed(&self, change: impl FnOnce(&mut Value)) -> Answer {
        let mut body = ticket_body();
        change(&mut body);
        self.json(&body).await
    }
}

/// The body that every client reads an error from.
fn is_error(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert!(
        answer.body["error"].as_str().is_some_and(|e| !e.is_empty()),
        "{}",
        answer.body
    );
    let detail = answer.body["detail"]
        .as_array()
        .unwrap_or_else(|| panic!("no detail: {}", answer.body));
    assert!(!detail.is_empty(), "{}", answer.body);
    for one in detail {
        assert_eq!(one["loc"][0], "body", "{}", answer.body);
        assert!(
            one["msg"].is_string() && one["type"].is_string(),
            "{}",
            answer.body
        );
    }
    assert!(answer.header("x-typesafe-request-id").is_some(), "no request id");
}

#[tokio::test(flavor = "multi_thread")]
async fn systemone_is_what_existing_clients_expect() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let base = url(cluster.ports.http);
    let client = Client {
        url: format!("{base}/v1/systemone"),
    };

    // The answer, with everything that the client library requires, of the right JSON types.
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer anything"),
        ("user-agent", "typesafe-sdk/0.7.5"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
    ];
    let good = client.post(&headers, ticket_body().to_string()).await;
    assert_eq!(good.status, 200, "{}", good.body);
    assert!(good.header("x-typesafe-request-id").is_some());
    assert!(
        good.header("content-type")
            .unwrap()
            .starts_with("application/json")
    );
    let parts: Vec<_> = good
        .header("traceparent")
        .expect("no traceparent")
        .split('-')
        .collect();
    assert_eq!(
        (parts.len(), parts[0], parts[1]),
        (4, "00", "4bf92f3577b34da6a3ce929d0e0e4736")
    );
    assert_eq!(parts[2].len(), 16);
    let answers = &good.body["answers"];
    assert_eq!(
        answers.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["team", "severity", "urgent"]
    );
    assert!(["shipping", "billing", "other"].contains(&answers["team"]["choice"].as_str().unwrap()));
    for (id, kind) in [("team", "choice"), ("severity", "score"), ("urgent", "noul")] {
        assert_eq!(answers[id]["type"], kind);
    }
    assert!(answers["team"]["confidence"].is_number() && answers["severity"]["confidence"].is_number());
    assert_eq!(
        answers["severity"]["legend"],
        json!({"0": "cosmetic", "1": "annoying", "2": "blocks the customer"})
    );
    let levels: Vec<_> = answers["severity"]["probabilities"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(levels, ["0", "1", "2"]);
    assert!((0.0..=1.0).contains(&answers["urgent"]["noul"].as_f64().unwrap()));
    assert!(good.body["usage"]["input_tokens"].is_u64() && good.body["usage"]["output_tokens"] == 0);
    let name = good.body["model"].as_str().unwrap().to_owned();

    // Bodies of 1 KiB and more come compressed.
    let padded = format!("{}{}", ticket_body(), " ".repeat(2_000));
    let zstd = zstd::encode_all(padded.as_bytes(), 3).unwrap();
    let answer = client
        .post(
            &[("content-type", "application/json"), ("content-encoding", "zstd")],
            zstd,
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(&answer.body["answers"], answers);

    // What a client may add, and what it may leave out.
    for change in [
        json!({"model": name}),
        json!({"model": null}),
        json!({"thinking": {"enabled": false}}),
        json!({"thinking": null, "anything": {"else": [1, 2]}}),
    ] {
        let answer = client
            .changed(|b| {
                b.as_object_mut()
                    .unwrap()
                    .extend(change.as_object().unwrap().clone())
            })
            .await;
        assert_eq!(answer.status, 200, "{change}: {}", answer.body);
        assert_eq!(&answer.body["answers"], answers, "{change}");
    }
    // A duplicate key: the last one counts, as Python reads it.
    let twice = ticket_body()
        .to_string()
        .replacen("\"amount\":12.5", "\"amount\":99,\"amount\":12.5", 1);
    let answer = client.post(&[("content-type", "application/json")], twice).await;
    assert_eq!((answer.status, &answer.body["answers"]), (200, answers));
    // An empty state and a single option are the family's to judge, and it takes them.
    assert_eq!(client.changed(|b| b["state"] = json!("")).await.status, 200);
    let only = client
        .changed(|b| b["questions"]["team"]["criteria"] = json!({"one": null}))
        .await;
    assert_eq!(only.body["answers"]["team"]["choice"], "one", "{}", only.body);

    refuses(&client).await;
    discovery(&base, &name).await;
}

async fn refuses(client: &Client) {
    let kind = [("content-type", "application/json")];
    // Unreadable.
    for body in ["", "{", "nonsense", "{\"state\": NaN}", "[]"] {
        is_error(&client.post(&kind, body).await, 400);
    }
    is_error(
        &client
            .post(&kind, vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}'])
            .await,
        400,
    );
    let cut = zstd::encode_all(&b"{\"state\": \"a text that is long enough\"}"[..], 3).unwrap();
    let cut = cut[..cut.len() - 4].to_vec();
    is_error(
        &client
            .post(
                &[("content-type", "application/json"), ("content-encoding", "zstd")],
                cut,
            )
            .await,
        400,
    );
    // Readable, and not to be answered.
    let q = |b: &mut Value, id: &str, key: &str, value: Value| b["questions"][id][key] = value;
    is_error(
        &client
            .changed(|b| q(b, "severity", "criteria", json!(["one"])))
            .await,
        422,
    );
    is_error(
        &client.changed(|b| q(b, "team", "criteria", json!({}))).await,
        422,
    );
    is_error(&client.changed(|b| q(b, "team", "type", json!("box"))).await, 422);
    is_error(
        &client.changed(|b| q(b, "team", "instructions", json!(""))).await,
        422,
    );
    is_error(
        &client.changed(|b| b["thinking"] = json!({"enabled": true})).await,
        422,
    );
    let wrong = client
        .changed(|b| q(b, "team", "criteria", json!({"a\nb": null, "c": null})))
        .await;
    is_error(&wrong, 422);
    assert!(
        wrong.body["detail"][0]["loc"].as_array().unwrap().len() > 2,
        "{}",
        wrong.body
    );
    assert!(!wrong.body.to_string().contains("a\\nb"), "{}", wrong.body);
    // A model, a route, a method, a type, an encoding, a size.
    is_error(&client.changed(|b| b["model"] = json!("gpt-19")).await, 404);
    let nowhere = Client {
        url: format!("{}x", client.url),
    };
    assert_eq!(nowhere.json(&ticket_body()).await.status, 404);
    assert_eq!(
        http::send(Method::GET, &client.url, &[], Vec::new())
            .await
            .unwrap()
            .status,
        405
    );
    is_error(
        &client
            .post(&[("content-type", "text/plain")], ticket_body().to_string())
            .await,
        415,
    );
    let coded = [("content-type", "application/json"), ("content-encoding", "br")];
    is_error(&client.post(&coded, ticket_body().to_string()).await, 415);
    is_error(
        &client
            .post(&[("content-type", "multipart/form-data; boundary=x")], "--x--")
            .await,
        422,
    );
    is_error(
        &client.changed(|b| b["state"] = json!("x".repeat(5 << 20))).await,
        413,
    );
    let bomb = zstd::encode_all(&vec![b' '; 64 << 20][..], 3).unwrap();
    is_error(
        &client
            .post(
                &[("content-type", "application/json"), ("content-encoding", "zstd")],
                bomb,
            )
            .await,
        413,
    );
    // None of it broke anything.
    assert_eq!(client.json(&ticket_body()).await.status, 200);
}

async fn discovery(base: &str, name: &str) {
    let models = http::get(&format!("{base}/v1/models")).await.unwrap();
    assert_eq!(models.status, 200);
    let model = &models.body["models"][0];
    assert_eq!(model["name"], name);
    assert!(
        model["description"].as_str().is_some_and(|d| !d.is_empty()),
        "{model}"
    );
    let date: Vec<_> = model["release_date"]
        .as_str()
        .unwrap()
        .split('-')
        .map(str::len)
        .collect();
    assert_eq!(date, [4, 2, 2], "{model}");
    assert_eq!(
        (&models.body["object"], &models.body["data"][0]["id"]),
        (&json!("list"), &json!(name))
    );
    for path in ["/health", "/v1/health"] {
        let health = http::get(&format!("{base}{path}")).await.unwrap();
        assert_eq!(health.status, 200);
        assert!(
            matches!(health.body["status"].as_str(), Some("ok" | "ready")),
            "{}",
            health.body
        );
        assert_eq!(health.body["model"], name);
        assert_eq!(
            health.body["bindings"].as_object().map(serde_json::Map::len),
            Some(10),
            "{}",
            health.body
        );
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            http::get(&format!("{base}{path}")).await.unwrap().status,
            200,
            "{path}"
        );
    }
}
