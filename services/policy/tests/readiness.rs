//! Who may be ready: the matrix of the cpu bundle, and what the registry's silence does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;

use std::time::{Duration, Instant};

use deltagate_capability::CapabilityConfig;
use deltagate_mesh::{ServiceError, server::listen};
use deltagate_policy::{PolicyConfig, start};
use deltagate_proto::v1::{
    BindingState, CapabilitySnapshot, DecideReadinessRequest, ExecutorPhase, KernelFamily,
};
use fixture::{FAMILIES, Mesh, bound, rebind, serve_policy, serve_registry, snapshot};
use tokio_util::sync::CancellationToken;
use tonic::Code;

type Change = fn(&mut CapabilitySnapshot);

#[tokio::test]
async fn the_readiness_matrix_of_the_cpu_bundle() {
    use KernelFamily::{Attention, Conv1d, DeltaRule, Embed, Launch, Mlp, Norm};
    // What is changed in a good snapshot, and the reason that must then be given; none means allowed.
    let matrix: Vec<(&str, Change, Option<&str>)> = vec![
        ("bound", |_| {}, None),
        ("ready already", |s| s.set_phase(ExecutorPhase::Ready), None),
        (
            "another cpu backend",
            |s| rebind(s, DeltaRule, |b| *b = bound(DeltaRule, "cpu.recurrent")),
            None,
        ),
        (
            "missing",
            |s| rebind(s, Conv1d, |b| b.set_state(BindingState::Missing)),
            Some("kernel conv1d is missing"),
        ),
        (
            "probe failed",
            |s| rebind(s, DeltaRule, |b| b.set_state(BindingState::ProbeFailed)),
            Some("kernel delta_rule failed its probe"),
        ),
        (
            "unspecified",
            |s| rebind(s, Mlp, |b| b.set_state(BindingState::Unspecified)),
            Some("kernel mlp is not bound"),
        ),
        (
            "a state of the future",
            |s| rebind(s, Mlp, |b| b.state = 77),
            Some("kernel mlp is not bound"),
        ),
        (
            "reference",
            |s| rebind(s, DeltaRule, |b| *b = bound(DeltaRule, "reference")),
            Some("kernel delta_rule is not bound to a cpu backend"),
        ),
        (
            "unknown backend",
            |s| rebind(s, Embed, |b| *b = bound(Embed, "torch")),
            Some("kernel embed is not bound to a cpu backend"),
        ),
        (
            "claimed without a passed probe",
            |s| rebind(s, Attention, |b| b.candidates[0].passed = false),
            Some("kernel attention is bound without a passed probe"),
        ),
        (
            "claimed without any probe",
            |s| rebind(s, Attention, |b| b.candidates.clear()),
            Some("kernel attention is bound without a passed probe"),
        ),
        (
            "not reported",
            |s| s.bindings.retain(|b| b.family() != Launch),
            Some("kernel launch is not reported"),
        ),
        (
            "reported twice",
            |s| s.bindings.push(bound(Norm, "cpu")),
            Some("kernel norm is not bound"),
        ),
        (
            "a family of the future",
            |s| {
                s.bindings.push(deltagate_proto::v1::KernelBinding {
                    family: 99,
                    ..bound(Norm, "cpu")
                })
            },
            Some("not known to this bundle"),
        ),
        ("loading", |s| s.set_phase(ExecutorPhase::Loading), Some("phase")),
        (
            "draining",
            |s| s.set_phase(ExecutorPhase::Draining),
            Some("phase"),
        ),
        ("failed", |s| s.set_phase(ExecutorPhase::Failed), Some("phase")),
        (
            "no phase",
            |s| s.set_phase(ExecutorPhase::Unspecified),
            Some("phase"),
        ),
        (
            "a gpu",
            |s| s.device.as_mut().unwrap().kind = "cuda".to_owned(),
            Some("device is not a cpu"),
        ),
        ("no device", |s| s.device = None, Some("device is not a cpu")),
        ("no model", |s| s.model = None, Some("model is not loaded")),
    ];
    let mut mesh = Mesh::start("cpu").await;
    for (index, (name, change, reason)) in matrix.into_iter().enumerate() {
        let id = format!("exec-{index}");
        let mut snapshot = snapshot(&id, 1);
        change(&mut snapshot);
        mesh.report(snapshot).await;
        let unknown = "executor is not in the capability registry";
        let answer = mesh
            .settle(&id, "f00d", |a| {
                !a.reasons
                    .iter()
                    .any(|r| r == unknown || r.contains("no fresh view"))
            })
            .await;
        match reason {
            None => assert!(answer.allowed && answer.reasons.is_empty(), "{name}: {answer:?}"),
            Some(reason) => {
                assert!(!answer.allowed, "{name}");
                assert_eq!(answer.reasons.len(), 1, "{name}: {answer:?}");
                assert!(answer.reasons[0].contains(reason), "{name}: {answer:?}");
            }
        }
        assert!(
            !answer.decision_id.is_empty() && answer.bundle_revision.len() == 64,
            "{name}"
        );
        mesh.registry()
            .report(deltagate_proto::v1::ReportRequest {
                instance_id: id,
                leaving: true,
                ..Default::default()
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_gpu_bundle_refuses_the_cpu_family_by_family() {
    let mut mesh = Mesh::start("gpu").await;
    assert_eq!(mesh.health("").await, 1);
    mesh.report(snapshot("e", 1)).await;
    let answer = mesh.settle("e", "f00d", |a| a.reasons.len() > 1).await;
    assert!(!answer.allowed);
    for family in FAMILIES {
        let name = family
            .as_str_name()
            .trim_start_matches("KERNEL_FAMILY_")
            .to_lowercase();
        assert!(
            answer
                .reasons
                .iter()
                .any(|r| r.starts_with(&format!("kernel {name} is bound to a backend"))),
            "{name}"
        );
    }
    assert!(answer.reasons.iter().any(|r| r == "device is not a cuda device"));
}

#[tokio::test]
async fn only_the_registered_fingerprint_of_a_known_instance_is_judged() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
    for (instance, fingerprint, reason) in [
        ("e", "beef", "fingerprint is not the one"),
        ("e", "", "fingerprint is not the one"),
        ("other", "f00d", "not in the capability registry"),
    ] {
        let answer = mesh.decide(instance, fingerprint).await;
        assert!(
            !answer.allowed && answer.reasons[0].contains(reason),
            "{answer:?}"
        );
    }
    let mut anonymous = snapshot("nameless", 1);
    anonymous.fingerprint.clear();
    mesh.report(anonymous).await;
    let answer = mesh
        .settle("nameless", "", |a| !a.reasons[0].contains("not in the"))
        .await;
    assert!(!answer.allowed);
    let malformed = DecideReadinessRequest {
        instance_id: String::new(),
        ..Default::default()
    };
    let error = ServiceError::from(mesh.policy().decide_readiness(malformed).await.unwrap_err());
    assert_eq!(
        (error.code, error.fields[0].field.as_str()),
        (Code::InvalidArgument, "instance_id")
    );
}

#[tokio::test]
async fn an_executor_that_falls_silent_is_refused_within_its_lease() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    let last_beat = Instant::now();
    mesh.settle("e", "f00d", |a| a.allowed).await;
    mesh.settle("e", "f00d", |a| !a.allowed).await;
    assert!(
        last_beat.elapsed() < Duration::from_secs(2),
        "{:?}",
        last_beat.elapsed()
    );
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
}

#[tokio::test]
async fn a_lost_registry_means_no_and_a_new_one_heals_it() {
    let mut mesh = Mesh::start("cpu").await;
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
    let addr = mesh.registry.addr().to_string();
    mesh.registry.kill();
    let lost = Instant::now();
    mesh.settle("e", "f00d", |a| !a.allowed).await;
    assert!(lost.elapsed() < Duration::from_secs(2));

    tokio::time::sleep(Duration::from_millis(200)).await;
    mesh.registry = serve_registry(&addr, CapabilityConfig::default()).await;
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
}

#[tokio::test]
async fn without_a_registry_nobody_is_ready_yet_the_service_is_up() {
    // A port that nobody listens on.
    let nobody = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let endpoint = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let config = PolicyConfig {
        bundle: "cpu".to_owned(),
        capability: endpoint,
        ..Default::default()
    };
    let policy = serve_policy(config).await;
    let mut client =
        deltagate_proto::v1::policy_service_client::PolicyServiceClient::new(fixture::connect(&policy));
    let answer = fixture::decide(&mut client, "e", "f00d").await;
    assert!(!answer.allowed);
    assert_eq!(answer.reasons, ["no fresh view of the capability registry"]);
}

#[tokio::test]
async fn nonsense_is_refused_before_it_listens() {
    for (config, key) in [
        (
            PolicyConfig {
                renew_every: Duration::from_secs(2),
                ..Default::default()
            },
            "policy.renew_every",
        ),
        (
            PolicyConfig {
                bundle: " ".to_owned(),
                ..Default::default()
            },
            "policy.bundle",
        ),
        (
            PolicyConfig {
                capability: "nowhere".to_owned(),
                ..Default::default()
            },
            "policy.capability",
        ),
    ] {
        let error = start(config, None, CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
