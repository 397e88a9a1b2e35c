//! Swapping a backend under load is a line in the configuration: no request fails, none is mixed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::ensure;
use deltagate_proto::v1::{CapabilitySnapshot, ExecutorPhase, KernelFamily};
use deltagate_tests::{
    calls,
    cluster::{Cluster, READY_WITHIN},
    process::eventually,
    requests::{as_systemone, largest_difference, ticket},
    traffic::Traffic,
};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Replaces the file at once, as an editor or a deployment does.
fn write(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, file).unwrap();
}

fn preferring(backend: &str) -> String {
    format!("[executor.kernels]\ndelta_rule = \"{backend}\"\n")
}

async fn bound_to(cluster: &Cluster, backend: &str) -> (CapabilitySnapshot, Duration) {
    let wait = eventually(READY_WITHIN, || async {
        let snapshot = calls::snapshot(cluster.ports.capability).await?;
        let now = calls::backend(&snapshot, KernelFamily::DeltaRule).to_owned();
        ensure!(
            now == backend && snapshot.phase() == ExecutorPhase::Ready,
            "{now}, {:?}",
            snapshot.phase()
        );
        Ok(snapshot)
    });
    wait.await.unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()))
}

async fn requests(traffic: &Traffic, more: usize) {
    let wanted = traffic.done() + more;
    let wait = eventually(Duration::from_secs(120), || async {
        ensure!(traffic.done() >= wanted, "{} of {wanted}", traffic.done());
        Ok(())
    });
    wait.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_is_swapped_under_load_without_a_failed_or_mixed_request() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    let file = cluster.path("deltagate.toml");
    write(&file, &preferring("cpu.chunked"));
    cluster.config(&file);
    let _up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();

    let mut backends: BTreeMap<String, String> = BTreeMap::new();
    let (chunked, _) = bound_to(&cluster, "cpu.chunked").await;
    backends.insert(chunked.fingerprint.clone(), "cpu.chunked".to_owned());
    let traffic = Traffic::start(cluster.ports.gateway, 4, Duration::ZERO, &ticket()).unwrap();
    requests(&traffic, 50).await;

    let changed = Instant::now();
    write(&file, &preferring("cpu.recurrent"));
    let (recurrent, _) = bound_to(&cluster, "cpu.recurrent").await;
    println!(
        "cpu.chunked -> cpu.recurrent: READY in the registry after {:?}",
        changed.elapsed()
    );
    assert_ne!(
        recurrent.fingerprint, chunked.fingerprint,
        "another binding, the same fingerprint"
    );
    assert_eq!(
        recurrent.instance_id, chunked.instance_id,
        "the executor was restarted"
    );
    assert!(recurrent.revision > chunked.revision);
    backends.insert(recurrent.fingerprint.clone(), "cpu.recurrent".to_owned());
    requests(&traffic, 50).await;

    let changed = Instant::now();
    write(&file, &preferring("cpu.chunked"));
    let (back, _) = bound_to(&cluster, "cpu.chunked").await;
    println!(
        "cpu.recurrent -> cpu.chunked: READY in the registry after {:?}",
        changed.elapsed()
    );
    assert_eq!(
        back.fingerprint, chunked.fingerprint,
        "the same binding, another fingerprint"
    );
    requests(&traffic, 100).await;
    let samples = traffic.end().await.unwrap();

    assert!(samples.len() >= 200, "{} requests", samples.len());
    let failed: Vec<_> = samples.iter().filter_map(|s| s.result.as_ref().err()).collect();
    assert!(
        failed.is_empty(),
        "{} of {} failed: {:?}",
        failed.len(),
        samples.len(),
        failed.first()
    );

    // Each answer names one binding, and every kernel that ran for it is of that binding.
    let mut by_backend: BTreeMap<&str, usize> = BTreeMap::new();
    let mut first_answers: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    for response in samples.iter().filter_map(|s| s.result.as_ref().ok()) {
        let backend = backends
            .get(&response.capability_fingerprint)
            .expect("an unknown fingerprint")
            .as_str();
        let kernels = &response.timings.as_ref().unwrap().kernels;
        let ran: Vec<_> = kernels
            .iter()
            .filter(|k| k.family() == KernelFamily::DeltaRule)
            .map(|k| k.backend.as_str())
            .collect();
        assert_eq!(ran, [backend], "mixed under {}", response.capability_fingerprint);
        *by_backend.entry(backend).or_default() += 1;
        let answers = as_systemone(&response.answers);
        let first = first_answers.entry(backend).or_insert_with(|| answers.clone());
        assert_eq!(*first, answers, "{backend} does not repeat itself");
    }
    println!(
        "{} requests: {by_backend:?}; slowest {:?}",
        samples.len(),
        samples.iter().map(|s| s.took).max()
    );
    assert_eq!(by_backend.len(), 2, "{by_backend:?}");
    let difference =
        largest_difference(&first_answers["cpu.chunked"], &first_answers["cpu.recurrent"]).unwrap();
    println!("largest difference between the backends: {difference:e}");
    assert!(difference <= 1e-3, "{difference}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_reload_keeps_what_is_bound_and_says_so() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    let file = cluster.path("deltagate.toml");
    write(&file, &preferring("cpu.recurrent"));
    cluster.config(&file);
    let _up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    let (before, _) = bound_to(&cluster, "cpu.recurrent").await;
    let traffic = Traffic::start(cluster.ports.gateway, 1, Duration::from_millis(20), &ticket()).unwrap();
    requests(&traffic, 5).await;

    // A backend that does not exist.
    write(&file, &preferring("cpu.nonsense"));
    let told = eventually(Duration::from_secs(10), || async {
        let snapshot = calls::snapshot(cluster.ports.capability).await?;
        let binding = calls::binding(&snapshot, KernelFamily::DeltaRule)
            .cloned()
            .unwrap_or_default();
        let candidate = binding
            .candidates
            .iter()
            .find(|c| c.backend == "cpu.nonsense")
            .cloned();
        ensure!(candidate.is_some(), "{binding:?}");
        Ok((snapshot, candidate.unwrap_or_default()))
    });
    let ((after, candidate), took) = told.await.unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()));
    println!(
        "the report names the bad candidate after {took:?}: {}",
        candidate.reason
    );
    assert!(!candidate.passed && !candidate.reason.is_empty(), "{candidate:?}");
    assert_eq!(calls::backend(&after, KernelFamily::DeltaRule), "cpu.recurrent");
    assert_eq!(after.fingerprint, before.fingerprint);
    requests(&traffic, 10).await;

    // A key that does not exist, and a file that is no TOML.
    for broken in [
        "[executor.kernels]\ndelta_rul = \"cpu.chunked\"\n",
        "[executor.kernels\n",
    ] {
        write(&file, broken);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        requests(&traffic, 5).await;
        let snapshot = calls::snapshot(cluster.ports.capability).await.unwrap();
        assert_eq!(
            (snapshot.phase(), &snapshot.fingerprint),
            (ExecutorPhase::Ready, &before.fingerprint)
        );
    }
    assert!(
        cluster.logs().contains("delta_rul"),
        "the log does not name the unknown key"
    );

    // And a good one still works.
    write(&file, &preferring("cpu.chunked"));
    bound_to(&cluster, "cpu.chunked").await;
    requests(&traffic, 5).await;
    let samples = traffic.end().await.unwrap();
    let failed: Vec<_> = samples.iter().filter_map(|s| s.result.as_ref().err()).collect();
    assert!(
        failed.is_empty(),
        "{} of {} failed: {:?}",
        failed.len(),
        samples.len(),
        failed.first()
    );
}
