//! A mesh that must not serve: policy says no, or a kernel is not there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use anyhow::ensure;
use deltagate_proto::v1::{BindingState, ExecutorPhase, KernelFamily};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, READY_WITHIN, Service},
    http,
    ports::url,
    process::eventually,
    requests::small,
};
use tonic::Code;
use tonic_types::StatusExt;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

#[tokio::test(flavor = "multi_thread")]
async fn the_default_policy_refuses_the_cpu_and_names_the_kernels() {
    let cluster = Cluster::new(BINARY).unwrap();
    let mut up = cluster.up(&["--require-ready", "12s"]).unwrap();
    let ports = &cluster.ports;

    // Everything is bound, and policy says no.
    let (snapshot, _) = eventually(Duration::from_secs(10), || async {
        let snapshot = calls::snapshot(ports.capability).await?;
        ensure!(
            snapshot.reasons.iter().any(|r| r.starts_with("POLICY_DENIED")),
            "{:?}",
            snapshot.reasons
        );
        Ok(snapshot)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()));
    assert_eq!(snapshot.phase(), ExecutorPhase::AwaitingPolicy);
    assert_eq!(
        snapshot
            .bindings
            .iter()
            .filter(|b| b.state() == BindingState::Bound)
            .count(),
        10
    );
    let told = snapshot.reasons.join("\n");
    for kernel in ["conv1d", "delta_rule"] {
        assert!(told.contains(kernel), "the reasons do not name {kernel}: {told}");
    }
    assert!(
        !calls::service_serving(ports.executor, Service::Executor)
            .await
            .unwrap()
    );
    assert!(
        !calls::service_serving(ports.gateway, Service::Gateway)
            .await
            .unwrap()
    );
    assert!(
        calls::service_serving(ports.policy, Service::Policy)
            .await
            .unwrap()
    );

    let status = calls::classify(ports.gateway, small("I was charged twice."))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::FailedPrecondition, "POLICY_DENIED"),
        "{status:?}"
    );
    assert!(status.message().contains("delta_rule"), "{}", status.message());
    assert!(
        status
            .get_details_precondition_failure()
            .is_some_and(|p| !p.violations.is_empty())
    );
    let refusal = calls::permit(ports.policy, &snapshot.instance_id, &snapshot.fingerprint)
        .await
        .unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    let health = http::get(&format!("{}/health", url(ports.http))).await.unwrap();
    assert_eq!(health.status, 503);
    assert!(health.body.to_string().contains("delta_rule"), "{}", health.body);

    // `up --require-ready` gives up with exit code 3 and the same reasons.
    assert_eq!(up.wait(Duration::from_secs(40)).await.unwrap(), Some(3));
    let log = cluster.logs();
    assert!(
        log.lines()
            .any(|l| l.starts_with("deltagate: ") && l.contains("delta_rule")),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_not_there_is_reported_and_nothing_takes_its_place() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("executor.kernels.conv1d", "causal_conv1d");
    let _up = cluster.up(&["--cpu"]).unwrap();
    let ports = &cluster.ports;
    let (snapshot, _) = eventually(READY_WITHIN, || async {
        let snapshot = calls::snapshot(ports.capability).await?;
        ensure!(!snapshot.bindings.is_empty(), "{:?}", snapshot.reasons);
        Ok(snapshot)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()));
    let conv1d = calls::binding(&snapshot, KernelFamily::Conv1d).unwrap();
    assert_eq!(
        (conv1d.state(), conv1d.backend.as_str()),
        (BindingState::Missing, ""),
        "{conv1d:?}"
    );
    assert!(
        snapshot.reasons.iter().any(|r| r.contains("conv1d")),
        "{:?}",
        snapshot.reasons
    );

    let (status, _) = eventually(Duration::from_secs(3), || async {
        let status = calls::classify(ports.gateway, small("I was charged twice."))
            .await
            .err();
        let status = status.ok_or_else(|| anyhow::anyhow!("answered without a conv1d kernel"))?;
        ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
        Ok(status)
    })
    .await
    .unwrap();
    assert_eq!(reason(&status), "KERNEL_NOT_BOUND", "{status:?}");
    assert!(
        !calls::serving(ports.executor, "deltagate.kernel.conv1d")
            .await
            .unwrap()
    );
    assert!(
        calls::serving(ports.executor, "deltagate.kernel.delta_rule")
            .await
            .unwrap()
    );
    assert!(
        !calls::service_serving(ports.gateway, Service::Gateway)
            .await
            .unwrap()
    );
}
