//! Swapping kernels: between two requests, losing nothing, and never into something that does not bind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use deltagate_executor::{ConfigSource, ReloadError};
use deltagate_kernels_api::{KernelFamily, Preference, Preferences};
use deltagate_proto::v1::ExecutorPhase;
use support::{Bench, collect, config, eventually, runner::Script};
use tonic::Code;

fn prefer(backend: &str) -> Preferences {
    let mut preferences = Preferences::default();
    preferences.set(KernelFamily::DeltaRule, Preference::One(backend.to_owned()));
    preferences
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_under_load_loses_nothing() {
    let bench = Arc::new(Bench::ready().await);
    *bench.script.segment_time.lock() = Duration::from_millis(1);
    let stop = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..4u32)
        .map(|caller| {
            let (bench, stop, refused) = (Arc::clone(&bench), Arc::clone(&stop), Arc::clone(&refused));
            tokio::spawn(async move {
                let mut answered = Vec::new();
                let mut token = caller * 200;
                while !stop.load(Ordering::Relaxed) {
                    let request = bench.request(token, &[4]);
                    let asked_for = request.capability_fingerprint.clone();
                    match bench.client.clone().forward(request).await {
                        Ok(stream) => {
                            // Accepted: from here on only a result is right.
                            let mut stream = stream.into_inner();
                            let mut last = None;
                            while let Some(event) = stream.message().await.expect("accepted work is not lost")
                            {
                                last = event.event;
                            }
                            let Some(deltagate_proto::v1::forward_response::Event::Result(result)) = last
                            else {
                                panic!("no result");
                            };
                            assert_eq!(result.capability_fingerprint, asked_for);
                            assert_eq!(
                                result.kernels[0].backend,
                                asked_for.trim_start_matches("fingerprint-")
                            );
                            answered.push((asked_for, token));
                            token = caller * 200 + (token + 1) % 200;
                        }
                        Err(status) => {
                            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                            refused.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                answered
            })
        })
        .collect();
    for backend in ["second", "third", "second"] {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let fingerprint = bench.handle.reload.rebind(prefer(backend)).await.unwrap();
        assert_eq!(fingerprint, format!("fingerprint-{backend}"));
        bench.wait_phase(ExecutorPhase::Ready).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    stop.store(true, Ordering::Relaxed);
    let mut answered = Vec::new();
    for caller in callers {
        answered.extend(caller.await.unwrap());
    }
    let mut ran = bench.script.ran.lock().clone();
    ran.sort();
    answered.sort();
    assert_eq!(
        ran, answered,
        "everything that ran was answered, and on the binding it was asked for"
    );
    for backend in ["first", "second", "third"] {
        let fingerprint = format!("fingerprint-{backend}");
        assert!(
            answered.iter().any(|(on, _)| *on == fingerprint),
            "nothing ran on {backend}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_run_on_the_binding_they_were_admitted_for() {
    let bench = Bench::ready().await;
    bench.script.hold_device();
    let mut calls = vec![tokio::spawn(collect(
        bench.client.clone(),
        bench.request(1, &[4]),
    ))];
    eventually("one runs", || bench.script.started() == 1).await;
    for token in 2..=4 {
        calls.push(tokio::spawn(collect(
            bench.client.clone(),
            bench.request(token, &[4]),
        )));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let reload = bench.handle.reload.clone();
    let swap = tokio::spawn(async move { reload.rebind(prefer("second")).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.script.let_go();
    for call in calls {
        call.await.unwrap().expect("admitted before the swap");
    }
    swap.await.unwrap().unwrap();
    let ran = bench.script.ran.lock().clone();
    assert_eq!(ran.len(), 4);
    assert!(
        ran.iter()
            .all(|(fingerprint, _)| fingerprint == "fingerprint-first"),
        "{ran:?}"
    );

    let ready = bench.wait_phase(ExecutorPhase::Ready).await;
    assert_eq!(ready.fingerprint, "fingerprint-second");
    bench.forward(bench.request(5, &[4])).await.unwrap();
    assert_eq!(
        bench.script.ran.lock().last().unwrap(),
        &("fingerprint-second".to_owned(), 5)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_bind_leaves_the_former_binding() {
    let bench = Bench::ready().await;
    let error = bench.handle.reload.rebind(prefer("broken")).await.unwrap_err();
    assert!(
        matches!(&error, ReloadError::Rebind(why) if why.contains("failed its probe")),
        "{error}"
    );
    assert_eq!(bench.handle.reload.last(), Some(Err(error)));
    assert_eq!(bench.fingerprint(), "fingerprint-first");
    assert_eq!(bench.handle.snapshots().borrow().phase(), ExecutorPhase::Ready);
    bench.forward(bench.request(1, &[4])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_binds_what_was_not_bound() {
    let script = Script::default();
    script.unbound.lock().push(KernelFamily::DeltaRule);
    let bench = Bench::with(config(), script, None).await;
    bench.wait_phase(ExecutorPhase::AwaitingPolicy).await;
    bench.handle.reload.rebind(prefer("second")).await.unwrap();
    bench.wait_phase(ExecutorPhase::Ready).await;
}

/// A config file that names one backend.
fn source(file: PathBuf, base: deltagate_executor::ExecutorConfig) -> ConfigSource {
    let read = file.clone();
    let load = move || {
        let text = std::fs::read_to_string(&read).map_err(|error| error.to_string())?;
        let mut config = base.clone();
        match text.trim().split_once('=') {
            Some(("backend", backend)) => config.kernels = prefer(backend),
            Some(("watchdog", seconds)) => config.watchdog = Duration::from_secs(seconds.parse().unwrap()),
            _ => return Err("unknown key".to_owned()),
        }
        Ok(config)
    };
    ConfigSource {
        file: Some(file),
        load: Arc::new(load),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_config_file_is_applied_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("deltagate.toml");
    std::fs::write(&file, "backend=first").unwrap();
    let mut config = config();
    config.kernels = prefer("first");
    let bench = Bench::with(
        config.clone(),
        Script::default(),
        Some(source(file.clone(), config)),
    )
    .await;
    bench.wait_phase(ExecutorPhase::Ready).await;

    std::fs::write(&file, "nonsense").unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bench.handle.reload.last(), None, "nothing was swapped so far");
    assert_eq!(bench.fingerprint(), "fingerprint-first");

    std::fs::write(&file, "backend=second").unwrap();
    eventually("the swap", || bench.fingerprint() == "fingerprint-second").await;
    bench.wait_phase(ExecutorPhase::Ready).await;

    std::fs::write(&file, "backend=broken").unwrap();
    eventually("the failure", || {
        matches!(bench.handle.reload.last(), Some(Err(ReloadError::Rebind(_))))
    })
    .await;
    assert_eq!(bench.fingerprint(), "fingerprint-second");

    std::fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    std::fs::write(&file, "backend=third").unwrap();
    eventually("the next swap", || bench.fingerprint() == "fingerprint-third").await;
}
