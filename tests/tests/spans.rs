//! One trace per request, down to the kernels, and not a word of the request in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use deltagate_proto::v1::{
    CapabilitySnapshot, ClassifyRequest, KernelFamily, classifier_service_client::ClassifierServiceClient,
};
use deltagate_tests::{
    calls,
    cluster::{Cluster, READY_WITHIN},
    http,
    otlp::{Received, Sink},
    ports::url,
    requests::{choice, text, yes_no},
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;
use ureq::http::Method;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// Stands in every text of the requests, and must stand nowhere else.
const MARKER: &str = "zwiebelfisch";

const GRPC_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4701";
const HTTP_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4702";
const UNSAMPLED_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4703";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

fn traceparent(trace: &str, sampled: bool) -> String {
    format!("00-{trace}-{CALLER_SPAN}-0{}", u8::from(sampled))
}

/// Two questions; the state is long enough for several segments.
fn marked() -> ClassifyRequest {
    let state = format!(
        "The {MARKER} was charged twice. {}",
        "It happened again on the next day. ".repeat(80)
    );
    ClassifyRequest {
        model: String::new(),
        state: Some(text(&state)),
        questions: vec![
            choice(
                &format!("q-{MARKER}"),
                &format!("Which team handles the {MARKER}?"),
                &[
                    (&format!("o-{MARKER}"), Some(&format!("all about {MARKER}"))),
                    ("other", None),
                ],
            ),
            yes_no("urgent", &format!("Is the {MARKER} urgent?")),
        ],
        truncate_state: false,
    }
}

async fn grpc(gateway: u16, traceparent: &str, request: ClassifyRequest) -> Result<(), tonic::Status> {
    let mut request = tonic::Request::new(request);
    request
        .metadata_mut()
        .insert("traceparent", traceparent.parse().unwrap());
    request.set_timeout(Duration::from_secs(20));
    ClassifierServiceClient::new(calls::channel(gateway)?)
        .classify(request)
        .await
        .map(drop)
}

async fn over_http(cluster: &Cluster, traceparent: &str) -> http::Answer {
    let body = json!({
        "state": format!("The {MARKER} was charged twice."),
        "questions": {"team": {
            "type": "choice", "instructions": format!("Who handles the {MARKER}?"),
            "criteria": {format!("o-{MARKER}"): null, "other": format!("not {MARKER}")},
        }},
    });
    let headers = [("content-type", "application/json"), ("traceparent", traceparent)];
    let url = format!("{}/v1/systemone", url(cluster.ports.http));
    http::send(Method::POST, &url, &headers, body.to_string().into_bytes())
        .await
        .unwrap()
}

/// The spans of one trace, with the look-ups that the checks need.
struct Trace<'a> {
    spans: Vec<&'a Received>,
}

impl<'a> Trace<'a> {
    fn of(all: &'a [Received], id: &str) -> Self {
        Self {
            spans: all.iter().filter(|s| s.trace_id() == id).collect(),
        }
    }

    fn children(&self, parent: &Received) -> Vec<&'a Received> {
        let mut children: Vec<_> = self
            .spans
            .iter()
            .copied()
            .filter(|s| s.span.parent_span_id == parent.span.span_id)
            .collect();
        children.sort_by_key(|s| s.span.start_time_unix_nano);
        children
    }

    fn child(&self, parent: &Received, name: &str) -> &'a Received {
        let found: Vec<_> = self
            .children(parent)
            .into_iter()
            .filter(|s| s.span.name == name)
            .collect();
        let [one] = found[..] else {
            let names: Vec<_> = self
                .children(parent)
                .iter()
                .map(|s| s.span.name.clone())
                .collect();
            panic!(
                "{} spans `{name}` below `{}`; its children: {names:?}",
                found.len(),
                parent.span.name
            )
        };
        one
    }
}

fn nanos(span: &Received) -> (u64, u64) {
    (span.span.start_time_unix_nano, span.span.end_time_unix_nano)
}

/// Two clocks are read for spans of different kinds, microseconds apart.
const SKEW: u64 = 2_000_000;

fn within(child: &Received, parent: &Received) {
    let ((start, end), (from, to)) = (nanos(child), nanos(parent));
    let (c, p) = (&child.span.name, &parent.span.name);
    assert!(start <= end, "`{c}` ends before it starts");
    assert!(
        start + SKEW >= from,
        "`{c}` starts {} ns before `{p}`",
        from.saturating_sub(start)
    );
    assert!(
        end <= to + SKEW,
        "`{c}` ends {} ns after `{p}`",
        end.saturating_sub(to)
    );
}

/// A whole trace: the gateway's span, and below it everything down to the kernels.
fn check(all: &[Received], id: &str, root_name: &str, sequences: usize, snapshot: &CapabilitySnapshot) {
    let trace = Trace::of(all, id);
    let roots: Vec<_> = trace
        .spans
        .iter()
        .copied()
        .filter(|s| hex::encode(&s.span.parent_span_id) == CALLER_SPAN)
        .collect();
    let [root] = roots[..] else {
        panic!(
            "{} spans below the caller's: {:?}",
            roots.len(),
            trace.spans.iter().map(|s| &s.span.name).collect::<Vec<_>>()
        )
    };
    assert_eq!(root.span.name, root_name);
    assert_eq!(root.span.kind(), SpanKind::Server);
    assert_eq!(root.attribute("deltagate.service").as_deref(), Some("gateway"));

    within(trace.child(root, "policy"), root);
    let client = trace.child(root, "deltagate.v1.ExecutorService/Forward");
    let tokenize = trace.child(root, "tokenize");
    within(tokenize, root);
    assert!(
        nanos(tokenize).1 <= nanos(client).0 + SKEW,
        "tokenised after the call"
    );
    let answer = trace.child(root, "answer");
    within(answer, root);
    assert!(
        nanos(answer).0 + SKEW >= nanos(client).1,
        "answered before the call"
    );
    assert_eq!(client.span.kind(), SpanKind::Client);
    within(client, root);
    let server = trace.child(client, "deltagate.v1.ExecutorService/Forward");
    assert_eq!(server.span.kind(), SpanKind::Server);
    assert_eq!(server.attribute("deltagate.service").as_deref(), Some("executor"));
    within(server, client);
    within(trace.child(server, "queue"), server);

    let segments: Vec<_> = trace
        .children(server)
        .into_iter()
        .filter(|s| s.span.name.starts_with("segment "))
        .collect();
    let of: BTreeSet<_> = segments
        .iter()
        .map(|s| s.attribute("deltagate.sequence").unwrap())
        .collect();
    assert_eq!(of.len(), sequences, "segments of sequences {of:?}");
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for segment in &segments {
        within(segment, server);
        let (start, end) = nanos(segment);
        let layers = segment.attribute("deltagate.layers").unwrap();
        assert!(layers.contains(".."), "{layers}");
        let (mut busy, mut computing) = (0, 0);
        let kernels = trace.children(segment);
        assert!(!kernels.is_empty(), "no kernel below `{}`", segment.span.name);
        for kernel in kernels {
            within(kernel, segment);
            let attribute = |key: &str| {
                kernel
                    .attribute(key)
                    .unwrap_or_else(|| panic!("`{}` has no {key}", kernel.span.name))
            };
            let family = attribute("deltagate.kernel.family");
            assert_eq!(kernel.span.name, format!("kernel {family}"));
            let wire =
                KernelFamily::from_str_name(&format!("KERNEL_FAMILY_{}", family.to_uppercase())).unwrap();
            assert_eq!(
                attribute("deltagate.kernel.backend"),
                calls::backend(snapshot, wire),
                "{family}"
            );
            assert!(
                attribute("deltagate.kernel.launches").parse::<u64>().unwrap() > 0,
                "{family}"
            );
            assert!(
                attribute("deltagate.tokens").parse::<u64>().unwrap() > 0,
                "{family}"
            );
            let spent = attribute("deltagate.kernel.busy_ns").parse::<u64>().unwrap();
            busy += spent;
            // `launch` is what the others leave over.
            computing += if family == "launch" { 0 } else { spent };
            seen.insert(family);
        }
        let took = end - start;
        assert!(
            busy <= took,
            "`{}`: kernels were busy for {busy} of {took} ns",
            segment.span.name
        );
        assert!(
            computing * 2 >= took,
            "`{}`: {computing} of {took} ns are explained by kernels",
            segment.span.name
        );
    }
    for family in [
        "embed",
        "norm",
        "projection",
        "conv1d",
        "delta_rule",
        "gated_norm",
        "attention",
        "mlp",
        "readout",
    ] {
        assert!(seen.contains(family), "no span of {family}: {seen:?}");
    }
    // Nothing hangs loose: every span but the root has its parent in the trace.
    let ids: BTreeSet<_> = trace.spans.iter().map(|s| &s.span.span_id).collect();
    for span in trace.spans.iter().filter(|s| s.span.span_id != root.span.span_id) {
        assert!(
            ids.contains(&span.span.parent_span_id),
            "`{}` of {} has no parent",
            span.span.name,
            span.service
        );
    }
}

async fn traces(in_process: bool) {
    let (sink, address) = Sink::start().await.unwrap();
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("telemetry.log_level", "info,deltagate=trace");
    let otlp = format!("http://{address}");
    let mut arguments = vec!["--cpu", "--otlp", &otlp];
    arguments.extend(in_process.then_some("--in-process"));
    let _up = cluster.up(&arguments).unwrap();
    cluster.ready().await.unwrap();
    let snapshot = cluster.ready_executor(READY_WITHIN).await.unwrap();
    let gateway = cluster.ports.gateway;

    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    grpc(gateway, &traceparent(UNSAMPLED_TRACE, false), marked())
        .await
        .unwrap();
    grpc(gateway, &traceparent(GRPC_TRACE, true), marked())
        .await
        .unwrap();
    let web = over_http(&cluster, &traceparent(HTTP_TRACE, true)).await;
    assert_eq!(web.status, 200, "{}", web.body);
    let answered = web
        .header("traceparent")
        .expect("no traceparent in the HTTP response")
        .to_owned();
    assert_eq!(answered.split('-').nth(1), Some(HTTP_TRACE), "{answered}");
    // Refusals must not quote the request, either.
    let mut invalid = marked();
    invalid.questions[1].id = format!("q-{MARKER}");
    invalid
        .questions
        .push(choice("x", "?", &[(&format!("{MARKER}\n{MARKER}"), None)]));
    let status = grpc(gateway, &traceparent(UNSAMPLED_TRACE, false), invalid)
        .await
        .unwrap_err();
    assert!(!format!("{status:?}").contains(MARKER), "{status:?}");
    let mut foreign = marked();
    foreign.model = format!("m-{MARKER}");
    let status = grpc(gateway, &traceparent(UNSAMPLED_TRACE, false), foreign)
        .await
        .unwrap_err();
    assert!(!format!("{status:?}").contains(MARKER), "{status:?}");
    let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;

    let kernels = |spans: &[Received], id: &str| {
        spans
            .iter()
            .any(|s| s.trace_id() == id && s.span.name.starts_with("kernel "))
            && spans
                .iter()
                .any(|s| s.trace_id() == id && hex::encode(&s.span.parent_span_id) == CALLER_SPAN)
    };
    sink.wait_for(Duration::from_secs(10), |s| {
        kernels(s, GRPC_TRACE) && kernels(s, HTTP_TRACE)
    })
    .await;
    // What else is on its way belongs to the evidence, too.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let spans = sink.spans();

    check(
        &spans,
        GRPC_TRACE,
        "deltagate.v1.ClassifierService/Classify",
        2,
        &snapshot,
    );
    check(&spans, HTTP_TRACE, "POST /v1/systemone", 1, &snapshot);
    let long = Trace::of(&spans, GRPC_TRACE)
        .spans
        .iter()
        .filter(|s| s.span.name.starts_with("segment "))
        .count();
    assert!(long > 2, "the long prompts ran as {long} segments");
    for span in Trace::of(&spans, GRPC_TRACE)
        .spans
        .iter()
        .chain(&Trace::of(&spans, HTTP_TRACE).spans)
    {
        let (start, end) = nanos(span);
        assert!(
            start + SKEW >= began && end <= ended + SKEW,
            "`{}` lies outside the test",
            span.span.name
        );
    }
    assert!(
        Trace::of(&spans, UNSAMPLED_TRACE).spans.is_empty(),
        "an unsampled caller left spans"
    );

    let mut services: BTreeMap<&str, usize> = BTreeMap::new();
    for received in &spans {
        *services.entry(received.service.as_str()).or_default() += 1;
        assert!(
            !format!("{received:?}").contains(MARKER),
            "a span quotes the request: {received:?}"
        );
    }
    println!("{} spans: {services:?}", spans.len());
    if !in_process {
        assert!(
            services.contains_key("deltagate-gateway") && services.contains_key("deltagate-executor"),
            "{services:?}"
        );
    }
    let logs = cluster.logs();
    assert!(
        logs.lines().count() > 3,
        "the log is empty: the search proves nothing"
    );
    assert!(!logs.contains(MARKER), "a log line quotes the request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_trace_through_all_processes() {
    traces(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_trace_when_the_services_share_a_process() {
    traces(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_costs_nothing() {
    // Nobody listens there.
    let dead = deltagate_tests::ports::Ports::free().unwrap().policy;
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster
        .up(&["--cpu", "--in-process", "--otlp", &url(dead)])
        .unwrap();
    cluster.ready().await.unwrap();
    for _ in 0..5 {
        let asked = std::time::Instant::now();
        grpc(cluster.ports.gateway, &traceparent(GRPC_TRACE, true), marked())
            .await
            .unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
}
