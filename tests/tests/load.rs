//! More than the device can take, and callers that hang up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use deltagate_proto::v1::{ClassifyRequest, classifier_service_client::ClassifierServiceClient};
use deltagate_tests::{
    calls::{self, reason},
    cluster::Cluster,
    http,
    ports::url,
    requests::{small, yes_no},
};
use serde_json::json;
use tonic::Code;
use tonic_types::StatusExt;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Several long prompts: the device is busy for a while.
fn slow() -> ClassifyRequest {
    let mut request = small(&"The customer writes again about the same invoice. ".repeat(80));
    request.questions = (0..4)
        .map(|i| yes_no(&format!("q{i}"), "Is it about an invoice?"))
        .collect();
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("executor.queue.max_requests", "1");
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let gateway = cluster.ports.gateway;

    let calls = (0..10).map(|_| tokio::spawn(calls::classify(gateway, slow())));
    let over_http = {
        let body = json!({
            "state": "The customer writes again about the same invoice. ".repeat(150),
            "questions": {"q": {"type": "noul", "instructions": "Is it about an invoice?"}},
        });
        let url = format!("{}/v1/systemone", url(cluster.ports.http));
        tokio::spawn(async move {
            // After the others, when the queue is full.
            tokio::time::sleep(Duration::from_millis(300)).await;
            http::post(&url, &body).await
        })
    };
    let results = futures::future::join_all(calls).await;
    let (answered, refused): (Vec<_>, Vec<_>) =
        results.into_iter().map(Result::unwrap).partition(Result::is_ok);
    assert!(
        !answered.is_empty() && !refused.is_empty(),
        "{} answered, {} refused",
        answered.len(),
        refused.len()
    );
    for status in refused.into_iter().filter_map(Result::err) {
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::ResourceExhausted, "QUEUE_FULL"),
            "{status:?}"
        );
        let delay = status.get_details_retry_info().and_then(|r| r.retry_delay);
        assert!(delay.is_some_and(|d| !d.is_zero()), "{status:?}");
    }
    let web = over_http.await.unwrap().unwrap();
    assert!(matches!(web.status, 200 | 429), "{}", web.body);
    if web.status == 429 {
        assert!(
            web.header("retry-after")
                .is_some_and(|s| s.parse::<u64>().is_ok_and(|s| s > 0)),
            "{:?}",
            web.headers
        );
    }
    // Full is not broken.
    calls::classify(gateway, small("Charged twice.")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_frees_the_device() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let gateway = cluster.ports.gateway;
    let asked = Instant::now();
    calls::classify(gateway, slow()).await.unwrap();
    let whole = asked.elapsed();

    // Ten of them are sent and given up when the first has hardly begun.
    let mut clients: Vec<_> = (0..10)
        .map(|_| ClassifierServiceClient::new(calls::channel(gateway).unwrap()))
        .collect();
    let pending = futures::future::join_all(clients.iter_mut().map(|c| c.classify(slow())));
    let _ = tokio::time::timeout(whole / 4, pending)
        .await
        .expect_err("they ended at once");
    drop(clients);
    let asked = Instant::now();
    calls::classify(gateway, small("Charged twice.")).await.unwrap();
    let took = asked.elapsed();
    println!("a long request takes {whole:?}; after ten of them were given up a short one took {took:?}");
    assert!(
        took < whole * 2,
        "{took:?}: the device still runs what nobody waits for"
    );
}
