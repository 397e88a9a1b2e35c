//! SIGTERM with requests in flight, and readers that never read, against real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use deltagate_proto::v1::{
    CapabilityServiceWatchRequest, ClassifyRequest, ClassifyStreamRequest, PolicyServiceWatchRequest,
    classifier_service_client::ClassifierServiceClient, classify_stream_response::Event,
};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, Service},
    ports::url,
    process::eventually,
    requests::{small, yes_no},
};
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Longest wait for a process that drains: its bound below, and room for a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// Several long prompts: the device is busy for a while.
fn slow() -> ClassifyRequest {
    let mut request = small(&"The customer writes again about the same invoice. ".repeat(80));
    request.questions = (0..4)
        .map(|i| yes_no(&format!("q{i}"), "Is it about an invoice?"))
        .collect();
    request
}

async fn mesh(settings: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::new(BINARY).unwrap();
    for (key, value) in settings {
        cluster.set(key, value);
    }
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    cluster
}

/// Four requests, all of them in the executor: the first on the device, the others queued behind it.
async fn in_flight(gateway: u16) -> Vec<JoinHandle<Result<(), Status>>> {
    let mut all = Vec::new();
    for number in 0..4 {
        let mut client = ClassifierServiceClient::new(calls::channel(gateway).unwrap());
        let request = ClassifyStreamRequest {
            request: Some(slow()),
        };
        let mut events = client.classify_stream(request).await.unwrap().into_inner();
        loop {
            match events.message().await.unwrap().unwrap().event {
                Some(Event::Segment(_)) => break,
                Some(Event::Accepted(_)) if number > 0 => break,
                _ => {}
            }
        }
        all.push(tokio::spawn(async move {
            let mut last = None;
            while let Some(message) = events.message().await? {
                last = message.event;
            }
            assert!(
                matches!(last, Some(Event::Answers(_))),
                "a stream without an answer"
            );
            Ok(())
        }));
    }
    all
}

async fn watch_health(port: u16) -> Streaming<HealthCheckResponse> {
    let mut client = HealthClient::new(calls::channel(port).unwrap());
    let request = HealthCheckRequest::default();
    let mut updates = client.watch(request).await.unwrap().into_inner();
    let first = updates.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    updates
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_to_a_gateway_loses_no_request_in_flight() {
    let mut cluster = mesh(&[("gateway.drain.grace", "1s")]).await;
    let gateway = cluster.ports.gateway;
    let mut health = watch_health(gateway).await;
    let requests = in_flight(gateway).await;
    let told = Instant::now();
    cluster
        .process(Service::Gateway)
        .unwrap()
        .signal("TERM")
        .await
        .unwrap();

    // Not ready first, while it still accepts and answers.
    let update = tokio::time::timeout(Duration::from_millis(800), health.message()).await;
    assert_eq!(
        update.unwrap().unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    assert!(!calls::serving(gateway, "").await.unwrap());
    let in_grace = tokio::spawn(async move { calls::classify(gateway, small("Charged twice.")).await });
    for request in requests {
        request.await.unwrap().expect("it was accepted before the signal");
    }
    in_grace.await.unwrap().expect("it was sent in the grace");
    let code = cluster
        .process(Service::Gateway)
        .unwrap()
        .wait(GONE_WITHIN)
        .await
        .unwrap();
    assert_eq!(code, Some(0));
    assert!(told.elapsed() >= Duration::from_secs(1), "the grace was cut");
    assert!(calls::classify(gateway, small("Charged twice.")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_to_an_executor_runs_what_is_queued_and_takes_nothing_new() {
    let mut cluster = mesh(&[]).await;
    let gateway = cluster.ports.gateway;
    let mut health = watch_health(cluster.ports.executor).await;
    let requests = in_flight(gateway).await;
    cluster
        .process(Service::Executor)
        .unwrap()
        .signal("TERM")
        .await
        .unwrap();
    let update = tokio::time::timeout(Duration::from_secs(2), health.message()).await;
    assert_eq!(
        update.unwrap().unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    // The gateway learns it from the registry, and refuses by itself.
    let (refused, _) = eventually(Duration::from_secs(5), || async {
        match calls::classify(gateway, small("Charged twice.")).await {
            Err(status) => Ok(status),
            Ok(_) => anyhow::bail!("still answered"),
        }
    })
    .await
    .unwrap();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    for request in requests {
        request.await.unwrap().expect("it was queued before the signal");
    }
    let code = cluster
        .process(Service::Executor)
        .unwrap()
        .wait(GONE_WITHIN)
        .await
        .unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_bounded_by_its_timeout_not_by_its_requests() {
    let mut cluster = mesh(&[("gateway.drain.grace", "0s"), ("gateway.drain.timeout", "300ms")]).await;
    let gateway = cluster.ports.gateway;
    // Far more work than fits in the bound.
    let requests: Vec<_> = (0..40)
        .map(|_| tokio::spawn(async move { calls::classify(gateway, slow()).await }))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let told = Instant::now();
    let process = cluster.process(Service::Gateway).unwrap();
    process.signal("TERM").await.unwrap();
    let code = process.wait(GONE_WITHIN).await.unwrap();
    assert_eq!(code, Some(0));
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    let mut told_why = 0;
    for request in requests {
        if let Err(status) = request.await.unwrap() {
            assert!(
                matches!(status.code(), Code::Unavailable | Code::ResourceExhausted),
                "{status:?}"
            );
            told_why += usize::from(reason(&status) == "DRAINING");
        }
    }
    assert!(told_why > 0, "those that were cut are told why");
}

/// A call over a bare HTTP/2 connection whose response is never read: one byte of window, and a socket that nobody
/// polls once the request is out.
struct Mute {
    _sender: http2::SendRequest<Full<Bytes>>,
    _connection: std::pin::Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>,
    _response: JoinHandle<()>,
}

impl Mute {
    async fn call(port: u16, method: &str, message: &impl Message) -> Self {
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1)
            .initial_connection_window_size(65_535)
            .handshake(TokioIo::new(socket))
            .await
            .unwrap();
        let mut connection: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(connection);
        let message = message.encode_to_vec();
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        frame.extend(message);
        let request = http::Request::post(format!("{}/{method}", url(port)))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from(frame)))
            .unwrap();
        let sent = sender.send_request(request);
        let response = tokio::spawn(async move {
            // Kept, so that the call is not reset, and never read.
            let _response = sent.await;
            std::future::pending::<()>().await;
        });
        let _ = tokio::time::timeout(Duration::from_millis(300), &mut connection).await;
        Self {
            _sender: sender,
            _connection: connection,
            _response: response,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_reads_holds_neither_the_device_nor_the_drain() {
    let mut cluster = mesh(&[("gateway.drain.grace", "0s"), ("gateway.drain.timeout", "1s")]).await;
    let gateway = cluster.ports.gateway;
    let stream = ClassifyStreamRequest {
        request: Some(slow()),
    };
    let mut mute = Vec::new();
    for _ in 0..4 {
        mute.push(Mute::call(gateway, "deltagate.v1.ClassifierService/ClassifyStream", &stream).await);
    }
    // The device does their work, which nobody fetches, and goes on with others'.
    eventually(Duration::from_secs(20), || async {
        let asked = Instant::now();
        calls::classify(gateway, small("Charged twice.")).await?;
        anyhow::ensure!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        Ok(())
    })
    .await
    .unwrap();
    let told = Instant::now();
    let process = cluster.process(Service::Gateway).unwrap();
    process.signal("TERM").await.unwrap();
    assert_eq!(process.wait(GONE_WITHIN).await.unwrap(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(6), "{:?}", told.elapsed());
    // The executor, too: its stream to the gateway went with the gateway.
    let told = Instant::now();
    let process = cluster.process(Service::Executor).unwrap();
    process.signal("TERM").await.unwrap();
    assert_eq!(process.wait(GONE_WITHIN).await.unwrap(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(6), "{:?}", told.elapsed());
    drop(mute);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_nobody_reads_holds_up_neither_the_others_nor_the_drain() {
    let mut cluster = mesh(&[]).await;
    let ports = cluster.ports.clone();
    let watch_policy = PolicyServiceWatchRequest {
        gateway_id: "mute".to_owned(),
    };
    let mut mute = Vec::new();
    for _ in 0..4 {
        mute.push(
            Mute::call(
                ports.capability,
                "deltagate.v1.CapabilityService/Watch",
                &CapabilityServiceWatchRequest {},
            )
            .await,
        );
        mute.push(Mute::call(ports.policy, "deltagate.v1.PolicyService/Watch", &watch_policy).await);
    }
    // Longer than any view or permit holds: the gateway's own watches go on.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        calls::classify(ports.gateway, small("Charged twice."))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for service in [Service::Policy, Service::Capability] {
        let told = Instant::now();
        let process = cluster.process(service).unwrap();
        process.signal("TERM").await.unwrap();
        assert_eq!(process.wait(GONE_WITHIN).await.unwrap(), Some(0), "{service:?}");
        assert!(
            told.elapsed() < Duration::from_secs(8),
            "{service:?}: {:?}",
            told.elapsed()
        );
    }
    drop(mute);
}
