//! Parts of the mesh die, hang, or say no: what a caller hears, how soon readiness follows, and that all heals.

use std::time::{Duration, Instant};

use deltagate_mesh::error::{Code, ServiceError};
use deltagate_proto::v1::{BindingState, ExecutorPhase};

use crate::support::{
    executor::Act,
    mesh::{Mesh, NOTICED, ready, ready_with, unready_with},
    requests::{SMALL_BODY, small},
    within,
};

/// Within two seconds requests are refused with this code and reason on both faces, and readiness is off.
async fn noticed(mesh: &Mesh, code: Code, reason: &str) -> ServiceError {
    let begun = Instant::now();
    let error = loop {
        match mesh.classify(small()).await {
            Err(error) if error.reason == reason => break error,
            _ if begun.elapsed() > NOTICED => {
                panic!("{reason} was not noticed: {:?}", mesh.classify(small()).await)
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert_eq!(error.code, code, "{error:?}");
    within(NOTICED.saturating_sub(begun.elapsed()), "not serving", || async {
        !mesh.serving().await
    })
    .await;
    let http = mesh.post(SMALL_BODY).await;
    assert_eq!(http.status, error.http_status().as_u16(), "{}", http.body);
    assert_eq!(http.json()["detail"][0]["type"], reason.to_ascii_lowercase());
    assert!(http.header("retry-after").is_some());
    let health = mesh.get("/health").await;
    assert_eq!(health.status, 503);
    let reasons = health.json()["reasons"].to_string();
    assert!(reasons.contains(reason), "{reasons}");
    error
}

async fn healed(mesh: &Mesh) {
    within(NOTICED, "healed", || mesh.serving()).await;
    mesh.classify(small()).await.unwrap();
    assert_eq!(mesh.post(SMALL_BODY).await.status, 200);
    assert_eq!(mesh.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn capability_killed_and_back() {
    let mut mesh = ready().await;
    let server = mesh.capability_server.take().unwrap();
    let addr = server.addr();
    server.kill();
    server.wait().await.unwrap();
    let error = noticed(&mesh, Code::Unavailable, "CAPABILITY_UNREACHABLE").await;
    assert!(error.retry_after.is_some());
    mesh.capability_server = Some(mesh.capability.serve(Some(addr)).await);
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_killed_and_back() {
    let mut mesh = ready().await;
    let server = mesh.policy_server.take().unwrap();
    let addr = server.addr();
    server.kill();
    server.wait().await.unwrap();
    noticed(&mesh, Code::Unavailable, "POLICY_UNREACHABLE").await;
    mesh.policy_server = Some(mesh.policy.serve(Some(addr)).await);
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executor_killed_and_back() {
    let mut mesh = ready().await;
    let server = mesh.executor_server.take().unwrap();
    let addr = server.addr();
    server.kill();
    server.wait().await.unwrap();
    // The registry still lists it: the gateway finds out itself, with the first call.
    noticed(&mesh, Code::Unavailable, "EXECUTOR_UNREACHABLE").await;
    mesh.executor_server = Some(mesh.executor.serve(Some(addr)).await);
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_notices_a_dead_executor_by_itself() {
    let mut mesh = ready().await;
    let server = mesh.executor_server.take().unwrap();
    server.kill();
    server.wait().await.unwrap();
    within(NOTICED, "not serving", || async { !mesh.serving().await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_dies_under_a_request_fails_it_at_once() {
    let mut mesh = ready().await;
    mesh.executor.then(Act::Hang);
    let server = mesh.executor_server.take().unwrap();
    let (result, ()) = tokio::join!(mesh.classify(small()), async {
        within(NOTICED, "dispatched", || async {
            !mesh.executor.calls().is_empty()
        })
        .await;
        server.kill();
    });
    let error = result.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_a_stale_view() {
    let mesh = ready().await;
    mesh.capability.shown.send_modify(|shown| shown.silent = true);
    noticed(&mesh, Code::Unavailable, "CAPABILITY_UNREACHABLE").await;
    mesh.capability.shown.send_modify(|shown| shown.silent = false);
    healed(&mesh).await;
    mesh.policy.change(|said| said.silent = true);
    noticed(&mesh, Code::Unavailable, "POLICY_UNREACHABLE").await;
    mesh.policy.change(|said| said.silent = false);
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_withdrawn_ends_readiness() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_millis(100)).await;
    mesh.policy.change(|said| said.permits.clear());
    noticed(&mesh, Code::Unavailable, "PERMIT_MISSING").await;
    mesh.permit("fp-1");
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_not_renewed_runs_out() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_millis(50)).await;
    // Valid for less than the margin from the start.
    mesh.policy
        .change(|said| said.valid_for = Duration::from_millis(50));
    noticed(&mesh, Code::Unavailable, "PERMIT_EXPIRED").await;
    mesh.policy
        .change(|said| said.valid_for = Duration::from_millis(1500));
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_policy_is_a_failed_precondition() {
    let mesh = ready().await;
    mesh.policy.change(|said| {
        said.permits.clear();
        said.refusals = [("executor-1".to_owned(), vec!["device is not listed".to_owned()])].into();
    });
    let error = noticed(&mesh, Code::FailedPrecondition, "POLICY_DENIED").await;
    assert_eq!(error.preconditions[0].subject, "executor/executor-1");
    assert!(error.message.contains("device is not listed"));
    mesh.policy.change(|said| said.refusals.clear());
    mesh.permit("fp-1");
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_another_binding_or_of_none_is_unavailable() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_millis(50)).await;
    mesh.policy.change(|said| {
        said.permits.clear();
        said.refusals = [("executor-1".to_owned(), vec!["no fresh view".to_owned()])].into();
        said.refused_fingerprint.clear();
    });
    noticed(&mesh, Code::Unavailable, "PERMIT_MISSING").await;
    mesh.policy
        .change(|said| said.refused_fingerprint = "fp-0".to_owned());
    noticed(&mesh, Code::Unavailable, "PERMIT_MISSING").await;
    mesh.policy.change(|said| said.refusals.clear());
    mesh.permit("fp-1");
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_not_bound_is_named() {
    let mesh = ready().await;
    mesh.capability.change(|snapshot| {
        snapshot.phase = ExecutorPhase::AwaitingPolicy.into();
        snapshot.bindings[1].state = BindingState::ProbeFailed.into();
    });
    mesh.policy.change(|said| {
        said.permits.clear();
        said.refusals = [("executor-1".to_owned(), vec!["conv1d is not bound".to_owned()])].into();
    });
    let error = noticed(&mesh, Code::FailedPrecondition, "KERNEL_NOT_BOUND").await;
    assert_eq!(
        (
            error.preconditions[0].kind.as_ref(),
            error.preconditions[0].subject.as_str()
        ),
        ("KERNEL_NOT_BOUND", "kernel/conv1d")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn phases_of_an_executor_have_their_reasons() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_millis(50)).await;
    for (phase, reason) in [
        (ExecutorPhase::Loading, "LOADING"),
        (ExecutorPhase::AwaitingPolicy, "EXECUTOR_NOT_READY"),
        (ExecutorPhase::Draining, "DRAINING"),
        (ExecutorPhase::Failed, "EXECUTOR_NOT_READY"),
        (ExecutorPhase::Unspecified, "EXECUTOR_NOT_READY"),
    ] {
        mesh.capability.change(|snapshot| snapshot.phase = phase.into());
        noticed(&mesh, Code::Unavailable, reason).await;
    }
    mesh.capability
        .change(|snapshot| snapshot.phase = ExecutorPhase::Ready.into());
    healed(&mesh).await;
    mesh.capability.shown.send_modify(|shown| shown.snapshots.clear());
    noticed(&mesh, Code::Unavailable, "NO_EXECUTOR").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ready_by_accident() {
    let mesh = unready_with(|config| config.swap_wait = Duration::from_millis(50)).await;
    mesh.unready().await;
    noticed(&mesh, Code::Unavailable, "PERMIT_MISSING").await;
    // Policy without a bundle counts for nothing, whatever it permits.
    mesh.permit("fp-1");
    within(NOTICED, "ready", || mesh.serving()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_with_another_digest_is_not_used() {
    let mesh = unready_with(|_| {}).await;
    mesh.permit("fp-1");
    *mesh.executor.announced_sha.lock() = Some("00".repeat(32));
    // The first load may have been faster than this line: another model makes it load again.
    mesh.capability
        .change(|snapshot| snapshot.model.as_mut().unwrap().digest = "other".into());
    noticed(&mesh, Code::Unavailable, "LOADING").await;
    *mesh.executor.announced_sha.lock() = None;
    mesh.capability
        .change(|snapshot| snapshot.model.as_mut().unwrap().digest = "model-digest".into());
    healed(&mesh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_executor_takes_over() {
    let mesh = ready().await;
    let second = crate::support::executor::FakeExecutor::new("fp-1");
    let server = second.serve(None).await;
    mesh.capability.shown.send_modify(|shown| {
        let mut snapshot = shown.snapshots[0].clone();
        snapshot.instance_id = "executor-2".into();
        snapshot.endpoint = server.endpoint();
        shown.snapshots.push(snapshot);
    });
    mesh.policy.change(|said| {
        said.permits.insert("executor-2".into(), "fp-1".into());
    });
    // The first one leaves: its calls go to the second, and no caller notices.
    within(NOTICED, "the second is used", || async {
        mesh.executor
            .then(Act::Refuse(ServiceError::unavailable("DRAINING", "leaving")));
        let answered = mesh.classify(small()).await.is_ok();
        mesh.executor.script.lock().clear();
        answered && !second.calls().is_empty()
    })
    .await;
}
