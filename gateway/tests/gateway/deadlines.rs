//! Deadlines, callers that leave, and the bound on concurrency.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use deltagate_mesh::error::{Code, ServiceError};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tonic::Request;

use crate::support::{
    executor::Act,
    http::request_bytes,
    mesh::{Mesh, NOTICED, ready, ready_with},
    requests::{SMALL_BODY, small},
    within,
};

async fn dispatched(mesh: &Mesh, count: usize) {
    within(NOTICED, "dispatched", || async {
        mesh.executor.calls().len() >= count
    })
    .await;
}

async fn dropped(mesh: &Mesh, count: usize) {
    within(NOTICED, "the executor saw the cancellation", || async {
        mesh.executor.dropped.load(Ordering::SeqCst) >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_deadline_exceeded_and_reaches_the_executor() {
    let mesh = ready_with(|config| config.request_timeout = Duration::from_millis(600)).await;
    // The caller's own deadline wins when it is earlier.
    mesh.executor.then(Act::Hang);
    let mut request = Request::new(small());
    request
        .metadata_mut()
        .insert("grpc-timeout", "300m".parse().unwrap());
    let begun = Instant::now();
    let status = mesh.client().classify(request).await.unwrap_err();
    assert_eq!(ServiceError::from(&status).code, Code::DeadlineExceeded);
    assert!(begun.elapsed() < Duration::from_millis(550));
    let timeout = mesh.executor.calls()[0].grpc_timeout.clone().unwrap();
    let told = deltagate_mesh::deadline::parse(timeout.as_bytes()).unwrap();
    assert!(
        told < Duration::from_millis(300) && told > Duration::from_millis(150),
        "{told:?}"
    );
    dropped(&mesh, 1).await;
    // Otherwise the gateway's bound, and the error says where the request was.
    mesh.executor.then(Act::Hang);
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED")
    );
    assert!(error.fact("stage").is_some(), "{error:?}");
    dropped(&mesh, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configured_bound_holds_for_http() {
    let mesh = ready_with(|config| config.request_timeout = Duration::from_millis(300)).await;
    mesh.executor.then(Act::Hang);
    let response = mesh.post(SMALL_BODY).await;
    assert_eq!(
        (response.status, response.json()["detail"][0]["type"].as_str()),
        (504, Some("deadline_exceeded"))
    );
    dropped(&mesh, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let mesh = ready_with(|config| config.request_timeout = Duration::from_millis(300)).await;
    let mut stream = TcpStream::connect(mesh.gateway.http_addr).await.unwrap();
    let head = "POST /v1/systemone HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_frees_the_executor() {
    let mesh = ready().await;
    // gRPC: the future of the call is dropped.
    mesh.executor.then(Act::Hang);
    {
        let call = mesh.classify(small());
        tokio::select! {
            _ = call => panic!("it hangs"),
            () = dispatched(&mesh, 1) => {}
        }
    }
    dropped(&mesh, 1).await;
    // A stream that is dropped.
    mesh.executor.then(Act::Hang);
    let request = deltagate_proto::v1::ClassifyStreamRequest {
        request: Some(small()),
    };
    let stream = mesh.client().classify_stream(request).await.unwrap();
    dispatched(&mesh, 2).await;
    drop(stream);
    dropped(&mesh, 2).await;
    // HTTP: the connection is closed.
    mesh.executor.then(Act::Hang);
    let mut stream = TcpStream::connect(mesh.gateway.http_addr).await.unwrap();
    let request = request_bytes(
        "POST",
        "/v1/systemone",
        &[("content-type", "application/json")],
        SMALL_BODY.as_bytes(),
    );
    stream.write_all(&request).await.unwrap();
    dispatched(&mesh, 3).await;
    drop(stream);
    dropped(&mesh, 3).await;
    mesh.classify(small()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_too_many_is_refused_and_its_place_comes_back() {
    let mesh = ready_with(|config| config.limits.max_concurrent = 1).await;
    mesh.executor.then(Act::AnswerAfter(Duration::from_millis(500)));
    let (first, ()) = tokio::join!(mesh.classify(small()), async {
        dispatched(&mesh, 1).await;
        let error = mesh.classify(small()).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::ResourceExhausted, "QUEUE_FULL")
        );
        assert!(error.retry_after.is_some());
        let http = mesh.post(SMALL_BODY).await;
        assert_eq!((http.status, http.header("retry-after")), (429, Some("1")));
    });
    first.unwrap();
    mesh.classify(small()).await.unwrap();
}
