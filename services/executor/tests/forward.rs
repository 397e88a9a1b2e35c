//! A forward pass as its caller sees it: events, errors, the queue, deadlines, and going away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use deltagate_executor::runner::AssetFile;
use deltagate_mesh::ServiceError;
use deltagate_proto::v1::{self, ExecutorPhase, forward_response::Event};
use support::{
    Bench, collect, config, eventually,
    runner::{Ending, Script},
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

fn spawn(bench: &Bench, request: v1::ForwardRequest) -> JoinHandle<Result<Vec<Event>, Status>> {
    tokio::spawn(collect(bench.client.clone(), request))
}

/// A request that the device holds.
async fn occupy(bench: &Bench) -> JoinHandle<Result<Vec<Event>, Status>> {
    bench.script.hold_device();
    let started = bench.script.started();
    let running = spawn(bench, bench.request(100, &[4]));
    eventually("the device is busy", || bench.script.started() == started + 1).await;
    running
}

async fn small_queue(max_requests: usize, max_tokens: u64) -> Bench {
    let mut config = config();
    config.queue.max_requests = max_requests;
    config.queue.max_tokens = max_tokens;
    let bench = Bench::with(config, Script::default(), None).await;
    bench.wait_phase(ExecutorPhase::Ready).await;
    bench
}

fn error(result: Result<Vec<Event>, Status>) -> ServiceError {
    ServiceError::from(&result.expect_err("an error"))
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_and_only_if_asked_for() {
    let bench = Bench::ready().await;
    bench.script.segments.store(3, Ordering::Relaxed);
    let request = v1::ForwardRequest {
        segment_events: true,
        ..bench.request(1, &[4, 2])
    };
    let events = collect(bench.client.clone(), request).await.unwrap();
    let [
        Event::Accepted(accepted),
        Event::Segment(a),
        Event::Segment(b),
        Event::Segment(c),
        Event::Result(result),
    ] = &events[..]
    else {
        panic!("unexpected events {events:?}");
    };
    assert_eq!(accepted.queue_position, 0);
    assert_eq!([a.segment, b.segment, c.segment], [0, 1, 2]);
    assert_eq!((c.segments, c.first_layer, c.end_layer), (3, 8, 12));
    assert!(c.elapsed.is_some());
    assert_eq!(result.outputs.len(), 2);
    assert_eq!(
        (
            result.outputs[1].rows[0].position,
            &result.outputs[1].rows[0].values[..]
        ),
        (1, &[1.0, 2.0][..])
    );
    assert_eq!(result.capability_fingerprint, bench.fingerprint());
    assert_eq!(
        (result.kernels[0].backend.as_str(), result.kernels[0].launches),
        ("first", 7)
    );
    assert!(result.queue.is_some() && result.forward.is_some());

    let events = collect(bench.client.clone(), bench.request(1, &[4]))
        .await
        .unwrap();
    assert!(
        matches!(&events[..], [Event::Accepted(_), Event::Result(_)]),
        "{events:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_alone_is_one_message_and_a_caller_that_leaves_is_noticed() {
    let bench = Bench::ready().await;
    let alone = |first_token| v1::ForwardRequest {
        result_only: true,
        ..bench.request(first_token, &[4])
    };
    let events = collect(bench.client.clone(), alone(1)).await.unwrap();
    assert!(matches!(&events[..], [Event::Result(_)]), "{events:?}");

    let both = v1::ForwardRequest {
        segment_events: true,
        ..alone(2)
    };
    let refused = bench.forward(both).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert_eq!(refused.fields[0].field, "result_only");

    // Its deadline passes in the queue: the refusal says so though no response has begun.
    let running = occupy(&bench).await;
    let mut late = tonic::Request::new(alone(3));
    late.set_timeout(Duration::from_millis(50));
    let mut client = bench.client.clone();
    let status = client.forward(late).await.expect_err("the device is busy");
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status:?}"
    );

    // It leaves while it waits, and is not run.
    let waiting = tokio::spawn(collect(bench.client.clone(), alone(4)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    waiting.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.script.let_go();
    running.await.unwrap().unwrap();
    bench.forward(bench.request(5, &[4])).await.unwrap();
    let ran = bench.script.ran_tokens();
    assert!(
        ran.contains(&5) && !ran.contains(&3) && !ran.contains(&4),
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_complete_and_finite_is_an_error() {
    let bench = Bench::ready().await;
    for (ending, reason) in [
        (Ending::GivesNan, "NOT_FINITE"),
        (Ending::GivesShortRow, "KERNEL_FAILED"),
        (Ending::FailsInKernel, "KERNEL_FAILED"),
    ] {
        *bench.script.ending.lock() = ending;
        let error = bench.forward(bench.request(1, &[4])).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::Internal, reason),
            "{ending:?}"
        );
        if ending == Ending::FailsInKernel {
            assert_eq!(error.fact("kernel_family"), Some("conv1d"));
        }
    }
    *bench.script.ending.lock() = Ending::Answers;
    bench
        .forward(bench.request(1, &[4]))
        .await
        .expect("the executor goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let bench = small_queue(2, 10).await;
    let running = occupy(&bench).await;
    let second = bench
        .client
        .clone()
        .forward(bench.request(2, &[6]))
        .await
        .unwrap();
    let by_tokens = bench.forward(bench.request(3, &[5])).await.unwrap_err();
    let third = bench
        .client
        .clone()
        .forward(bench.request(4, &[4]))
        .await
        .unwrap();
    let by_requests = bench.forward(bench.request(5, &[1])).await.unwrap_err();
    for error in [by_tokens, by_requests] {
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::ResourceExhausted, "QUEUE_FULL")
        );
        assert!(error.retry_after.is_some());
    }
    bench.script.let_go();
    running.await.unwrap().unwrap();
    drop((second, third));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_client_frees_its_place_at_once_and_is_not_run() {
    let bench = small_queue(1, 100).await;
    let running = occupy(&bench).await;
    let gone = bench
        .client
        .clone()
        .forward(bench.request(2, &[4]))
        .await
        .unwrap();
    assert_eq!(
        bench.forward(bench.request(3, &[4])).await.unwrap_err().code,
        Code::ResourceExhausted
    );
    drop(gone);
    let until = Instant::now() + Duration::from_millis(500);
    let next = loop {
        match bench.client.clone().forward(bench.request(4, &[4])).await {
            Ok(stream) => break stream,
            Err(_) => assert!(Instant::now() < until, "the place is still taken"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    bench.script.let_go();
    running.await.unwrap().unwrap();
    let mut next = next.into_inner();
    while next.message().await.unwrap().is_some() {}
    assert_eq!(bench.script.ran_tokens(), [100, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatched_request_of_a_gone_client_stops_at_the_next_segment() {
    let bench = Bench::ready().await;
    bench.script.segments.store(1_000, Ordering::Relaxed);
    *bench.script.segment_time.lock() = Duration::from_millis(10);
    let stream = bench
        .client
        .clone()
        .forward(bench.request(1, &[4]))
        .await
        .unwrap();
    eventually("it runs", || {
        bench.script.finished_segments.load(Ordering::Relaxed) > 0
    })
    .await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let stopped_at = bench.script.finished_segments.load(Ordering::Relaxed);
    assert!(stopped_at < 100, "it went on for {stopped_at} segments");
    bench.script.segments.store(1, Ordering::Relaxed);
    bench.forward(bench.request(2, &[4])).await.unwrap();
    assert_eq!(bench.script.ran_tokens(), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept_in_the_queue_and_on_the_device() {
    let bench = Bench::ready().await;
    let running = occupy(&bench).await;
    let timed = |token, timeout| {
        let mut request = tonic::Request::new(bench.request(token, &[4]));
        // The header alone: a timer of the client would end the call by itself.
        let header = deltagate_mesh::deadline::format(timeout);
        request
            .metadata_mut()
            .insert("grpc-timeout", header.parse().unwrap());
        request
    };
    let begin = Instant::now();
    let queued = error(collect(bench.client.clone(), timed(2, Duration::from_millis(150))).await);
    let waited = begin.elapsed();
    assert_eq!(
        (queued.code, queued.fact("stage")),
        (Code::DeadlineExceeded, Some("queue"))
    );
    assert!(
        waited >= Duration::from_millis(140) && waited < Duration::from_millis(400),
        "{waited:?}"
    );
    bench.script.let_go();
    running.await.unwrap().unwrap();

    bench.script.segments.store(1_000, Ordering::Relaxed);
    *bench.script.segment_time.lock() = Duration::from_millis(5);
    let ran = error(collect(bench.client.clone(), timed(3, Duration::from_millis(150))).await);
    assert_eq!(
        (ran.code, ran.fact("stage")),
        (Code::DeadlineExceeded, Some("run"))
    );
    bench.script.segments.store(1, Ordering::Relaxed);
    bench.forward(bench.request(4, &[4])).await.unwrap();
    assert_eq!(
        bench.script.ran_tokens(),
        [100, 4],
        "neither of the late ones ran to its end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_does_not_hold_the_device() {
    let bench = Bench::ready().await;
    bench.script.segments.store(5_000, Ordering::Relaxed);
    let request = v1::ForwardRequest {
        segment_events: true,
        ..bench.request(1, &[4])
    };
    let mut slow = bench.client.clone().forward(request).await.unwrap().into_inner();
    eventually("the device is done with it", || bench.script.ran_tokens() == [1]).await;
    bench.script.segments.store(1, Ordering::Relaxed);
    bench
        .forward(bench.request(2, &[4]))
        .await
        .expect("another one runs meanwhile");
    let mut last = None;
    while let Some(event) = slow.message().await.unwrap() {
        last = event.event;
    }
    assert!(
        matches!(last, Some(Event::Result(_))),
        "the result waited: {last:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_run_in_their_order() {
    let bench = Bench::ready().await;
    let running = occupy(&bench).await;
    let mut streams = Vec::new();
    for token in 1..=5 {
        streams.push(
            bench
                .client
                .clone()
                .forward(bench.request(token, &[4]))
                .await
                .unwrap()
                .into_inner(),
        );
    }
    bench.script.let_go();
    running.await.unwrap().unwrap();
    for (position, stream) in streams.iter_mut().enumerate() {
        let Some(Event::Accepted(accepted)) = stream.message().await.unwrap().unwrap().event else {
            panic!("not accepted");
        };
        assert_eq!(accepted.queue_position as usize, position + 1);
        while stream.message().await.unwrap().is_some() {}
    }
    assert_eq!(bench.script.ran_tokens(), [100, 1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn describes_itself_and_serves_its_assets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), b"{}").unwrap();
    let asset = AssetFile {
        name: "tokenizer.json".to_owned(),
        sha256: "c".repeat(64),
        size_bytes: 2,
        path: dir.path().join("tokenizer.json"),
    };
    let script = Script::default();
    script.assets.lock().push(asset);
    let bench = Bench::with(config(), script, None).await;
    let snapshot = bench.wait_phase(ExecutorPhase::Ready).await;
    let described = bench
        .client
        .clone()
        .describe(v1::DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(described.snapshot.as_ref(), Some(&*snapshot));
    assert_eq!(described.model_card_json, "{\"name\":\"scripted\"}");
    assert_eq!(described.artifacts[0].sha256, "c".repeat(64));
    let request = v1::GetArtifactRequest {
        sha256: described.artifacts[0].sha256.clone(),
    };
    let mut chunks = bench
        .client
        .clone()
        .get_artifact(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(&chunks.message().await.unwrap().unwrap().chunk[..], b"{}");
    assert!(chunks.message().await.unwrap().is_none());
}
