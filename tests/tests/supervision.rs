//! `up` keeps its children alive, and leaves none behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::ensure;
use deltagate_proto::v1::{
    ClassifyStreamRequest, classifier_service_client::ClassifierServiceClient,
    classify_stream_response::Event,
};
use deltagate_tests::{
    calls,
    cluster::{Cluster, READY_WITHIN, Service},
    process::{self, Process, eventually},
    requests::{choice, small},
};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Process ids of the four children, by name, once all of them run.
async fn children(up: &Process) -> BTreeMap<String, u32> {
    let id = up.id().unwrap();
    let wait = eventually(READY_WITHIN, || async {
        let children: BTreeMap<_, _> = process::children(id)
            .into_iter()
            .map(|(pid, name)| (name, pid))
            .collect();
        let all = Service::ALL.iter().all(|s| children.contains_key(s.name()));
        ensure!(
            all && children.len() == Service::ALL.len(),
            "children: {children:?}"
        );
        Ok(children)
    });
    wait.await.unwrap().0
}

async fn all_end(children: &BTreeMap<String, u32>, within: Duration) -> Duration {
    let wait = eventually(within, || async {
        let left: Vec<_> = children
            .iter()
            .filter(|(_, pid)| process::is_running(**pid))
            .collect();
        ensure!(left.is_empty(), "still there: {left:?}");
        Ok(())
    });
    wait.await.unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn up_restarts_what_dies_and_ends_every_child_when_it_is_told_to_end() {
    let cluster = Cluster::new(BINARY).unwrap();
    let mut up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    let mut before = children(&up).await;

    for service in Service::ALL {
        let killed = Instant::now();
        process::signal("KILL", before[service.name()]).await.unwrap();
        let (_, gone) = eventually(Duration::from_secs(2), || async {
            ensure!(!process::is_running(before[service.name()]), "not dead yet");
            Ok(())
        })
        .await
        .unwrap();
        let after = children(&up).await;
        for other in Service::ALL.iter().filter(|s| **s != service) {
            assert_eq!(
                before[other.name()],
                after[other.name()],
                "{} was restarted, too",
                other.name()
            );
        }
        assert_ne!(before[service.name()], after[service.name()]);
        // Ready again, and really answering.
        let healed = eventually(READY_WITHIN, || async {
            Ok(calls::classify(cluster.ports.gateway, small("Charged twice."))
                .await
                .map(drop)?)
        });
        healed.await.unwrap();
        cluster.ready().await.unwrap();
        println!(
            "{}: dead after {gone:?}, restarted and answering after {:?}",
            service.name(),
            killed.elapsed()
        );
        before = after;
    }

    up.signal("TERM").await.unwrap();
    assert_eq!(
        up.wait(Duration::from_secs(15)).await.unwrap(),
        Some(0),
        "{}",
        cluster.logs()
    );
    all_end(&before, Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_child_outlives_a_supervisor_that_is_killed() {
    let cluster = Cluster::new(BINARY).unwrap();
    let mut up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    let children = children(&up).await;
    up.kill().await.unwrap();
    let took = all_end(&children, Duration::from_secs(10)).await;
    println!("the last child ended {took:?} after its supervisor was killed");
    // And the ports are free again.
    for service in Service::ALL {
        std::net::TcpListener::bind(("127.0.0.1", service.port(&cluster.ports))).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_answered_when_the_mesh_is_told_to_end() {
    for in_process in [true, false] {
        let cluster = Cluster::new(BINARY).unwrap();
        let arguments = if in_process {
            &["--cpu", "--in-process"][..]
        } else {
            &["--cpu"]
        };
        let mut up = cluster.up(arguments).unwrap();
        cluster.ready().await.unwrap();
        // Two rounds: when the signal comes in the first one, the gateway still needs the executor for the second.
        let names: Vec<_> = (0..60).map(|i| format!("department {i}")).collect();
        let options: Vec<_> = names.iter().map(|n| (n.as_str(), None)).collect();
        let mut wide = small(&"The customer writes again about the same invoice. ".repeat(60));
        wide.questions = vec![choice("department", "Which department?", &options)];
        let mut client = ClassifierServiceClient::new(calls::channel(cluster.ports.gateway).unwrap());
        let request = ClassifyStreamRequest { request: Some(wide) };
        let mut events = client.classify_stream(request).await.unwrap().into_inner();
        let (mut told, mut steps) = (false, 0);
        let answers = loop {
            match events
                .message()
                .await
                .unwrap()
                .expect("the stream ended without answers")
                .event
                .unwrap()
            {
                Event::Segment(segment) => {
                    if !told {
                        up.signal("TERM").await.unwrap();
                        told = true;
                    }
                    steps = segment.step + 1;
                }
                Event::Answers(answers) => break answers,
                Event::Accepted(_) => {}
            }
        };
        assert_eq!((told, steps, answers.answers.len()), (true, 2, 1));
        drop((events, client));
        assert_eq!(
            up.wait(Duration::from_secs(30)).await.unwrap(),
            Some(0),
            "{}",
            cluster.logs()
        );
    }
}

/// Latency is measured elsewhere; here it has to answer, and to end when it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn the_set_works_with_busy_polling() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("gateway.busy_poll", "true");
    cluster.set("executor.busy_poll", "true");
    let mut up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    let mut client = ClassifierServiceClient::new(calls::channel(cluster.ports.gateway).unwrap());
    let answers = client
        .classify(small("My parcel never arrived."))
        .await
        .unwrap()
        .into_inner();
    assert!(!answers.answers.is_empty());
    drop(client);
    up.signal("TERM").await.unwrap();
    let code = up.wait(Duration::from_secs(30)).await.unwrap();
    assert_eq!(code, Some(0), "{}", cluster.logs());
}
