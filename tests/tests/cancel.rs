//! Callers that go away, deadlines, and a queue that is full, against real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use deltagate_mesh::{ServiceError, wire};
use deltagate_proto::v1::{
    ClassifyRequest, ClassifyResponse, ClassifyStreamRequest,
    classifier_service_client::ClassifierServiceClient, classify_stream_response::Event,
};
use deltagate_tests::{
    calls::{self, reason},
    cluster::Cluster,
    http,
    ports::url,
    process::Process,
    requests::{small, yes_no},
};
use serde_json::json;
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt;

/// What is left of a deadline is rounded down at each hop.
const ROUNDING: Duration = Duration::from_millis(10);
const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Several long prompts: the device is busy for a while, in several segments a prompt.
fn slow() -> ClassifyRequest {
    let mut request = small(&"The customer writes again about the same invoice. ".repeat(120));
    request.questions = (0..6)
        .map(|i| yes_no(&format!("q{i}"), "Is it about an invoice?"))
        .collect();
    request
}

async fn mesh(settings: &[(&str, &str)]) -> (Cluster, Process) {
    let mut cluster = Cluster::new(BINARY).unwrap();
    for (key, value) in settings {
        cluster.set(key, value);
    }
    let up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    (cluster, up)
}

/// A long request that is on the device: it has told of a segment. Dropping what this gives is going away.
async fn on_the_device(gateway: u16) -> tonic::Streaming<deltagate_proto::v1::ClassifyStreamResponse> {
    let mut client = ClassifierServiceClient::new(calls::channel(gateway).unwrap());
    let request = ClassifyStreamRequest {
        request: Some(slow()),
    };
    let mut stream = client.classify_stream(request).await.unwrap().into_inner();
    while !matches!(
        stream.message().await.unwrap().unwrap().event,
        Some(Event::Segment(_))
    ) {}
    stream
}

fn queued(response: &ClassifyResponse) -> Duration {
    wire::std_duration(response.timings.as_ref().unwrap().queue.as_ref()).unwrap()
}

/// How long a segment of the long request takes, and the whole.
async fn pace(gateway: u16) -> (Duration, Duration) {
    let begun = Instant::now();
    let mut stream = on_the_device(gateway).await;
    let mut segments = 1;
    while let Some(message) = stream.message().await.unwrap() {
        segments += u32::from(matches!(message.event, Some(Event::Segment(_))));
    }
    (begun.elapsed() / segments, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_device_is_free_a_segment_after_its_caller_left() {
    let (cluster, _up) = mesh(&[]).await;
    let gateway = cluster.ports.gateway;
    let mut client = ClassifierServiceClient::<Channel>::new(calls::channel(gateway).unwrap());
    client.classify(small("Charged twice.")).await.unwrap();
    let (segment, whole) = pace(gateway).await;
    let mut waits = Vec::new();
    for _ in 0..10 {
        let stream = on_the_device(gateway).await;
        drop(stream);
        let next = client
            .classify(small("Charged twice."))
            .await
            .unwrap()
            .into_inner();
        waits.push(queued(&next));
    }
    waits.sort();
    println!("a segment {segment:?}, the whole {whole:?}; waits after a caller left {waits:?}");
    // The median: a busy machine may hold up any one of them.
    assert!(
        waits[5] < whole / 3,
        "the device goes on for {:?} of {whole:?}",
        waits[5]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_wait_and_the_run() {
    let (cluster, _up) = mesh(&[]).await;
    let gateway = cluster.ports.gateway;
    let (_, whole) = pace(gateway).await;
    let method = "deltagate.v1.ClassifierService/Classify";
    let late = |status: &Status, stages: &[&str]| {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        let error = ServiceError::from(status);
        let stage = error.fact("stage").unwrap_or_default();
        assert!(stages.contains(&stage), "{stage}: {status:?}");
    };

    // In the queue, behind a request that takes longer than the caller will wait.
    let holder = on_the_device(gateway).await;
    let begun = Instant::now();
    // As the header can say it: in whole milliseconds.
    let timeout = Duration::from_millis((whole / 4).as_millis() as u64);
    let timeout_header = format!("{}m", timeout.as_millis());
    let status = calls::with_timeout(gateway, method, &small("Charged twice."), &timeout_header)
        .await
        .unwrap();
    let took = begun.elapsed();
    late(&status, &["queue", "forward"]);
    assert!(
        took + ROUNDING >= timeout && took < whole,
        "{took:?} of {timeout:?}"
    );
    drop(holder);

    // On the device, between two segments; and the next request does not wait for the rest.
    let begun = Instant::now();
    let status = calls::with_timeout(gateway, method, &slow(), &timeout_header)
        .await
        .unwrap();
    let took = begun.elapsed();
    late(&status, &["run", "forward", "tokenize"]);
    assert!(
        took + ROUNDING >= timeout && took < whole,
        "{took:?} of {timeout:?}"
    );
    let next = calls::classify(gateway, small("Charged twice.")).await.unwrap();
    assert!(queued(&next) < whole / 2, "{:?} of {whole:?}", queued(&next));
}

/// Refused at once on both faces, with a time to come back.
async fn refused_as_full(cluster: &Cluster, request: ClassifyRequest, state: &str) {
    let status = calls::classify(cluster.ports.gateway, request).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::ResourceExhausted, "QUEUE_FULL"),
        "{status:?}"
    );
    let delay = status.get_details_retry_info().and_then(|r| r.retry_delay);
    assert!(delay.is_some_and(|d| !d.is_zero()), "{status:?}");

    let body = json!({
        "state": state,
        "questions": {"q": {"type": "noul", "instructions": "Is it about an invoice?"}},
    });
    let web = http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), &body)
        .await
        .unwrap();
    assert_eq!(web.status, 429, "{}", web.body);
    let seconds = web.header("retry-after").and_then(|s| s.parse::<u64>().ok());
    assert!(seconds.is_some_and(|s| s > 0), "{:?}", web.headers);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_in_requests() {
    let (cluster, _up) = mesh(&[("executor.queue.max_requests", "1")]).await;
    let gateway = cluster.ports.gateway;
    let mut running = on_the_device(gateway).await;
    let waiting = tokio::spawn(calls::classify(gateway, small("Charged twice.")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    refused_as_full(&cluster, small("Charged twice."), "Charged twice.").await;
    while running.message().await.unwrap().is_some() {}
    waiting.await.unwrap().unwrap();
    // Full is not broken.
    calls::classify(gateway, small("Charged twice.")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_in_tokens() {
    let (cluster, _up) = mesh(&[("executor.queue.max_tokens", "200")]).await;
    let gateway = cluster.ports.gateway;
    let long = "The customer writes again about the same invoice. ".repeat(40);
    // Alone it may run, whatever its size: nobody waits.
    calls::classify(gateway, small(&long)).await.unwrap();
    let mut running = on_the_device(gateway).await;
    refused_as_full(&cluster, small(&long), &long).await;
    // A short one still finds room.
    calls::classify(gateway, small("Charged twice.")).await.unwrap();
    while running.message().await.unwrap().is_some() {}
}
