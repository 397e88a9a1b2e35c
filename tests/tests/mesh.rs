//! Four real processes: nothing is ready by accident, and when it is ready both faces say the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use deltagate_proto::v1::{
    BindingState, ClassifyStreamRequest, ExecutorPhase, KernelFamily, ProbeStage,
    classifier_service_client::ClassifierServiceClient, classify_stream_response::Event,
};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, READY_WITHIN, Service},
    http,
    ports::url,
    process::eventually,
    requests::{as_systemone, choice, small, ticket, ticket_body},
};
use serde_json::Value;
use tonic::Code;
use tonic_types::StatusExt;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// The ten kernel families.
fn families() -> impl Iterator<Item = KernelFamily> {
    (1..=10).map(|i| KernelFamily::try_from(i).unwrap())
}

/// The gateway refuses over gRPC and HTTP, with one of these reasons.
async fn refuses(cluster: &Cluster, reasons: &[&str]) {
    let status = calls::classify(cluster.ports.gateway, ticket())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(
        reasons.contains(&reason(&status).as_str()),
        "{} is not one of {reasons:?}",
        reason(&status)
    );
    assert_eq!(status.get_details_error_info().unwrap().domain, "deltagate.dev");
    assert!(
        status
            .get_details_retry_info()
            .and_then(|r| r.retry_delay)
            .is_some(),
        "no RetryInfo"
    );

    let answer = http::post(
        &format!("{}/v1/systemone", url(cluster.ports.http)),
        &ticket_body(),
    )
    .await
    .unwrap();
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.header("retry-after").is_some(), "no Retry-After");
    assert!(
        answer.body["error"].as_str().is_some_and(|e| !e.is_empty()),
        "{}",
        answer.body
    );

    let health = http::get(&format!("{}/health", url(cluster.ports.http)))
        .await
        .unwrap();
    assert_eq!(health.status, 503);
    let told = health.body.to_string();
    assert!(
        reasons.iter().any(|r| told.contains(r)),
        "{told} names none of {reasons:?}"
    );
    assert_eq!(
        http::get(&format!("{}/livez", url(cluster.ports.http)))
            .await
            .unwrap()
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ready_before_everything_it_depends_on() {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("policy.bundle", "cpu");
    let ports = cluster.ports.clone();
    let up = |service: Service| {
        let ports = ports.clone();
        async move {
            eventually(READY_WITHIN, || calls_serving(&ports, service))
                .await
                .unwrap()
                .0
        }
    };

    // The gateway alone.
    cluster.start(Service::Gateway).unwrap();
    assert!(!up(Service::Gateway).await, "a gateway without a mesh serves");
    assert_eq!(
        calls::serving(ports.gateway, "deltagate.v1.Nothing")
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    refuses(&cluster, &["POLICY_UNREACHABLE", "CAPABILITY_UNREACHABLE"]).await;

    // With an executor: loaded and bound, and still not ready.
    cluster.start(Service::Executor).unwrap();
    let (snapshot, took) = eventually(READY_WITHIN, || async {
        // It answers, and says NOT_SERVING, also while it loads.
        ensure!(
            !calls::service_serving(ports.executor, Service::Executor).await?,
            "serving without policy"
        );
        let snapshot = calls::describe(ports.executor)
            .await?
            .snapshot
            .unwrap_or_default();
        ensure!(
            snapshot.phase() == ExecutorPhase::AwaitingPolicy,
            "{:?}: {:?}",
            snapshot.phase(),
            snapshot.reasons
        );
        for unreachable in ["CAPABILITY_UNREACHABLE", "POLICY_UNREACHABLE"] {
            ensure!(
                snapshot.reasons.iter().any(|r| r.starts_with(unreachable)),
                "{:?}",
                snapshot.reasons
            );
        }
        Ok(snapshot)
    })
    .await
    .unwrap();
    println!("executor loaded and probed after {took:?}");
    for family in families() {
        let name = family
            .as_str_name()
            .trim_start_matches("KERNEL_FAMILY_")
            .to_lowercase();
        assert!(
            calls::serving(ports.executor, &format!("deltagate.kernel.{name}"))
                .await
                .unwrap(),
            "{name}"
        );
    }
    refuses(&cluster, &["POLICY_UNREACHABLE", "CAPABILITY_UNREACHABLE"]).await;

    // With policy, which sees no registry: it serves, and its decision is no.
    cluster.start(Service::Policy).unwrap();
    eventually(READY_WITHIN, || async {
        ensure!(
            calls::service_serving(ports.policy, Service::Policy).await?,
            "policy does not serve its bundle"
        );
        Ok(())
    })
    .await
    .unwrap();
    let decision = calls::decide(ports.policy, &snapshot.instance_id, &snapshot.fingerprint)
        .await
        .unwrap();
    assert!(!decision.allowed && !decision.reasons.is_empty(), "{decision:?}");
    assert!(!decision.decision_id.is_empty(), "{decision:?}");
    let refusal = calls::permit(ports.policy, &snapshot.instance_id, &snapshot.fingerprint)
        .await
        .unwrap_err();
    assert!(
        matches!(refusal.code(), Code::FailedPrecondition | Code::Unavailable),
        "{refusal:?}"
    );
    assert!(
        !calls::service_serving(ports.executor, Service::Executor)
            .await
            .unwrap()
    );
    refuses(&cluster, &["POLICY_UNREACHABLE", "CAPABILITY_UNREACHABLE"]).await;

    // With the registry everything falls into place, by itself.
    cluster.start(Service::Capability).unwrap();
    assert!(
        up(Service::Capability).await,
        "a registry that is up does not serve"
    );
    let took = cluster.ready().await.unwrap();
    println!("ready {took:?} after the registry listened");
    assert!(took <= Duration::from_secs(2), "ready only after {took:?}");
    for service in Service::ALL {
        assert!(
            calls::service_serving(service.port(&ports), service)
                .await
                .unwrap(),
            "{}",
            service.name()
        );
    }
    calls::classify(ports.gateway, ticket()).await.unwrap();

    // A decision about an executor or a binding that nobody knows is no.
    let snapshot = cluster.ready_executor(READY_WITHIN).await.unwrap();
    let decision = calls::decide(ports.policy, &snapshot.instance_id, &snapshot.fingerprint)
        .await
        .unwrap();
    assert!(
        decision.allowed && decision.bundle_revision.len() == 64,
        "{decision:?}"
    );
    for (instance, fingerprint) in [
        ("nobody", snapshot.fingerprint.as_str()),
        (snapshot.instance_id.as_str(), "0123456789abcdef"),
    ] {
        let decision = calls::decide(ports.policy, instance, fingerprint).await.unwrap();
        assert!(!decision.allowed && !decision.reasons.is_empty(), "{decision:?}");
        assert!(calls::permit(ports.policy, instance, fingerprint).await.is_err());
    }
}

async fn calls_serving(ports: &deltagate_tests::ports::Ports, service: Service) -> anyhow::Result<bool> {
    calls::service_serving(service.port(ports), service).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_mesh_answers_alike_on_both_faces_and_says_what_it_bound() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu"]).unwrap();
    println!("ready after {:?}", cluster.ready().await.unwrap());
    let ports = &cluster.ports;
    let base = url(ports.http);

    // What is bound.
    let snapshot = cluster.ready_executor(READY_WITHIN).await.unwrap();
    assert_eq!(snapshot.device.as_ref().unwrap().kind, "cpu");
    assert!(snapshot.reasons.is_empty(), "{:?}", snapshot.reasons);
    let model = snapshot.model.clone().unwrap();
    assert_eq!(model.family, "startlux");
    assert_eq!(snapshot.fingerprint.len(), 64, "{}", snapshot.fingerprint);
    assert_eq!(
        snapshot
            .bindings
            .iter()
            .map(|b| b.family())
            .collect::<BTreeSet<_>>(),
        families().collect()
    );
    for binding in &snapshot.bindings {
        let family = binding.family().as_str_name();
        assert_eq!(binding.state(), BindingState::Bound, "{family}: {binding:?}");
        assert!(
            !binding.version.is_empty() && !binding.source_digest.is_empty(),
            "{family}: {binding:?}"
        );
        let bound = binding.candidates.iter().find(|c| c.backend == binding.backend);
        let bound =
            bound.unwrap_or_else(|| panic!("{family}: {} is not among its candidates", binding.backend));
        assert!(bound.passed && bound.reason.is_empty(), "{family}: {bound:?}");
        assert!(
            bound.stage() >= ProbeStage::Correct,
            "{family} was bound without a proof: {bound:?}"
        );
        for loser in binding.candidates.iter().filter(|c| c.backend != binding.backend) {
            assert!(
                !loser.reason.is_empty(),
                "{family}: nothing says why {} lost",
                loser.backend
            );
        }
    }
    let delta_rule = calls::binding(&snapshot, KernelFamily::DeltaRule).unwrap();
    let candidates: BTreeSet<_> = delta_rule.candidates.iter().map(|c| c.backend.as_str()).collect();
    assert!(
        candidates.is_superset(&["cpu.chunked", "cpu.recurrent"].into()),
        "{candidates:?}"
    );

    // The same answers over both faces.
    let grpc = calls::classify(ports.gateway, ticket()).await.unwrap();
    let web = http::post(&format!("{base}/v1/systemone"), &ticket_body())
        .await
        .unwrap();
    assert_eq!(web.status, 200, "{}", web.body);
    assert_eq!(as_systemone(&grpc.answers), web.body["answers"]);
    let order: Vec<_> = web.body["answers"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(order, ["team", "severity", "urgent"]);
    let usage = grpc.usage.unwrap();
    assert_eq!(
        web.body["usage"]["input_tokens"].as_u64(),
        Some(usage.input_tokens)
    );
    assert_eq!(
        (web.body["usage"]["output_tokens"].as_u64(), usage.output_tokens),
        (Some(0), 0)
    );
    assert!(usage.input_tokens > 100, "{usage:?}");
    assert_eq!(web.body["model"].as_str(), Some(grpc.model.as_str()));
    assert_eq!(grpc.model, model.name);
    assert_eq!(grpc.capability_fingerprint, snapshot.fingerprint);
    assert!(!grpc.request_id.is_empty());
    sums_to_one(&web.body["answers"]);

    // Where the time went: every family of the plan, on the backend that the registry names.
    let timings = grpc.timings.unwrap();
    let time = |d: Option<prost_types::Duration>| Duration::try_from(d.unwrap()).unwrap();
    let (total, forward) = (time(timings.total), time(timings.forward));
    assert!(forward <= total && !forward.is_zero(), "{timings:?}");
    let reported: BTreeSet<_> = timings.kernels.iter().map(|k| k.family()).collect();
    for family in families().filter(|f| *f != KernelFamily::Launch) {
        assert!(reported.contains(&family), "no time of {}", family.as_str_name());
    }
    for kernel in &timings.kernels {
        assert_eq!(
            kernel.backend,
            calls::backend(&snapshot, kernel.family()),
            "{kernel:?}"
        );
        assert!(kernel.launches > 0, "{kernel:?}");
    }
    let busy: Duration = timings.kernels.iter().map(|k| time(k.busy)).sum();
    assert!(busy <= forward, "kernels were busy for {busy:?} of {forward:?}");

    streams_progress(&cluster, &as_systemone(&grpc.answers), usage.input_tokens).await;

    // Discovery.
    let health = http::get(&format!("{base}/health")).await.unwrap();
    assert_eq!(health.status, 200);
    assert!(
        matches!(health.body["status"].as_str(), Some("ok" | "ready")),
        "{}",
        health.body
    );
    let models = http::get(&format!("{base}/v1/models")).await.unwrap();
    assert_eq!(models.status, 200);
    assert_eq!(
        models.body["models"][0]["name"].as_str(),
        Some(model.name.as_str()),
        "{}",
        models.body
    );
    assert!(
        models.body["models"][0]["release_date"].is_string(),
        "{}",
        models.body
    );
    assert_eq!(http::get(&format!("{base}/livez")).await.unwrap().status, 200);
}

/// `ClassifyStream`: accepted, every segment of every sequence in order, then the same answers.
async fn streams_progress(cluster: &Cluster, answers: &Value, tokens: u64) {
    let mut client = ClassifierServiceClient::new(calls::channel(cluster.ports.gateway).unwrap());
    let request = ClassifyStreamRequest {
        request: Some(ticket()),
    };
    let mut events = client.classify_stream(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(event) = events.message().await.unwrap() {
        all.push(event.event.unwrap());
    }
    let [Event::Accepted(accepted), segments @ .., Event::Answers(last)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((accepted.sequences, accepted.input_tokens), (3, tokens));
    assert_eq!(accepted.request_id, last.request_id);
    assert_eq!(&as_systemone(&last.answers), answers);
    let seen: Vec<_> = segments
        .iter()
        .map(|e| match e {
            Event::Segment(s) => (s.step, s.sequence, s.segment, s.segments),
            other => panic!("{other:?} among the segments"),
        })
        .collect();
    assert_eq!(
        seen,
        [(0, 0, 0, 1), (0, 1, 0, 1), (0, 2, 0, 1)],
        "short prompts run as one segment"
    );

    // A long prompt: several segments that cover the layers without a gap.
    let mut long = small(&"The customer writes again about the same invoice. ".repeat(90));
    long.questions = vec![choice(
        "team",
        "Which team?",
        &[("shipping", None), ("billing", None)],
    )];
    let mut events = client
        .classify_stream(ClassifyStreamRequest { request: Some(long) })
        .await
        .unwrap()
        .into_inner();
    let mut layer = 0;
    let mut count = 0;
    let mut elapsed = Duration::ZERO;
    let mut of = 0;
    while let Some(event) = events.message().await.unwrap() {
        match event.event.unwrap() {
            Event::Accepted(accepted) => assert!(accepted.input_tokens > 512, "{accepted:?}"),
            Event::Segment(s) => {
                assert_eq!((s.segment, s.first_layer), (count, layer), "{s:?}");
                let now = Duration::try_from(s.elapsed.unwrap()).unwrap();
                assert!(now >= elapsed, "{s:?}");
                (layer, count, of, elapsed) = (s.end_layer, count + 1, s.segments, now);
            }
            Event::Answers(answers) => assert_eq!(answers.answers.len(), 1),
        }
    }
    assert!(count > 1 && count == of, "{count} of {of} segments");
}

/// All probabilities of each answer.
fn sums_to_one(answers: &Value) {
    for (id, answer) in answers.as_object().unwrap() {
        if let Some(all) = answer["probabilities"].as_object() {
            let sum: f64 = all.values().map(|p| p.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{id} sums to {sum}");
        }
    }
}
