//! Nothing runs without a permit of policy for this executor and this binding.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use deltagate_mesh::permit::Signer;
use deltagate_proto::v1;
use support::{Bench, fakes::Mode, permit, runner::Ending, sequence};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn refuses_every_permit_but_its_own() {
    let bench = Bench::ready().await;
    let instance = bench.handle.instance_id().to_owned();
    let fingerprint = bench.fingerprint();
    let minute = Duration::from_secs(60);
    let foreign = Signer::from_seed([9; 32]);
    let mut tampered = bench.permit();
    let mut claims = tampered.claims.to_vec();
    let last = claims.len() - 1;
    claims[last] ^= 1;
    tampered.claims = claims.into();

    let table = [
        ("none", None, "PERMIT_MISSING"),
        ("empty", Some(v1::SignedPermit::default()), "PERMIT_INVALID"),
        (
            "expired",
            Some(permit(&bench.signer, &instance, &fingerprint, Duration::ZERO)),
            "PERMIT_EXPIRED",
        ),
        (
            "foreign signer",
            Some(permit(&foreign, &instance, &fingerprint, minute)),
            "PERMIT_INVALID",
        ),
        ("tampered claims", Some(tampered), "PERMIT_INVALID"),
        (
            "other instance",
            Some(permit(&bench.signer, "another", &fingerprint, minute)),
            "PERMIT_INVALID",
        ),
        (
            "other binding",
            Some(permit(&bench.signer, &instance, "another", minute)),
            "FINGERPRINT_MISMATCH",
        ),
    ];
    for (name, permit, reason) in table {
        let request = v1::ForwardRequest {
            permit,
            ..bench.request(1, &[4])
        };
        let error = bench.forward(request).await.expect_err(name);
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::PermissionDenied, reason),
            "{name}"
        );
    }
    assert!(bench.script.ran_tokens().is_empty(), "nothing of this may run");
    bench.forward(bench.request(1, &[4])).await.unwrap();
    assert_eq!(bench.script.ran_tokens(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_for_another_binding_is_sent_back_for_a_new_permit() {
    let bench = Bench::ready().await;
    let stale = "fingerprint-of-yesterday";
    let request = v1::ForwardRequest {
        permit: Some(permit(
            &bench.signer,
            bench.handle.instance_id(),
            stale,
            Duration::from_secs(60),
        )),
        capability_fingerprint: stale.to_owned(),
        ..bench.request(1, &[4])
    };
    let error = bench.forward(request).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "FINGERPRINT_MISMATCH")
    );
    assert!(error.retry_after.is_some());
}

/// A stream that was accepted behind another one, with a permit that ran out since.
async fn queued_with_an_expired_permit(bench: &Bench) -> tonic::Streaming<v1::ForwardResponse> {
    bench.script.hold_device();
    let (client, request) = (bench.client.clone(), bench.request(1, &[4]));
    tokio::spawn(support::collect(client, request));
    support::eventually("the first runs", || bench.script.started() == 1).await;
    let short = permit(
        &bench.signer,
        bench.handle.instance_id(),
        &bench.fingerprint(),
        Duration::from_millis(300),
    );
    let request = v1::ForwardRequest {
        permit: Some(short),
        ..bench.request(2, &[4])
    };
    let mut stream = bench.client.clone().forward(request).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some(), "it is accepted");
    tokio::time::sleep(Duration::from_millis(400)).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_costs_nobody_the_place() {
    let bench = Bench::ready().await;
    let mut stream = queued_with_an_expired_permit(&bench).await;
    bench.script.let_go();
    assert!(stream.message().await.unwrap().is_some(), "the result");
    assert_eq!(bench.script.ran_tokens(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_policy_withdraws_in_the_queue_does_not_run() {
    let bench = Bench::ready().await;
    let mut stream = queued_with_an_expired_permit(&bench).await;
    bench.mesh.set_policy(Mode::Deny(vec!["by hand".to_owned()]));
    bench.wait_phase(v1::ExecutorPhase::AwaitingPolicy).await;
    bench.script.let_go();
    let error = deltagate_mesh::ServiceError::from(&stream.message().await.unwrap_err());
    assert_eq!(error.fact("stage"), Some("dispatch"));
    assert!(
        matches!(error.reason.as_ref(), "EXECUTOR_NOT_READY" | "POLICY_DENIED"),
        "{error:?}"
    );
    assert_eq!(bench.script.ran_tokens(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_bounds_the_plan() {
    let bench = Bench::ready().await;
    for (lengths, limit) in [(vec![501, 500], "1000"), (vec![1; 5], "4")] {
        let error = bench.forward(bench.request(1, &lengths)).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::PermissionDenied, "POLICY_DENIED")
        );
        assert_eq!(error.fact("limit"), Some(limit));
    }
    bench.forward(bench.request(1, &[500, 500])).await.unwrap();
    bench.forward(bench.request(1, &[1; 4])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_plan_are_named_and_not_run() {
    let bench = Bench::ready().await;
    let mut request = bench.request(1, &[4]);
    request.sequences = vec![sequence(1, 0), sequence(1, 601)];
    let error = bench.forward(request).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    let fields: Vec<_> = error
        .fields
        .iter()
        .map(|f| (f.field.as_str(), f.reason.as_ref()))
        .collect();
    let expected = [
        ("sequences[0].token_ids", "REQUIRED"),
        ("sequences[1].token_ids", "PROMPT_TOO_LONG"),
    ];
    assert_eq!(fields, expected);
    assert!(bench.script.ran_tokens().is_empty());
    assert_eq!(*bench.script.ending.lock(), Ending::Answers);
}
