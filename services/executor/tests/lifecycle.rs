//! When an executor is ready, what takes that away, and that it comes back by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use deltagate_executor::{EXIT_DEVICE_LOST, EXIT_LOAD_FAILED, SERVICE_ENTRY};
use deltagate_kernels_api::KernelFamily;
use deltagate_proto::v1::{self, BindingState, ExecutorPhase};
use support::{
    Bench, collect, config, eventually,
    fakes::Mode,
    runner::{Ending, Script},
};
use tonic::Code;

const DELTA_RULE: &str = "deltagate.kernel.delta_rule";

#[tokio::test(flavor = "multi_thread")]
async fn is_alive_but_nothing_is_serving_while_it_loads() {
    let script = Script::default();
    script.hold_loading();
    let bench = Bench::with(config(), script, None).await;
    bench.mesh.set_policy(Mode::Deny(vec!["not yet".to_owned()]));
    let described = bench
        .client
        .clone()
        .describe(v1::DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    let snapshot = described.snapshot.unwrap();
    assert_eq!(
        (snapshot.phase(), &snapshot.reasons[..]),
        (ExecutorPhase::Loading, &["LOADING".to_owned()][..])
    );
    assert_eq!(described.model_card_json, "");
    for entry in ["", SERVICE_ENTRY, DELTA_RULE] {
        assert!(!bench.serving(entry).await, "`{entry}` is serving while loading");
    }
    let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "LOADING")
    );

    bench.script.let_go();
    bench.wait_serving(DELTA_RULE, true).await;
    assert!(!bench.serving("").await, "bound is not ready");
    assert!(!bench.serving(SERVICE_ENTRY).await);
    bench.mesh.set_policy(Mode::Allow);
    bench.wait_phase(ExecutorPhase::Ready).await;
    bench.wait_serving("", true).await;
    bench.wait_serving(SERVICE_ENTRY, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_snapshot_says_what_is_bound() {
    let bench = Bench::ready().await;
    let snapshot = bench.wait_phase(ExecutorPhase::Ready).await;
    assert!(snapshot.reasons.is_empty());
    assert_eq!(snapshot.endpoint, bench.handle.endpoint());
    assert_eq!(snapshot.fingerprint, "fingerprint-first");
    assert_eq!(snapshot.bindings.len(), KernelFamily::ALL.len());
    assert_eq!(snapshot.device.as_ref().unwrap().kind, "cpu");
    eventually("the registry has it", || {
        bench.mesh.state.registered.lock().as_ref() == Some(&*snapshot)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_of_policy_is_a_no_until_it_is_a_yes() {
    let bench = Bench::ready().await;
    bench
        .mesh
        .set_policy(Mode::Deny(vec!["device is not listed".to_owned()]));
    let snapshot = bench.wait_phase(ExecutorPhase::AwaitingPolicy).await;
    assert_eq!(
        snapshot.reasons,
        ["EXECUTOR_NOT_READY: device is not listed"],
        "it may be a moment's no"
    );
    let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "EXECUTOR_NOT_READY")
    );
    let snapshots = bench.handle.snapshots();
    eventually("the no lasts", || {
        snapshots.borrow().reasons == ["POLICY_DENIED: device is not listed"]
    })
    .await;
    let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::FailedPrecondition, "POLICY_DENIED")
    );
    assert_eq!(error.preconditions[0].kind, "POLICY_DENIED");
    bench.wait_serving("", false).await;
    assert!(
        bench.serving(DELTA_RULE).await,
        "the kernel is bound all the same"
    );
    bench.mesh.set_policy(Mode::Allow);
    bench.wait_phase(ExecutorPhase::Ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_policy_takes_readiness_away_within_two_seconds() {
    for mode in [Mode::Hang, Mode::Unavailable] {
        let bench = Bench::ready().await;
        bench.wait_serving("", true).await;
        bench.mesh.set_policy(mode);
        let snapshot = bench.wait_phase(ExecutorPhase::AwaitingPolicy).await;
        assert_eq!(snapshot.reasons, ["POLICY_UNREACHABLE"]);
        bench.wait_serving("", false).await;
        let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::Unavailable, "POLICY_UNREACHABLE")
        );
        bench.mesh.set_policy(Mode::Allow);
        bench.wait_phase(ExecutorPhase::Ready).await;
        bench.forward(bench.request(1, &[4])).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_registry_takes_readiness_away_and_a_new_one_gives_it_back() {
    let mut bench = Bench::ready().await;
    bench.mesh.kill_capability().await;
    let snapshots = bench.handle.snapshots();
    let unreachable = "CAPABILITY_UNREACHABLE".to_owned();
    eventually("it says why", || {
        snapshots.borrow().reasons.contains(&unreachable)
    })
    .await;
    assert_eq!(snapshots.borrow().phase(), ExecutorPhase::AwaitingPolicy);
    bench.wait_serving("", false).await;
    bench.mesh.revive_capability().await;
    bench.wait_phase(ExecutorPhase::Ready).await;
    let registered = bench.mesh.state.registered.lock().clone();
    assert_eq!(
        registered.unwrap().instance_id,
        bench.handle.instance_id(),
        "the new registry has the snapshot"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_not_believed_longer_than_it_says() {
    let bench = Bench::ready().await;
    *bench.mesh.state.valid_for.lock() = Duration::ZERO;
    let snapshot = bench.wait_phase(ExecutorPhase::AwaitingPolicy).await;
    assert_eq!(snapshot.reasons, ["POLICY_UNREACHABLE"]);
    // Nor for longer than the executor is told to believe anything.
    *bench.mesh.state.valid_for.lock() = Duration::from_secs(3_600);
    bench.wait_phase(ExecutorPhase::Ready).await;
    bench.mesh.set_policy(Mode::Hang);
    bench.wait_phase(ExecutorPhase::AwaitingPolicy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_not_bound_is_named_and_not_put_to_policy() {
    let script = Script::default();
    script.unbound.lock().push(KernelFamily::DeltaRule);
    let bench = Bench::with(config(), script, None).await;
    let mut snapshots = bench.handle.snapshots();
    let reasons = ["KERNEL_NOT_BOUND: delta_rule has no candidate".to_owned()];
    let waited = tokio::time::timeout(
        Duration::from_secs(2),
        snapshots.wait_for(|s| s.reasons == reasons),
    )
    .await;
    let snapshot = waited.expect("within 2 s").unwrap().clone();
    assert_eq!(snapshot.phase(), ExecutorPhase::AwaitingPolicy);
    let states: Vec<_> = snapshot
        .bindings
        .iter()
        .filter(|b| b.state() != BindingState::Bound)
        .collect();
    assert_eq!(states.len(), 1);
    bench.wait_serving("deltagate.kernel.conv1d", true).await;
    assert!(!bench.serving(DELTA_RULE).await);
    let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::FailedPrecondition, "KERNEL_NOT_BOUND")
    );
    assert_eq!(*bench.mesh.state.decisions.lock(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_device_does_not_delay_the_heartbeat() {
    let bench = Bench::ready().await;
    bench.script.hold_device();
    let running = tokio::spawn(collect(bench.client.clone(), bench.request(1, &[4])));
    eventually("it runs", || bench.script.started() == 1).await;
    let before = bench.mesh.reports().len();
    let begin = Instant::now();
    let mut snapshots = bench.handle.snapshots();
    snapshots.mark_unchanged();
    let lost = tokio::time::timeout(Duration::from_secs(2), snapshots.changed()).await;
    assert!(lost.is_err(), "it changed while busy: {:?}", snapshots.borrow());
    let beats = bench.mesh.reports().len() - before;
    assert!(
        (4..=7).contains(&beats),
        "{beats} heartbeats in {:?}",
        begin.elapsed()
    );
    bench.script.let_go();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_what_was_accepted_and_takes_nothing_new() {
    let bench = Bench::ready().await;
    bench.wait_serving("", true).await;
    bench.script.hold_device();
    let accepted: Vec<_> = (1..=3)
        .map(|token| tokio::spawn(collect(bench.client.clone(), bench.request(token, &[4]))))
        .collect();
    eventually("one runs", || bench.script.started() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.handle.shutdown();
    bench.wait_phase(ExecutorPhase::Draining).await;
    let error = bench.forward(bench.request(9, &[4])).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "DRAINING")
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.script.let_go();
    for call in accepted {
        call.await.unwrap().expect("accepted work ends well");
    }
    let state = std::sync::Arc::clone(&bench.mesh.state);
    let mut ran = bench.script.ran_tokens();
    bench.handle.wait().await.expect("a drain is a good end");
    ran.sort_unstable();
    assert_eq!(ran, [1, 2, 3]);
    let reports = state.reports.lock();
    let last = reports.last().unwrap();
    assert!(last.leaving);
    assert!(reports.iter().any(|r| {
        r.snapshot
            .as_ref()
            .is_some_and(|s| s.phase() == ExecutorPhase::Draining)
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_the_device_answers_everybody_and_ends_the_executor() {
    let bench = Bench::ready().await;
    bench.script.hold_device();
    *bench.script.ending.lock() = Ending::Panics;
    let running = tokio::spawn(collect(bench.client.clone(), bench.request(1, &[4])));
    eventually("it runs", || bench.script.started() == 1).await;
    let waiting = tokio::spawn(collect(bench.client.clone(), bench.request(2, &[4])));
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.script.let_go();
    for call in [running, waiting] {
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Internal);
    }
    let failed = bench.wait_phase(ExecutorPhase::Failed).await;
    assert_eq!(failed.reasons, ["DEVICE_LOST: the device thread panicked"]);
    let state = std::sync::Arc::clone(&bench.mesh.state);
    let error = bench.handle.wait().await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_DEVICE_LOST);
    let reports = state.reports.lock();
    assert!(reports.iter().any(|r| {
        r.snapshot
            .as_ref()
            .is_some_and(|s| s.phase() == ExecutorPhase::Failed)
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_hangs_is_noticed_by_the_watchdog() {
    let mut config = config();
    config.watchdog = Duration::from_millis(300);
    config.drain.timeout = Duration::from_millis(200);
    let bench = Bench::with(config, Script::default(), None).await;
    bench.wait_phase(ExecutorPhase::Ready).await;
    bench.script.hold_device();
    let begin = Instant::now();
    let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert!(begin.elapsed() < Duration::from_secs(1));
    let script = std::sync::Arc::clone(&bench.script);
    let error = bench.handle.wait().await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_DEVICE_LOST);
    script.let_go();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_load_ends_the_executor_with_its_own_code() {
    let script = Script::default();
    *script.load_fails.lock() = true;
    let bench = Bench::with(config(), script, None).await;
    let failed = bench.wait_phase(ExecutorPhase::Failed).await;
    assert_eq!(
        failed.reasons,
        ["LOAD_FAILED: model folder declares no decider family"]
    );
    let error = bench.handle.wait().await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_LOAD_FAILED);
}
