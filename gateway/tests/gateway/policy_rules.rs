//! Request rules of the bundle, evaluated in the gateway.

use std::time::Duration;

use deltagate_mesh::error::{Code, ServiceError};
use deltagate_policy::{Bundle, BundleSource};

use crate::support::{
    mesh::{Mesh, NOTICED, ready},
    requests::{SMALL_BODY, all_types, ask, bundle, choice, open_bundle, small},
    within,
};

async fn with_rules(mesh: &Mesh, rules: &str) {
    mesh.policy.change(|said| said.bundle = Some(bundle(rules)));
    // A bundle and the permits under it come in one message.
    tokio::time::sleep(Duration::from_millis(200)).await;
    within(NOTICED, "ready", || mesh.serving()).await;
}

async fn denied(mesh: &Mesh, request: deltagate_proto::v1::ClassifyRequest, reason: &str) -> ServiceError {
    let error = mesh.classify(request).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::PermissionDenied, "POLICY_DENIED"),
        "{error:?}"
    );
    assert!(error.message.contains(reason), "{error:?}");
    error
}

#[tokio::test]
async fn the_shape_is_shown_to_the_rules() {
    let mesh = ready().await;
    let facts = r#"
decision := {"allow": count(reasons) == 0, "reasons": sort(reasons)}
reasons contains sprintf("%v", [input]) if input.questions != 0
"#;
    with_rules(&mesh, facts).await;
    let error = mesh.classify(all_types()).await.unwrap_err();
    for fact in [
        r#""caller": "anonymous""#,
        r#""model": "mini""#,
        r#""questions": 3"#,
        r#""kinds": {"choice": 1, "noul": 1, "score": 1}"#,
        r#""sequences": 3"#,
    ] {
        assert!(error.message.contains(fact), "{fact} in {}", error.message);
    }
    assert!(!error.message.contains("ticket"), "no text");
    assert!(mesh.executor.calls().is_empty());
}

#[tokio::test]
async fn a_refused_request_is_permission_denied_on_both_faces() {
    let mesh = ready().await;
    let rules = r#"
decision := {"allow": count(reasons) == 0, "reasons": sort(reasons)}
reasons contains "too many questions" if input.questions > 1
"#;
    with_rules(&mesh, rules).await;
    let two = ask(vec![choice("a", &["x", "y"]), choice("b", &["x", "y"])]);
    let error = denied(&mesh, two, "too many questions").await;
    assert_eq!(
        error.fact("bundle_revision"),
        Some(bundle(rules).revision.as_str())
    );
    mesh.classify(small()).await.unwrap();
    let body = SMALL_BODY.replace(r#""questions":{"#, r#""questions":{"p":{"type":"noul"},"#);
    let http = mesh.post(&body).await;
    assert_eq!(
        (http.status, http.json()["detail"][0]["type"].as_str()),
        (403, Some("policy_denied"))
    );
    assert_eq!(mesh.executor.calls().len(), 1);
}

#[tokio::test]
async fn rules_that_decide_nothing_or_fail_deny() {
    let mesh = ready().await;
    for rules in [
        "decision := 1 if input.questions == 7",
        r#"decision := {"allow": "yes", "reasons": []}"#,
        r#"decision := {"allow": to_number(input.model) == 1, "reasons": []} if input.model"#,
    ] {
        with_rules(&mesh, rules).await;
        denied(&mesh, small(), "policy").await;
    }
}

#[tokio::test]
async fn a_bundle_that_is_not_its_revision_refuses_everything() {
    let mesh = ready().await;
    let mut other = open_bundle();
    other.data_json = r#"{"changed": true}"#.into();
    other.revision = "00".repeat(32);
    mesh.policy.change(|said| said.bundle = Some(other));
    within(NOTICED, "not serving", || async { !mesh.serving().await }).await;
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::FailedPrecondition, "POLICY_DENIED")
    );
    mesh.policy.change(|said| said.bundle = Some(open_bundle()));
    within(NOTICED, "healed", || mesh.serving()).await;
}

#[tokio::test]
async fn policy_without_a_bundle_refuses_everything() {
    let mesh = ready().await;
    mesh.policy.change(|said| said.bundle = None);
    // The watch that has seen a bundle goes on with it; a new watch has none.
    mesh.policy_server.as_ref().unwrap().kill();
    let addr = mesh.policy_server.as_ref().unwrap().addr();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _again = mesh.policy.serve(Some(addr)).await;
    within(NOTICED, "not serving", || async { !mesh.serving().await }).await;
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition, "{error:?}");
}

#[tokio::test]
async fn the_shipped_cpu_bundle_lets_requests_pass() {
    let mesh = ready().await;
    let shipped = Bundle::load(&BundleSource::Cpu).unwrap();
    mesh.policy
        .change(|said| said.bundle = Some(shipped.wire().clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    within(NOTICED, "ready", || mesh.serving()).await;
    let response = mesh.classify(all_types()).await.unwrap();
    let policy = Duration::try_from(response.timings.unwrap().policy.unwrap()).unwrap();
    println!("policy took {policy:?}");
}
