//! Permits: who gets one, that it verifies, and that it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;

use std::time::{Duration, Instant, SystemTime};

use deltagate_mesh::{
    ServiceError,
    permit::{KeyRing, PermitError, verify},
};
use deltagate_policy::{BundleEvaluator, KindCounts, PolicyConfig, RequestFacts};
use deltagate_proto::v1::{BindingState, ExecutorPhase, IssuePermitRequest, KernelFamily};
use fixture::{Mesh, rebind, snapshot, until};
use tonic::Code;

#[tokio::test]
async fn watch_sends_the_bundle_first_and_permits_that_verify_and_are_renewed() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    let keys = mesh.settle("e", "f00d", |a| a.allowed).await.keys;
    let keys = KeyRing::new(&keys);
    let mut updates = mesh.watch("gw-1").await;

    let first = updates.message().await.unwrap().unwrap();
    let bundle = first.bundle.expect("the bundle comes first");
    assert_eq!(bundle.name, "cpu");
    let mut evaluator = BundleEvaluator::verified(&bundle).unwrap();
    let facts = RequestFacts {
        caller: "anonymous",
        model: "deltagate-mini",
        questions: 1,
        kinds: KindCounts {
            choice: 1,
            ..Default::default()
        },
        tokens: 136,
        sequences: None,
    };
    assert!(evaluator.request(&facts).allow);
    // A choice of one option is answered without a pass.
    assert!(
        evaluator
            .request(&RequestFacts {
                tokens: 0,
                sequences: Some(0),
                ..facts
            })
            .allow
    );
    assert!(
        !evaluator
            .request(&RequestFacts {
                questions: 2,
                ..facts
            })
            .allow
    );

    let [permit] = &first.permits[..] else {
        panic!("{:?}", first.permits)
    };
    assert_eq!(
        (
            permit.instance_id.as_str(),
            permit.capability_fingerprint.as_str()
        ),
        ("e", "f00d")
    );
    let signed = permit.permit.as_ref();
    let now = SystemTime::now();
    let claims = verify(signed, &keys, "e", "f00d", now).unwrap();
    assert_eq!(
        (claims.gateway_id.as_str(), claims.bundle_revision.as_str()),
        ("gw-1", bundle.revision.as_str())
    );
    assert!(claims.max_plan_tokens > 0 && claims.max_plan_sequences > 0);
    assert_eq!(
        verify(signed, &keys, "e", "f00d", now + Duration::from_millis(1600)).unwrap_err(),
        PermitError::Expired
    );
    assert_eq!(
        verify(signed, &keys, "e", "beef", now).unwrap_err(),
        PermitError::WrongFingerprint
    );

    // Renewed well before it ends, without the bundle again.
    for _ in 0..3 {
        let begun = Instant::now();
        mesh.beat("e").await;
        let renewed = updates.message().await.unwrap().unwrap();
        assert!(
            begun.elapsed() < Duration::from_millis(800),
            "{:?}",
            begun.elapsed()
        );
        assert!(renewed.bundle.is_none());
        let claims = verify(
            renewed.permits[0].permit.as_ref(),
            &keys,
            "e",
            "f00d",
            SystemTime::now(),
        )
        .unwrap();
        let expires = deltagate_mesh::wire::system_time(claims.expires_at.as_ref()).unwrap();
        assert!(expires.duration_since(SystemTime::now()).unwrap() > Duration::from_millis(1200));
    }
}

#[tokio::test]
async fn a_change_is_pushed_at_once_and_a_refusal_says_why() {
    // Renewals alone would take longer than this test allows.
    let config = PolicyConfig {
        bundle: "cpu".to_owned(),
        renew_every: Duration::from_secs(20),
        permit_valid: Duration::from_secs(30),
        ..Default::default()
    };
    let mut mesh = Mesh::with(config).await;
    let mut updates = mesh.watch("gw-1").await;
    assert!(updates.message().await.unwrap().unwrap().permits.is_empty());

    mesh.report(snapshot("e", 1)).await;
    let allowed = until(&mut updates, |u| !u.permits.is_empty()).await;
    assert!(allowed.refusals.is_empty());

    let mut broken = snapshot("e", 1);
    rebind(&mut broken, KernelFamily::DeltaRule, |b| {
        b.set_state(BindingState::ProbeFailed)
    });
    broken.fingerprint = "beef".to_owned();
    mesh.report(broken).await;
    let refused = until(&mut updates, |u| !u.refusals.is_empty()).await;
    assert!(refused.permits.is_empty(), "permits replace all earlier ones");
    assert_eq!(refused.refusals[0].instance_id, "e");
    assert_eq!(refused.refusals[0].capability_fingerprint, "beef");
    assert_eq!(
        refused.refusals[0].reasons,
        ["kernel delta_rule failed its probe"]
    );

    // A swap that works: a permit for the new binding, none for the old.
    let mut swapped = snapshot("e", 1);
    swapped.fingerprint = "cafe".to_owned();
    swapped.set_phase(ExecutorPhase::Ready);
    mesh.report(swapped).await;
    let again = until(&mut updates, |u| !u.permits.is_empty()).await;
    assert_eq!(again.permits.len(), 1);
    assert_eq!(again.permits[0].capability_fingerprint, "cafe");
}

#[tokio::test]
async fn issue_permit_follows_the_same_rules() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    let keys = mesh.settle("e", "f00d", |a| a.allowed).await.keys;
    let ask = |gateway: &str, instance: &str, fingerprint: &str| IssuePermitRequest {
        gateway_id: gateway.to_owned(),
        instance_id: instance.to_owned(),
        capability_fingerprint: fingerprint.to_owned(),
    };
    let issued = mesh
        .policy()
        .issue_permit(ask("gw", "e", "f00d"))
        .await
        .unwrap()
        .into_inner();
    verify(
        issued.permit.as_ref(),
        &KeyRing::new(&keys),
        "e",
        "f00d",
        SystemTime::now(),
    )
    .unwrap();
    for (instance, fingerprint) in [("e", "beef"), ("x", "f00d")] {
        let status = mesh
            .policy()
            .issue_permit(ask("gw", instance, fingerprint))
            .await
            .unwrap_err();
        let error = ServiceError::from(status);
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::FailedPrecondition, "POLICY_DENIED")
        );
        assert_eq!(error.preconditions[0].subject, format!("executor/{instance}"));
        assert!(error.fact("decision_id").is_some());
    }
    let error = ServiceError::from(
        mesh.policy()
            .issue_permit(ask("", "e", "f00d"))
            .await
            .unwrap_err(),
    );
    assert_eq!(error.code, Code::InvalidArgument);
}

#[tokio::test]
async fn permits_of_an_earlier_process_do_not_verify() {
    let mut first = Mesh::start("cpu").await;
    first.report(snapshot("e", 1)).await;
    let old = first.settle("e", "f00d", |a| a.allowed).await.keys;
    let second = Mesh::start("cpu").await;
    let mut second = second;
    second.report(snapshot("e", 1)).await;
    let new = second.settle("e", "f00d", |a| a.allowed).await.keys;
    assert_ne!(old, new);
    let update = until(&mut first.watch("gw").await, |u| !u.permits.is_empty()).await;
    let permit = update.permits[0].permit.as_ref();
    let now = SystemTime::now();
    assert!(verify(permit, &KeyRing::new(&old), "e", "f00d", now).is_ok());
    assert_eq!(
        verify(permit, &KeyRing::new(&new), "e", "f00d", now).unwrap_err(),
        PermitError::UnknownKey
    );
}

#[tokio::test]
async fn a_lost_registry_takes_the_permits_away() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
    let mut updates = mesh.watch("gw").await;
    until(&mut updates, |u| !u.permits.is_empty()).await;
    mesh.registry.kill();
    let gone = until(&mut updates, |u| u.permits.is_empty()).await;
    assert_eq!(gone.refusals[0].instance_id, "e");
    assert_eq!(
        gone.refusals[0].capability_fingerprint, "",
        "policy does not know it any more"
    );
}
