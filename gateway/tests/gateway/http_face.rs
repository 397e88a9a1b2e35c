//! Routes, headers, discovery and probes of the HTTP face.

use serde_json::json;

use crate::support::{
    http,
    mesh::{ready, ready_with, unready_with},
    requests::SMALL_BODY,
};

#[tokio::test]
async fn every_response_has_a_request_id() {
    let mesh = ready().await;
    let mut ids = std::collections::HashSet::new();
    for (method, path, body, status) in [
        ("POST", "/v1/systemone", SMALL_BODY, 200),
        ("POST", "/v1/systemone", "{", 400),
        ("POST", "/v1/elsewhere", "", 404),
        ("GET", "/v1/systemone", "", 405),
        ("DELETE", "/v1/models", "", 405),
        ("GET", "/v1/models", "", 200),
        ("GET", "/health", "", 200),
        ("GET", "/v1/health", "", 200),
        ("GET", "/livez", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/", "", 404),
    ] {
        let headers = [("content-type", "application/json")];
        let response = http::send(mesh.gateway.http_addr, method, path, &headers, body.as_bytes()).await;
        assert_eq!(response.status, status, "{method} {path}");
        let id = response.header("x-typesafe-request-id").unwrap();
        assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7);
        assert!(ids.insert(id.to_owned()), "ids are unique");
        if status >= 400 {
            assert!(response.json()["error"].is_string() && response.json()["detail"][0]["msg"].is_string());
        }
        if status == 405 {
            assert!(response.header("allow").is_some(), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_response_has_what_clients_need_and_more() {
    let mesh = ready().await;
    let body = mesh.post(SMALL_BODY).await.json();
    let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "model",
            "answers",
            "usage",
            "capability_fingerprint",
            "latency_ms",
            "x_timings"
        ]
    );
    let timings = &body["x_timings"];
    for key in ["total_ms", "tokenize_ms", "policy_ms", "queue_ms", "forward_ms"] {
        assert!(timings[key].is_number(), "{key}");
    }
    assert_eq!(timings["forward_ms"], json!(0.5));
    let kernel = json!({"family": "delta_rule", "backend": "cpu.chunked", "busy_ms": 0.3, "launches": 6});
    assert_eq!(timings["kernels"], json!([kernel]));
}

#[tokio::test]
async fn a_model_may_answer_as_its_familys_own_server_does() {
    let mesh = ready_with(|config| config.own_responses = ["mini".to_owned()].into()).await;
    let own = mesh.post(SMALL_BODY).await;
    assert_eq!(own.status, 200);
    let body = own.json();
    let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
    // StartLux: the contract and the latency, and nothing of ours.
    assert_eq!(keys, ["model", "answers", "usage", "latency_ms"]);
    assert!(body["latency_ms"].as_f64().unwrap() > 0.0);
    let other = ready().await.post(SMALL_BODY).await.json();
    assert_eq!(body["answers"], other["answers"]);
}

#[tokio::test]
async fn discovery_has_both_key_sets() {
    let mesh = ready().await;
    let body = mesh.get("/v1/models").await.json();
    assert_eq!(body["models"][0]["name"], "mini");
    assert_eq!(body["models"][0]["release_date"], "2026-10-01");
    assert!(body["models"][0]["description"].is_string());
    assert_eq!(body["object"], "list");
    assert_eq!(
        body["data"],
        json!([{"id": "mini", "object": "model", "created": 1_790_812_800, "owned_by": "deltagate"}])
    );
}

#[tokio::test]
async fn health_says_what_is_bound() {
    let mesh = ready().await;
    let response = mesh.get("/health").await;
    assert_eq!(response.status, 200);
    let body = response.json();
    assert_eq!(body["status"], "ok");
    assert_eq!(body["model"], "mini");
    assert_eq!(body["backend"], "cpu.chunked+cpu.conv1d+cpu.eager");
    assert_eq!(
        body["bindings"],
        json!({"delta_rule": "cpu.chunked", "conv1d": "cpu.conv1d", "norm": "cpu.eager"})
    );
    assert_eq!(body["fingerprint"], "fp-1");
    assert_eq!(body["reasons"], json!([]));
}

#[tokio::test]
async fn an_unready_gateway_lives() {
    let mesh = unready_with(|config| config.policy = "http://127.0.0.1:1".into()).await;
    mesh.unready().await;
    let reasons = mesh.get("/health").await.json()["reasons"].to_string();
    assert!(reasons.contains("POLICY_UNREACHABLE"), "{reasons}");
    assert_eq!(mesh.get("/v1/models").await.status, 503);
}
