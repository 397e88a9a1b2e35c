//! The registry over real connections: leases, views, restart, health.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use deltagate_capability::{CapabilityConfig, start};
use deltagate_mesh::{
    ServiceError,
    client::{ChannelOptions, channel},
    server::{ServerHandle, listen},
};
use deltagate_proto::v1::{
    CapabilityServiceGetRequest, CapabilityServiceWatchRequest, CapabilitySnapshot, ReportRequest,
    capability_service_client::CapabilityServiceClient,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

async fn up(config: CapabilityConfig) -> ServerHandle {
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    start(config, Some(listener), CancellationToken::new())
        .await
        .unwrap()
}

fn client(handle: &ServerHandle) -> CapabilityServiceClient<Channel> {
    CapabilityServiceClient::new(channel(&handle.endpoint(), ChannelOptions::default()).unwrap())
}

fn report(revision: u64, with: bool) -> ReportRequest {
    let snapshot = CapabilitySnapshot {
        instance_id: "exec-1".to_owned(),
        revision,
        endpoint: "http://127.0.0.1:50061".to_owned(),
        ..Default::default()
    };
    ReportRequest {
        instance_id: "exec-1".to_owned(),
        revision,
        snapshot: with.then_some(snapshot),
        leaving: false,
    }
}

#[tokio::test]
async fn a_watcher_sees_the_join_the_change_and_the_missed_lease() {
    let handle = up(CapabilityConfig {
        lease: Duration::from_millis(600),
        ..Default::default()
    })
    .await;
    let mut client = client(&handle);
    let mut views = client
        .watch(CapabilityServiceWatchRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(views.message().await.unwrap().unwrap().executors.is_empty());

    let answer = client.report(report(1, false)).await.unwrap().into_inner();
    assert!(answer.snapshot_wanted);
    let answer = client.report(report(1, true)).await.unwrap().into_inner();
    assert!(!answer.snapshot_wanted);
    let reported = Instant::now();
    let mut next = async || views.message().await.unwrap().unwrap();
    let revisions = |view: &deltagate_proto::v1::CapabilityServiceWatchResponse| -> Vec<u64> {
        view.executors
            .iter()
            .map(|e| e.snapshot.as_ref().unwrap().revision)
            .collect()
    };
    assert_eq!(revisions(&next().await), [1]);
    assert!(reported.elapsed() < Duration::from_millis(200), "pushed at once");

    client.report(report(2, true)).await.unwrap();
    let renewed = Instant::now();
    while revisions(&next().await) != [2] {
        assert!(renewed.elapsed() < Duration::from_millis(200));
    }
    let mut last = Instant::now();
    loop {
        let view = next().await;
        assert!(
            last.elapsed() < Duration::from_millis(500),
            "silent for {:?}",
            last.elapsed()
        );
        last = Instant::now();
        if view.executors.is_empty() {
            break;
        }
    }
    let gone_after = renewed.elapsed();
    assert!(
        gone_after > Duration::from_millis(550) && gone_after < Duration::from_secs(1),
        "{gone_after:?}"
    );
}

#[tokio::test]
async fn a_restarted_registry_starts_empty_under_a_new_id() {
    let first = up(CapabilityConfig::default()).await;
    let addr = first.addr();
    let mut before = client(&first);
    before.report(report(1, true)).await.unwrap();
    let old = before
        .get(CapabilityServiceGetRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(old.executors.len(), 1);
    let mut watching = before
        .watch(CapabilityServiceWatchRequest {})
        .await
        .unwrap()
        .into_inner();
    watching.message().await.unwrap().unwrap();
    first.kill();
    while let Ok(Some(_)) = watching.message().await {}
    drop((before, watching));
    first.wait().await.unwrap();

    let listener = listen(addr).await.unwrap();
    let second = start(
        CapabilityConfig::default(),
        Some(listener),
        CancellationToken::new(),
    )
    .await
    .unwrap();
    let mut after = client(&second);
    let new = after
        .get(CapabilityServiceGetRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(new.executors.is_empty());
    assert_ne!(new.registry_id, old.registry_id);
    // The executor's next ordinary heartbeat is answered with the wish for its snapshot.
    assert!(
        after
            .report(report(1, false))
            .await
            .unwrap()
            .into_inner()
            .snapshot_wanted
    );
    after.report(report(1, true)).await.unwrap();
    assert_eq!(
        after
            .get(CapabilityServiceGetRequest {})
            .await
            .unwrap()
            .into_inner()
            .executors
            .len(),
        1
    );
}

#[tokio::test]
async fn refusals_carry_their_reason() {
    let handle = up(CapabilityConfig {
        max_snapshot_bytes: 4096,
        ..Default::default()
    })
    .await;
    let mut client = client(&handle);
    client.report(report(2, true)).await.unwrap();
    let stale = ServiceError::from(client.report(report(1, true)).await.unwrap_err());
    assert_eq!(
        (stale.code, stale.reason.as_ref()),
        (Code::FailedPrecondition, "STALE_REVISION")
    );
    let mut large = report(3, true);
    large.snapshot.as_mut().unwrap().version = "x".repeat(5000);
    let large = ServiceError::from(client.report(large).await.unwrap_err());
    assert_eq!(
        (large.code, large.reason.as_ref()),
        (Code::InvalidArgument, "SNAPSHOT_TOO_LARGE")
    );
    let anonymous = ServiceError::from(client.report(ReportRequest::default()).await.unwrap_err());
    assert_eq!(anonymous.fields[0].field, "instance_id");
}

#[tokio::test]
async fn an_executor_that_leaves_is_gone_at_once() {
    let handle = up(CapabilityConfig::default()).await;
    let mut client = client(&handle);
    client.report(report(1, true)).await.unwrap();
    client
        .report(ReportRequest {
            leaving: true,
            ..report(1, false)
        })
        .await
        .unwrap();
    assert!(
        client
            .get(CapabilityServiceGetRequest {})
            .await
            .unwrap()
            .into_inner()
            .executors
            .is_empty()
    );
}

#[tokio::test]
async fn it_is_serving_once_it_is_up_and_not_while_it_drains() {
    let handle = up(CapabilityConfig::default()).await;
    let mut health = HealthClient::new(channel(&handle.endpoint(), ChannelOptions::default()).unwrap());
    for service in ["", "deltagate.v1.CapabilityService"] {
        let status = health
            .check(HealthCheckRequest {
                service: service.to_owned(),
            })
            .await
            .unwrap();
        assert_eq!(status.into_inner().status, 1, "{service}");
    }
    let mut watch = health
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
    handle.shutdown();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2);
    handle.wait().await.unwrap();
}

#[test]
fn nonsense_is_refused_before_it_listens() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = CapabilityConfig {
        watch_interval: Duration::from_secs(5),
        ..Default::default()
    };
    let error = runtime
        .block_on(start(config, None, CancellationToken::new()))
        .unwrap_err();
    assert!(error.to_string().contains("capability.watch_interval"), "{error}");
}
