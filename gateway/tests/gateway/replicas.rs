//! Several executors behind one gateway: who gets which run, and what a name means while executors come and go.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use deltagate_mesh::{
    error::{Code, ServiceError},
    server::ServerHandle,
};
use deltagate_proto::v1::ClassifyRequest;
use serde_json::json;

use crate::support::{
    executor::{Act, FakeExecutor},
    mesh::{Mesh, NOTICED, ready, ready_with},
    requests::{small, wide},
    within,
};

/// One more executor, allowed by policy, that serves the model `name` with the weights `digest`.
async fn join(mesh: &Mesh, fingerprint: &str, name: &str, digest: &str) -> (FakeExecutor, ServerHandle) {
    let executor = FakeExecutor::new(fingerprint);
    *executor.digest.lock() = digest.to_owned();
    let server = executor.serve(None).await;
    mesh.policy.change(|said| {
        said.permits.insert("executor-2".into(), fingerprint.into());
    });
    mesh.capability.shown.send_modify(|shown| {
        let mut snapshot = shown.snapshots[0].clone();
        snapshot.instance_id = "executor-2".into();
        snapshot.endpoint = server.endpoint();
        snapshot.fingerprint = fingerprint.into();
        let model = snapshot.model.as_mut().unwrap();
        (model.name, model.digest) = (name.into(), digest.into());
        shown.snapshots.push(snapshot);
    });
    within(NOTICED, "the second executor can be used", || async {
        let health = mesh.get("/health").await.json();
        let models = health["models"].as_array().cloned().unwrap_or_default();
        models.iter().map(|m| m["ready"].as_u64().unwrap()).sum::<u64>() == 2
    })
    .await;
    (executor, server)
}

fn named(name: &str) -> ClassifyRequest {
    ClassifyRequest {
        model: name.into(),
        ..small()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_executors_of_one_model_share_the_load() {
    let mesh = ready().await;
    let (second, _server) = join(&mesh, "fp-1", "mini", "model-digest").await;
    let caller = |_| async {
        for _ in 0..25 {
            mesh.classify(small()).await.unwrap();
        }
    };
    futures::future::join_all((0..8).map(caller)).await;
    let (first, second) = (mesh.executor.calls().len(), second.calls().len());
    assert_eq!(first + second, 200);
    assert!(first >= 60 && second >= 60, "{first} and {second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_hangs_gets_no_more_than_it_holds() {
    let mesh = ready().await;
    let (second, _server) = join(&mesh, "fp-1", "mini", "model-digest").await;
    for _ in 0..100 {
        second.then(Act::AnswerAfter(Duration::from_secs(3)));
    }
    // Who gets a call is a matter of chance, until one hangs there.
    let held = async {
        loop {
            mesh.classify(small()).await.unwrap();
        }
    };
    let others = async {
        within(NOTICED, "one call hangs", || async { second.calls().len() == 1 }).await;
        let (before, begun) = (mesh.executor.calls().len(), Instant::now());
        for _ in 0..50 {
            mesh.classify(small()).await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!(mesh.executor.calls().len() - before, 50);
    };
    tokio::select! {
        () = held => {}
        () = others => {}
    }
    assert_eq!(second.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_executor_is_passed_over_and_two_full_ones_say_when() {
    let mesh = ready().await;
    let (second, _server) = join(&mesh, "fp-1", "mini", "model-digest").await;
    let full = || {
        Act::Refuse(
            ServiceError::resource_exhausted("QUEUE_FULL", "full").retry_after(Duration::from_millis(250)),
        )
    };
    for _ in 0..20 {
        mesh.executor.then(full());
    }
    for _ in 0..20 {
        mesh.classify(small()).await.unwrap();
    }
    assert_eq!(
        second.calls().len(),
        20,
        "every request is answered by the one with room"
    );
    mesh.executor.script.lock().clear();
    mesh.executor.then(full());
    second.then(full());
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.retry_after),
        (Code::ResourceExhausted, Some(Duration::from_millis(250)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_of_a_request_stay_with_one_binding_and_one_set_of_weights() {
    for (fingerprint, digest) in [("fp-2", "model-digest"), ("fp-2", "other-digest")] {
        let mesh = ready().await;
        let (second, _server) = join(&mesh, fingerprint, "mini", digest).await;
        let mut used = BTreeSet::new();
        for _ in 0..24 {
            let before = (mesh.executor.calls().len(), second.calls().len());
            let response = mesh.classify(wide(255)).await.unwrap();
            let ran = (
                mesh.executor.calls().len() - before.0,
                second.calls().len() - before.1,
            );
            let expected = if response.capability_fingerprint == "fp-1" {
                (3, 0)
            } else {
                (0, 3)
            };
            assert_eq!(ran, expected, "nothing was run twice or by another binding");
            used.insert(response.capability_fingerprint);
        }
        assert_eq!(used.len(), 2, "{used:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_one_binding_may_share_the_rounds_of_a_request() {
    let mesh = ready().await;
    let alone = mesh.classify(wide(255)).await.unwrap();
    let (second, _server) = join(&mesh, "fp-1", "mini", "model-digest").await;
    let mut shared = 0;
    for _ in 0..24 {
        let before = second.calls().len();
        let response = mesh.classify(wide(255)).await.unwrap();
        assert_eq!(response.answers, alone.answers);
        shared += usize::from((1..3).contains(&(second.calls().len() - before)));
    }
    assert!(shared > 0, "no request was run by both");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_loses_no_request() {
    let mut mesh = ready().await;
    let (second, _server) = join(&mesh, "fp-1", "mini", "model-digest").await;
    let server = mesh.executor_server.take().unwrap();
    for _ in 0..200 {
        mesh.executor.then(Act::AnswerAfter(Duration::from_millis(20)));
    }
    let caller = |_| async {
        for _ in 0..20 {
            mesh.classify(small()).await.unwrap();
        }
    };
    tokio::join!(futures::future::join_all((0..8).map(caller)), async {
        within(NOTICED, "both are at work", || async {
            mesh.executor.calls().len() >= 8
        })
        .await;
        server.kill();
    });
    assert!(second.calls().len() > 60, "{}", second.calls().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_aliases_route_and_what_left_is_away_and_not_unknown() {
    let mesh = ready_with(|config| {
        let alias = |alias: &str, name: &str| (alias.to_owned(), name.to_owned());
        config.aliases = [alias("jev-latest", "maxi"), alias("planned", "mega")].into();
    })
    .await;
    assert_eq!(
        mesh.get("/v1/models").await.json()["data"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let (second, _server) = join(&mesh, "fp-2", "maxi", "other-digest").await;
    for (name, fingerprint) in [("mini", "fp-1"), ("maxi", "fp-2"), ("jev-latest", "fp-2")] {
        let response = mesh.classify(named(name)).await.unwrap();
        assert_eq!(response.capability_fingerprint, fingerprint, "{name}");
        assert_ne!(
            response.model, "jev-latest",
            "an answer names the model, not the alias"
        );
    }
    assert_eq!((mesh.executor.calls().len(), second.calls().len()), (1, 2));

    let models = mesh.get("/v1/models").await.json();
    let names = |key: &str, name: &str| -> Vec<_> {
        models[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m[name].clone())
            .collect()
    };
    assert_eq!(names("models", "name"), ["jev-latest", "maxi", "mini"]);
    assert_eq!(names("data", "id"), ["jev-latest", "maxi", "mini"]);
    let described = models["models"][0]["description"].as_str().unwrap();
    assert!(described.starts_with("alias of maxi: "), "{described}");
    let health = mesh.get("/health").await.json();
    assert_eq!(
        health["models"],
        json!([
            {"name": "maxi", "executors": 1, "ready": 1, "fingerprints": ["fp-2"], "reasons": []},
            {"name": "mini", "executors": 1, "ready": 1, "fingerprints": ["fp-1"], "reasons": []},
        ])
    );

    // It leaves: its own name and its alias are away, the other goes on, and nothing else became known.
    mesh.capability.shown.send_modify(|shown| {
        shown.snapshots.pop();
    });
    within(NOTICED, "maxi is refused", || async {
        mesh.classify(named("maxi")).await.is_err()
    })
    .await;
    for name in ["maxi", "jev-latest", "planned"] {
        let error = mesh.classify(named(name)).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::Unavailable, "NO_EXECUTOR"),
            "{name}"
        );
        assert!(error.retry_after.is_some());
    }
    let error = mesh.classify(named("mega")).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::NotFound, "MODEL_NOT_FOUND")
    );
    mesh.classify(named("mini")).await.unwrap();
    let health = mesh.get("/health").await.json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["models"][0]["name"], "maxi");
    assert_eq!(health["models"][0]["executors"], 0);
}
