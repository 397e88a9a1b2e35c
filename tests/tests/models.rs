//! Several models behind one gateway, and several executors of one model: real processes that come, go, hang and die.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use anyhow::ensure;
use deltagate_proto::v1::{CapabilitySnapshot, ClassifyRequest, ExecutorPhase};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, READY_WITHIN, Service},
    http, model_folder,
    ports::url,
    process::{self, Process, eventually},
    requests::{as_systemone, small, ticket, ticket_body},
    traffic::{Sample, Traffic},
};
use serde_json::{Value, json};
use tonic::Code;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Who joins or leaves is seen within this time.
const BOUND: Duration = Duration::from_secs(2);

/// Name of the model in the binary.
const MINI: &str = "deltagate-mini";

fn to(model: &str, request: ClassifyRequest) -> ClassifyRequest {
    ClassifyRequest {
        model: model.to_owned(),
        ..request
    }
}

async fn web(cluster: &Cluster, model: &str) -> http::Answer {
    let mut body = ticket_body();
    body["model"] = json!(model);
    http::post(&format!("{}/v1/systemone", url(cluster.ports.http)), &body)
        .await
        .unwrap()
}

/// When the executor itself says that it is ready: after this the gateway has two seconds to use it.
async fn ready(cluster: &Cluster, port: u16) -> CapabilitySnapshot {
    let waited = eventually(READY_WITHIN, || async {
        let snapshot = calls::describe(port).await?.snapshot.unwrap_or_default();
        ensure!(snapshot.phase() == ExecutorPhase::Ready, "{:?}", snapshot.reasons);
        Ok(snapshot)
    });
    waited
        .await
        .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()))
        .0
}

/// How long until the gateway answers for this model.
async fn answered(cluster: &Cluster, model: &str) -> Duration {
    let asked = eventually(READY_WITHIN, || async {
        Ok(calls::classify(cluster.ports.gateway, to(model, small("Charged twice."))).await?)
    });
    asked
        .await
        .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()))
        .1
}

/// Answers by fingerprint; no request may have failed.
fn shares(samples: &[Sample]) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for sample in samples {
        match &sample.result {
            Ok(response) => *shares.entry(response.capability_fingerprint.clone()).or_default() += 1,
            Err(error) => panic!("a request failed after {:?}: {error:?}", sample.took),
        }
    }
    shares
}

async fn more(traffic: &Traffic, count: usize) {
    let wanted = traffic.done() + count;
    let wait = eventually(Duration::from_secs(120), || async {
        ensure!(traffic.done() >= wanted, "{} of {wanted}", traffic.done());
        Ok(())
    });
    wait.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_told_apart_by_name_and_alias_and_come_and_go() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    let folder = cluster.path("other");
    model_folder::write_other(&folder).unwrap();
    cluster.set("policy.bundle", "cpu");
    cluster.set("gateway.aliases.jev-latest", "cool");
    let port = cluster.ports.executor + 1;
    let (listen, folder) = (format!("127.0.0.1:{port}"), folder.display().to_string());
    let settings = [
        ("listen", listen.as_str()),
        ("model", &folder),
        ("model_name", "cool"),
    ];

    // Last things first: nobody needs an order.
    cluster.start(Service::Gateway).unwrap();
    cluster.start(Service::Executor).unwrap();
    cluster.start(Service::Policy).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.start(Service::Capability).unwrap();
    cluster.ready().await.unwrap();
    let mini = cluster.ready_executor(READY_WITHIN).await.unwrap();
    let gateway = cluster.ports.gateway;

    // The alias is configured, so its model is away; the name itself nobody has heard of.
    let away = calls::classify(gateway, to("jev-latest", small("Charged twice.")))
        .await
        .unwrap_err();
    assert_eq!(
        (away.code(), reason(&away).as_str()),
        (Code::Unavailable, "NO_EXECUTOR")
    );
    let away = web(&cluster, "jev-latest").await;
    assert_eq!(away.status, 503, "{}", away.body);
    assert!(away.header("retry-after").is_some());
    let unknown = calls::classify(gateway, to("cool", small("Charged twice.")))
        .await
        .unwrap_err();
    assert_eq!(
        (unknown.code(), reason(&unknown).as_str()),
        (Code::NotFound, "MODEL_NOT_FOUND")
    );
    assert_eq!(web(&cluster, "cool").await.status, 404);

    // It joins.
    let mut other = cluster.one_more_executor("other", &settings).unwrap();
    let cool = ready(&cluster, port).await;
    let joined = answered(&cluster, "cool").await;
    println!("a new model is answered {joined:?} after its executor was ready");
    assert!(joined <= BOUND, "{joined:?}");

    let mut answers: BTreeMap<&str, Value> = BTreeMap::new();
    for (name, served, snapshot) in [
        (MINI, MINI, &mini),
        ("cool", "cool", &cool),
        ("jev-latest", "cool", &cool),
    ] {
        let response = calls::classify(gateway, to(name, ticket())).await.unwrap();
        assert_eq!(
            (response.model.as_str(), &response.capability_fingerprint),
            (served, &snapshot.fingerprint)
        );
        let over_http = web(&cluster, name).await;
        assert_eq!(
            (over_http.status, &over_http.body["model"]),
            (200, &json!(served))
        );
        assert_eq!(
            over_http.body["answers"],
            as_systemone(&response.answers),
            "{name}"
        );
        answers.insert(name, as_systemone(&response.answers));
    }
    assert_eq!(answers["cool"], answers["jev-latest"]);
    assert_ne!(answers["cool"], answers[MINI], "both answers came from one model");

    // Named by nobody: which one is meant is not guessed.
    let status = calls::classify(gateway, small("Charged twice."))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains(&format!("cool, {MINI}")), "{status:?}");
    let unnamed = http::post(
        &format!("{}/v1/systemone", url(cluster.ports.http)),
        &ticket_body(),
    )
    .await
    .unwrap();
    assert_eq!(
        (unnamed.status, &unnamed.body["detail"][0]["loc"]),
        (422, &json!(["body", "model"]))
    );

    let models = http::get(&format!("{}/v1/models", url(cluster.ports.http)))
        .await
        .unwrap();
    let listed: Vec<_> = models.body["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["name"].clone())
        .collect();
    assert_eq!(listed, ["cool", MINI, "jev-latest"]);
    let health = http::get(&format!("{}/health", url(cluster.ports.http)))
        .await
        .unwrap();
    assert_eq!(
        health.body["models"][0]["fingerprints"],
        json!([cool.fingerprint])
    );
    assert_eq!(health.body["models"][1]["name"], MINI);

    // It dies: its names are refused within two seconds, and the other model does not notice.
    let traffic = Traffic::start(
        gateway,
        2,
        Duration::from_millis(20),
        &to(MINI, small("Charged twice.")),
    )
    .unwrap();
    more(&traffic, 10).await;
    other.kill().await.unwrap();
    let killed = Instant::now();
    let refused = eventually(BOUND, || async {
        let status = calls::classify(gateway, to("jev-latest", small("Charged twice."))).await;
        let status = status
            .err()
            .ok_or_else(|| anyhow::anyhow!("it is still answered"))?;
        ensure!(status.code() == Code::Unavailable, "{status:?}");
        Ok(reason(&status))
    });
    let (why, _) = refused.await.unwrap();
    println!(
        "a dead executor's model is refused with {why} after {:?}",
        killed.elapsed()
    );
    // It stays so when the registry has forgotten it, too.
    let forgotten = eventually(BOUND, || async {
        let view = calls::capabilities(cluster.ports.capability).await?;
        ensure!(view.executors.len() == 1, "{} executors", view.executors.len());
        Ok(())
    });
    forgotten.await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in ["cool", "jev-latest"] {
        let status = calls::classify(gateway, to(name, small("Charged twice.")))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::Unavailable, "NO_EXECUTOR"),
            "{name}"
        );
        let over_http = web(&cluster, name).await;
        assert_eq!(over_http.status, 503, "{}", over_http.body);
    }
    more(&traffic, 10).await;

    // And comes back.
    let _other = cluster.one_more_executor("other", &settings).unwrap();
    let again = ready(&cluster, port).await;
    assert_eq!(again.fingerprint, cool.fingerprint);
    let rejoined = answered(&cluster, "jev-latest").await;
    println!("it is answered again {rejoined:?} after its executor was ready");
    assert!(rejoined <= BOUND, "{rejoined:?}");
    let samples = traffic.end().await.unwrap();
    assert_eq!(
        shares(&samples),
        [(mini.fingerprint.clone(), samples.len())].into()
    );
}

/// Two executors of one model that bind different backends, so that every answer tells which of them gave it.
struct Pair {
    cluster: Cluster,
    second: Process,
    settings: [(&'static str, String); 2],
    first_fingerprint: String,
    second_fingerprint: String,
}

impl Pair {
    async fn start() -> Self {
        let mut cluster = Cluster::new(BINARY).unwrap();
        // Two cores for both.
        cluster.set("executor.threads", "1");
        cluster.set("executor.kernels.delta_rule", "cpu.chunked");
        cluster.start_all().unwrap();
        let port = cluster.ports.executor + 1;
        let settings = [
            ("listen", format!("127.0.0.1:{port}")),
            ("kernels.delta_rule", "cpu.recurrent".to_owned()),
        ];
        let second = Self::launch(&cluster, &settings);
        cluster.ready().await.unwrap();
        let first_fingerprint = ready(&cluster, cluster.ports.executor).await.fingerprint;
        let second_fingerprint = ready(&cluster, port).await.fingerprint;
        assert_ne!(first_fingerprint, second_fingerprint);
        let pair = Self {
            cluster,
            second,
            settings,
            first_fingerprint,
            second_fingerprint,
        };
        pair.both().await;
        pair
    }

    fn launch(cluster: &Cluster, settings: &[(&str, String); 2]) -> Process {
        let settings = settings.each_ref().map(|(key, value)| (*key, value.as_str()));
        cluster.one_more_executor("second", &settings).unwrap()
    }

    /// Waits until the gateway can use both, and gives the time that it took.
    async fn both(&self) -> Duration {
        let health = format!("{}/health", url(self.cluster.ports.http));
        let waited = eventually(READY_WITHIN, || async {
            let body = http::get(&health).await?.body;
            ensure!(body["models"][0]["ready"] == 2, "{}", body["models"]);
            Ok(())
        });
        waited.await.unwrap().1
    }

    fn traffic(&self, request: &ClassifyRequest) -> Traffic {
        Traffic::start(self.cluster.ports.gateway, 8, Duration::ZERO, request).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_executors_of_one_model_share_the_load_of_eight_callers() {
    let pair = Pair::start().await;
    let traffic = pair.traffic(&small("Charged twice."));
    more(&traffic, 200).await;
    let samples = traffic.end().await.unwrap();
    let shares = shares(&samples);
    println!(
        "{} requests: {:?}",
        samples.len(),
        shares.values().collect::<Vec<_>>()
    );
    assert!(samples.len() >= 200);
    for fingerprint in [&pair.first_fingerprint, &pair.second_fingerprint] {
        let share = shares.get(fingerprint).copied().unwrap_or(0) as f64 / samples.len() as f64;
        assert!(share >= 0.3, "{share:.2} of the requests went to {fingerprint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_hangs_or_dies_costs_its_replica_nothing_and_no_caller_an_answer() {
    let mut pair = Pair::start().await;

    // So short that eight of them on one executor are far from a second, on a busy machine, too.
    let short = small("Charged twice.");

    // One hangs. Whoever waits for it is answered by the other, and nobody else waits at all.
    let traffic = pair.traffic(&short);
    more(&traffic, 40).await;
    pair.second.signal("STOP").await.unwrap();
    let stopped = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    pair.second.signal("CONT").await.unwrap();
    let continued = Instant::now();
    pair.both().await;
    more(&traffic, 100).await;
    let samples = traffic.end().await.unwrap();
    shares(&samples);
    let after = |at: Instant, until: Instant| -> Vec<&Sample> {
        let within = |s: &&Sample| s.sent > at && s.sent + s.took < until;
        samples.iter().filter(within).collect()
    };
    let meanwhile = after(stopped, stopped + Duration::from_secs(1));
    let slow = samples.iter().filter(|s| s.took > Duration::from_secs(1)).count();
    let longest = samples.iter().map(|s| s.took).max().unwrap();
    println!(
        "stopped: {} answered in the next second; {slow} of {} waited for it, at most {longest:?}",
        meanwhile.len(),
        samples.len()
    );
    assert!(meanwhile.len() >= 4, "{} answers in a second", meanwhile.len());
    assert!(slow <= 8, "{slow} requests waited for an executor that hangs");
    assert!(longest < Duration::from_secs(4), "{longest:?}");
    let used: BTreeSet<_> = after(continued, continued + Duration::from_secs(60))
        .into_iter()
        .filter_map(|s| s.result.as_ref().ok())
        .map(|r| r.capability_fingerprint.as_str())
        .collect();
    assert_eq!(used.len(), 2, "the one that hung is not used again");

    // One dies. No request fails.
    let traffic = pair.traffic(&short);
    more(&traffic, 40).await;
    pair.second.kill().await.unwrap();
    let killed = Instant::now();
    more(&traffic, 100).await;
    let samples = traffic.end().await.unwrap();
    shares(&samples);
    let longest = samples.iter().map(|s| s.took).max().unwrap();
    let late = samples
        .iter()
        .filter(|s| s.sent > killed)
        .filter(|s| {
            s.result
                .as_ref()
                .is_ok_and(|r| r.capability_fingerprint == pair.second_fingerprint)
        })
        .count();
    println!(
        "killed: {} requests, none failed, the longest took {longest:?}",
        samples.len()
    );
    assert_eq!(late, 0);

    // It comes back and takes its share.
    pair.second = Pair::launch(&pair.cluster, &pair.settings);
    ready(&pair.cluster, pair.cluster.ports.executor + 1).await;
    let joined = pair.both().await;
    println!("back in use {joined:?} after it was ready");
    assert!(joined <= BOUND, "{joined:?}");
    let traffic = pair.traffic(&short);
    more(&traffic, 60).await;
    let shares = shares(&traffic.end().await.unwrap());
    assert!(shares.contains_key(&pair.second_fingerprint), "{shares:?}");
}

/// Children of `up` by their first argument, and how many of each.
fn children(up: &Process) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, name) in process::children(up.id().unwrap()) {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn up_starts_an_executor_for_each_model() {
    let cluster = Cluster::new(BINARY).unwrap();
    let folder = cluster.path("other");
    model_folder::write_other(&folder).unwrap();
    let named = format!("cool={}", folder.display());
    let file = cluster.path("deltagate.toml");
    let list = format!(
        "[[up.models]]\nmodel = \"embedded\"\n[[up.models]]\nmodel = {:?}\nname = \"cool\"\nlisten = \"127.0.0.1:{}\"\n",
        folder.display().to_string(),
        cluster.ports.executor + 3
    );
    fs::write(&file, list).unwrap();
    let file = file.display().to_string();

    let flags = [
        "--cpu",
        "--require-ready",
        "60s",
        "--model",
        "embedded",
        "--model",
        &named,
    ];
    let from_file = ["--cpu", "--in-process", "--config", &file];
    for (arguments, port) in [(&flags[..], 1), (&from_file[..], 3)] {
        let mut up = cluster.up(arguments).unwrap();
        for name in [MINI, "cool"] {
            answered(&cluster, name).await;
        }
        assert_eq!(
            ready(&cluster, cluster.ports.executor + port)
                .await
                .model
                .unwrap()
                .name,
            "cool"
        );
        let view = calls::capabilities(cluster.ports.capability).await.unwrap();
        let names: BTreeSet<_> = view
            .executors
            .into_iter()
            .map(|e| e.snapshot.unwrap().model.unwrap().name)
            .collect();
        assert_eq!(names, [MINI.to_owned(), "cool".to_owned()].into());
        let expected: BTreeMap<_, _> = [("capability", 1), ("policy", 1), ("executor", 2), ("gateway", 1)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        if port == 1 {
            assert_eq!(children(&up), expected);
        }
        up.signal("TERM").await.unwrap();
        assert_eq!(
            up.wait(Duration::from_secs(20)).await.unwrap(),
            Some(0),
            "{}",
            cluster.logs()
        );
    }

    // Two folders of one name, and a value that is none.
    let twin = cluster.path("twin/other");
    model_folder::copy(&folder, &twin).unwrap();
    let (a, b) = (folder.display().to_string(), twin.display().to_string());
    let collision = process::run(BINARY, &["up", "--cpu", "--model", &a, "--model", &b], &[])
        .await
        .unwrap();
    assert_eq!(collision.code, Some(2), "{collision:?}");
    assert!(
        collision.err.contains("NAME=DIR") && collision.err.contains("`other`"),
        "{collision:?}"
    );
    let typo = process::write(&cluster.path("."), "typo.toml", "[[up.models]]\nmodle = \"x\"\n").unwrap();
    let refused = process::run(BINARY, &["--config", &typo, "config", "check"], &[])
        .await
        .unwrap();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.err.contains("modle") && refused.err.contains("typo.toml"),
        "{refused:?}"
    );
}
