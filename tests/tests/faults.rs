//! Every service killed and frozen in turn: noticed within two seconds, refused with a reason, healed by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::ensure;
use deltagate_proto::v1::{CapabilitySnapshot, ExecutorPhase};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, READY_WITHIN, Service},
    http,
    ports::{Ports, url},
    process::eventually,
    requests::{small, ticket_body},
    traffic::{Sample, Traffic},
};
use tonic::Code;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Everything is noticed, and healed, within this time.
const BOUND: Duration = Duration::from_secs(2);

type Check = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;
/// Name of an observer, and what it must come to say.
type Observer = (&'static str, Box<dyn Fn() -> Check + Send>);

fn observer<F, R>(name: &'static str, ports: &Ports, check: F) -> Observer
where
    F: Fn(Ports) -> R + Send + 'static,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let ports = ports.clone();
    (name, Box::new(move || Box::pin(check(ports.clone()))))
}

/// The gateway is not ready, and `/health` names this reason.
async fn gateway_says(ports: Ports, wanted: &'static str) -> anyhow::Result<()> {
    ensure!(
        !calls::service_serving(ports.gateway, Service::Gateway).await?,
        "the gateway says SERVING"
    );
    let health = http::get(&format!("{}/health", url(ports.http))).await?;
    ensure!(health.status == 503, "GET /health: {}", health.status);
    let told = health.body.to_string();
    ensure!(told.contains(wanted), "{told} does not name {wanted}");
    Ok(())
}

/// The executor is not ready, and its snapshot names this reason.
async fn executor_says(ports: Ports, wanted: &'static str) -> anyhow::Result<()> {
    ensure!(
        !calls::service_serving(ports.executor, Service::Executor).await?,
        "the executor says SERVING"
    );
    let snapshot = calls::describe(ports.executor)
        .await?
        .snapshot
        .unwrap_or_default();
    ensure!(
        snapshot.phase() == ExecutorPhase::AwaitingPolicy,
        "{:?}",
        snapshot.phase()
    );
    ensure!(
        snapshot.reasons.iter().any(|r| r.starts_with(wanted)),
        "{:?}",
        snapshot.reasons
    );
    Ok(())
}

/// Who must notice that a service is gone, and what each must say.
fn observers(down: Service, ports: &Ports, executor: &CapabilitySnapshot) -> Vec<Observer> {
    let (instance, fingerprint) = (executor.instance_id.clone(), executor.fingerprint.clone());
    let policy_denies = observer("policy denies", ports, move |ports| {
        let (instance, fingerprint) = (instance.clone(), fingerprint.clone());
        async move {
            let decision = calls::decide(ports.policy, &instance, &fingerprint).await?;
            ensure!(
                !decision.allowed && !decision.reasons.is_empty(),
                "policy allows it"
            );
            ensure!(
                calls::permit(ports.policy, &instance, &fingerprint)
                    .await
                    .is_err(),
                "policy gives permits"
            );
            Ok(())
        }
    });
    match down {
        Service::Capability => vec![
            observer("gateway", ports, |p| gateway_says(p, "CAPABILITY_UNREACHABLE")),
            observer("executor", ports, |p| executor_says(p, "CAPABILITY_UNREACHABLE")),
            policy_denies,
        ],
        Service::Policy => vec![
            observer("gateway", ports, |p| gateway_says(p, "POLICY_UNREACHABLE")),
            observer("executor", ports, |p| executor_says(p, "POLICY_UNREACHABLE")),
            observer("capability", ports, |p| async move {
                let snapshot = calls::snapshot(p.capability).await?;
                ensure!(
                    snapshot.phase() == ExecutorPhase::AwaitingPolicy,
                    "{:?}",
                    snapshot.phase()
                );
                ensure!(
                    snapshot
                        .reasons
                        .iter()
                        .any(|r| r.starts_with("POLICY_UNREACHABLE")),
                    "{snapshot:?}"
                );
                Ok(())
            }),
        ],
        Service::Executor => vec![
            observer("gateway", ports, |p| async move {
                let unreachable = gateway_says(p.clone(), "EXECUTOR_UNREACHABLE").await;
                if unreachable.is_ok() {
                    unreachable
                } else {
                    gateway_says(p, "NO_EXECUTOR").await
                }
            }),
            observer("capability", ports, |p| async move {
                let view = calls::capabilities(p.capability).await?;
                ensure!(view.executors.is_empty(), "the registry still names it");
                Ok(())
            }),
            policy_denies,
        ],
        Service::Gateway => vec![observer("client", ports, |p| async move {
            ensure!(
                calls::serving(p.gateway, "").await.is_err(),
                "the gateway answers"
            );
            ensure!(
                http::get(&format!("{}/livez", url(p.http))).await.is_err(),
                "its HTTP face answers"
            );
            Ok(())
        })],
    }
}

/// Waits until every observer says what it must, and gives the time of each since `since`.
async fn noticed(observers: Vec<Observer>, since: Instant) -> Vec<(&'static str, Duration)> {
    let waits = observers.into_iter().map(|(name, check)| async move {
        let result = eventually(BOUND * 3, check).await;
        (name, result.map(|_| since.elapsed()))
    });
    let all = futures::future::join_all(waits).await;
    all.into_iter()
        .map(|(name, took)| {
            (
                name,
                took.unwrap_or_else(|e| panic!("{name} did not notice: {e:#}")),
            )
        })
        .collect()
}

fn show(times: &[(&'static str, Duration)]) -> String {
    times
        .iter()
        .map(|(who, time)| format!("{who} {:.2} s", time.as_secs_f64()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// What a caller saw after a fault: nothing hung, every refusal has the right code and a reason.
fn judge(fault: &str, samples: &[Sample], down: Service) {
    for sample in samples {
        assert!(
            sample.took < Duration::from_secs(5),
            "{fault}: a request took {:?}: {:?}",
            sample.took,
            sample.result
        );
        let Err((code, why)) = &sample.result else {
            continue;
        };
        // A dead gateway says nothing: the caller's own transport makes up a code.
        if down == Service::Gateway {
            continue;
        }
        let known = [
            "POLICY_UNREACHABLE",
            "CAPABILITY_UNREACHABLE",
            "NO_EXECUTOR",
            "EXECUTOR_NOT_READY",
            "EXECUTOR_UNREACHABLE",
            "PERMIT_MISSING",
            "PERMIT_INVALID",
            "PERMIT_EXPIRED",
            "FINGERPRINT_MISMATCH",
            "LOADING",
            "DRAINING",
        ];
        let fine = *code == Code::Unavailable && known.contains(&why.as_str());
        assert!(fine, "{fault}: refused with {code:?} {why}");
    }
}

/// When the service listens, and, if it is an executor, has loaded its model.
async fn is_up(service: Service, ports: &Ports) {
    eventually(READY_WITHIN, || async {
        calls::serving(service.port(ports), "").await?;
        if service == Service::Executor {
            let snapshot = calls::describe(ports.executor)
                .await?
                .snapshot
                .unwrap_or_default();
            ensure!(snapshot.phase() != ExecutorPhase::Loading, "loading");
        }
        Ok(())
    })
    .await
    .unwrap_or_else(|e| panic!("{} does not come back: {e:#}", service.name()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_is_noticed_by_all_refused_and_heals_by_itself() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    let ports = cluster.ports.clone();

    for down in [
        Service::Capability,
        Service::Policy,
        Service::Executor,
        Service::Gateway,
    ] {
        let fault = format!("kill -9 {}", down.name());
        let executor = cluster.ready_executor(READY_WITHIN).await.unwrap();
        let traffic = Traffic::start(
            ports.gateway,
            1,
            Duration::from_millis(20),
            &small("Charged twice."),
        )
        .unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;

        cluster.process(down).unwrap().kill().await.unwrap();
        let killed = Instant::now();
        let times = noticed(observers(down, &ports, &executor), killed).await;
        let worst = times.iter().map(|(_, time)| *time).max().unwrap();
        let noticed_at = Instant::now();

        // Refused on both faces, at once.
        if down == Service::Gateway {
            // Nobody else depends on it.
            assert!(
                calls::service_serving(ports.executor, Service::Executor)
                    .await
                    .unwrap()
            );
        } else {
            let asked = Instant::now();
            let status = calls::classify(ports.gateway, small("Charged twice."))
                .await
                .unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{fault}: {status:?}");
            let web = http::post(&format!("{}/v1/systemone", url(ports.http)), &ticket_body())
                .await
                .unwrap();
            assert_eq!(web.status, 503, "{fault}: {}", web.body);
            assert!(web.header("retry-after").is_some(), "{fault}: no Retry-After");
            assert!(
                asked.elapsed() < BOUND,
                "{fault}: refusals took {:?}",
                asked.elapsed()
            );
            println!("{fault}: refused with {}", reason(&status));
        }

        // Nobody touches anything but the process that was killed.
        let restarted = Instant::now();
        cluster.start(down).unwrap();
        is_up(down, &ports).await;
        let up = Instant::now();
        let healed = eventually(READY_WITHIN, || async {
            Ok(calls::classify(ports.gateway, small("Charged twice."))
                .await
                .map(drop)?)
        });
        healed
            .await
            .unwrap_or_else(|e| panic!("{fault}: it does not heal: {e:#}"));
        let healed = up.elapsed();
        cluster.ready().await.unwrap();

        let samples = traffic.end().await.unwrap();
        let late = samples
            .iter()
            .filter(|s| s.result.is_ok() && s.sent > noticed_at && s.sent + s.took < restarted)
            .count();
        println!(
            "{fault}: noticed after {:.2} s ({}); healed {:.2} s after it was back; {} requests, {} refused",
            worst.as_secs_f64(),
            show(&times),
            healed.as_secs_f64(),
            samples.len(),
            samples.iter().filter(|s| s.result.is_err()).count()
        );
        judge(&fault, &samples, down);
        assert!(
            samples.iter().any(|s| s.result.is_err()),
            "{fault}: no request was refused"
        );
        assert!(worst <= BOUND, "{fault}: noticed only after {worst:?}");
        assert!(healed <= BOUND, "{fault}: healed only after {healed:?}");
        assert_eq!(
            late, 0,
            "{fault}: {late} requests were answered while it was down"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_service_is_as_good_as_dead_and_thaws() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    let ports = cluster.ports.clone();

    for down in [Service::Capability, Service::Policy, Service::Executor] {
        let fault = format!("kill -STOP {}", down.name());
        let executor = cluster.ready_executor(READY_WITHIN).await.unwrap();
        let traffic = Traffic::start(
            ports.gateway,
            1,
            Duration::from_millis(20),
            &small("Charged twice."),
        )
        .unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;

        cluster.process(down).unwrap().signal("STOP").await.unwrap();
        let stopped = Instant::now();
        let times = noticed(observers(down, &ports, &executor), stopped).await;
        let worst = times.iter().map(|(_, time)| *time).max().unwrap();
        let status = calls::classify(ports.gateway, small("Charged twice."))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{fault}: {status:?}");

        cluster.process(down).unwrap().signal("CONT").await.unwrap();
        let up = Instant::now();
        let healed = eventually(READY_WITHIN, || async {
            Ok(calls::classify(ports.gateway, small("Charged twice."))
                .await
                .map(drop)?)
        });
        healed
            .await
            .unwrap_or_else(|e| panic!("{fault}: it does not heal: {e:#}"));
        let healed = up.elapsed();
        cluster.ready().await.unwrap();

        let samples = traffic.end().await.unwrap();
        println!(
            "{fault}: noticed after {:.2} s ({}); healed after {:.2} s; {} requests, longest {:.2} s",
            worst.as_secs_f64(),
            show(&times),
            healed.as_secs_f64(),
            samples.len(),
            samples
                .iter()
                .map(|s| s.took)
                .max()
                .unwrap_or_default()
                .as_secs_f64()
        );
        judge(&fault, &samples, down);
        assert!(worst <= BOUND, "{fault}: noticed only after {worst:?}");
        assert!(healed <= BOUND, "{fault}: healed only after {healed:?}");
    }
}
