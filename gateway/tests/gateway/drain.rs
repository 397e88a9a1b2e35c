//! Leaving: not ready first, still serving, then nothing new, and what was accepted is finished.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::support::{
    executor::Act,
    mesh::{NOTICED, ready_with},
    requests::{SMALL_BODY, small},
    within,
};

#[tokio::test(flavor = "multi_thread")]
async fn accepted_requests_are_finished() {
    let mesh = ready_with(|config| config.drain.grace = Duration::from_millis(400)).await;
    mesh.executor.then(Act::AnswerAfter(Duration::from_millis(900)));
    mesh.executor.then(Act::AnswerAfter(Duration::from_millis(900)));
    let (grpc, http, ()) = tokio::join!(mesh.classify(small()), mesh.post(SMALL_BODY), async {
        within(NOTICED, "dispatched", || async {
            mesh.executor.calls().len() == 2
        })
        .await;
        mesh.gateway.shutdown();
        within(Duration::from_millis(300), "not serving", || async {
            !mesh.serving().await
        })
        .await;
        let health = mesh.get("/health").await;
        assert_eq!(health.status, 503);
        assert!(health.body.contains("DRAINING"));
        // Within the grace it still serves.
        mesh.classify(small()).await.unwrap();
    });
    grpc.unwrap();
    assert_eq!(http.status, 200);
    let addr = mesh.gateway.http_addr;
    let begun = Instant::now();
    mesh.gateway.wait().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_not_waited_for() {
    let mesh = ready_with(|config| {
        config.drain.grace = Duration::ZERO;
        config.drain.timeout = Duration::from_millis(300);
    })
    .await;
    mesh.executor.then(Act::Hang);
    let gateway = mesh.gateway.grpc_addr;
    let channel = tonic::transport::Channel::from_shared(format!("http://{gateway}"))
        .unwrap()
        .connect_lazy();
    let mut client = deltagate_proto::v1::classifier_service_client::ClassifierServiceClient::new(channel);
    let call = tokio::spawn(async move { client.classify(small()).await });
    within(NOTICED, "dispatched", || async {
        mesh.executor.calls().len() == 1
    })
    .await;
    mesh.gateway.shutdown();
    let begun = Instant::now();
    mesh.gateway.wait().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(call.await.unwrap().is_err());
}
