//! No text of a request in an error, a log line or a span; and the trace of a request.
//!
//! A binary of its own: subscribers of single threads and the callsites of other tests get in each other's way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fmt::Write, sync::Arc};

use deltagate_mesh::error::ServiceError;
use deltagate_proto::v1::ClassifyRequest;
use opentelemetry::trace::{SpanId, SpanKind, TracerProvider};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use parking_lot::Mutex;
use tonic::Request;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

#[path = "gateway/support/mod.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use support::{
    executor::Act,
    mesh::ready,
    requests::{SMALL_BODY, ask, choice, json as json_content, small, text},
};

const MARKER: &str = "zebrastripe";

/// Keeps every field of every span and event of this project.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<String>>);

impl Visit for Written {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0.lock(), "{}={value:?} ", field.name()).unwrap();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Written {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

/// Everything that a status shows: message, and the bytes of its details.
fn all_text(status: &tonic::Status) -> String {
    format!(
        "{status:?} {} {}",
        status.message(),
        String::from_utf8_lossy(status.details())
    )
}

/// One subscriber at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn no_text_of_a_request_leaves_in_an_error_a_log_or_a_span() {
    let _alone = ALONE.lock().await;
    let written = Written::default();
    let exported = Exported::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exported.clone())
        .build();
    let subscriber = tracing_subscriber::registry()
        .with(written.clone())
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")));
    let _installed = tracing::subscriber::set_default(subscriber);
    let mesh = ready().await;

    let marked = |change: &dyn Fn(&mut ClassifyRequest)| {
        let mut request = ask(vec![choice(MARKER, &[MARKER, "b"])]);
        request.state = Some(text(&format!("a {MARKER} in the state")));
        request.questions[0].instructions = Some(text(MARKER));
        change(&mut request);
        request
    };
    type Change<'a> = &'a dyn Fn(&mut ClassifyRequest);
    let faults: &[Change<'_>] = &[
        &|r| r.model = MARKER.into(),
        &|r| r.state = Some(json_content(&format!(r#"{{"{MARKER}":1,"{MARKER}":2}}"#))),
        &|r| r.state = Some(json_content(&format!("{{{MARKER}"))),
        &|r| r.state = Some(text(&MARKER.repeat(1000))),
        &|r| r.questions.push(r.questions[0].clone()),
        &|r| r.questions[0].criteria = choice("x", &[MARKER, MARKER]).criteria,
        &|r| r.questions[0].criteria = choice("x", &[&MARKER.repeat(30)]).criteria,
        &|r| r.questions[0].id = MARKER.repeat(30),
    ];
    for change in faults {
        let status = mesh.client().classify(marked(change)).await.unwrap_err();
        assert!(!all_text(&status).contains(MARKER), "{status:?}");
    }
    for act in [
        Act::NotFinite,
        Act::ShortRead,
        Act::Refuse(ServiceError::internal("KERNEL_FAILED", "a kernel failed")),
    ] {
        mesh.executor.then(act);
        let status = mesh.client().classify(marked(&|_| {})).await.unwrap_err();
        assert!(!all_text(&status).contains(MARKER), "{status:?}");
        // A lost executor is used again as soon as it answers.
        support::within(support::mesh::NOTICED, "healed", || mesh.serving()).await;
    }
    let option = format!(
        r#"{{"state":"{MARKER}","questions":{{"{MARKER}":{{"instructions":"{MARKER}","criteria":{{"{MARKER}":1,"{MARKER}\n":2}}}}}}}}"#
    );
    for body in [
        option.as_str(),
        &SMALL_BODY.replace("some state", &MARKER.repeat(1000)),
        &SMALL_BODY.replacen('{', &format!(r#"{{"model":"{MARKER}","#), 1),
        &SMALL_BODY.replace(r#""choice""#, &format!(r#""{MARKER}""#)),
        &format!(r#"{{"state":"{MARKER}" {MARKER}"#),
        MARKER,
    ] {
        let response = mesh.post(body).await;
        assert!(response.status >= 400, "{}", response.body);
        assert!(!response.body.contains(MARKER), "{}", response.body);
        assert!(response.headers.iter().all(|(_, value)| !value.contains(MARKER)));
    }
    mesh.classify(marked(&|_| {})).await.unwrap();

    assert!(
        written
            .0
            .lock()
            .contains("deltagate.v1.ClassifierService/Classify"),
        "spans were written"
    );
    assert!(!written.0.lock().contains(MARKER));
    assert!(exported.0.lock().len() > 30);
    assert!(!format!("{:?}", exported.0.lock()).contains(MARKER));
}

#[tokio::test]
async fn a_request_is_one_trace() {
    let _alone = ALONE.lock().await;
    let exported = Exported::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exported.clone())
        .build();
    let subscriber = tracing_subscriber::registry()
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")));
    let _installed = tracing::subscriber::set_default(subscriber);
    let mesh = ready().await;
    for (face, root) in [
        ("grpc", "deltagate.v1.ClassifierService/Classify"),
        ("http", "POST /v1/systemone"),
    ] {
        let trace = if face == "grpc" {
            "4bf92f3577b34da6a3ce929d0e0e4736"
        } else {
            "5bf92f3577b34da6a3ce929d0e0e4736"
        };
        let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
        let before = mesh.executor.calls().len();
        if face == "grpc" {
            let mut request = Request::new(small());
            request
                .metadata_mut()
                .insert("traceparent", traceparent.parse().unwrap());
            mesh.client().classify(request).await.unwrap();
        } else {
            let headers = [
                ("content-type", "application/json"),
                ("traceparent", traceparent.as_str()),
            ];
            let response = mesh.post_with(&headers, SMALL_BODY.as_bytes()).await;
            let returned = response.header("traceparent").unwrap();
            assert!(returned.starts_with(&format!("00-{trace}-")) && returned.ends_with("-01"));
        }
        let onward = mesh.executor.calls()[before].traceparent.clone().unwrap();
        assert!(onward.starts_with(&format!("00-{trace}-")), "{onward}");

        // Spans end as their last handle goes, which may be a moment later.
        let name = |wanted: &str, kind: SpanKind| {
            let spans = exported.0.lock();
            spans
                .iter()
                .find(|span| {
                    span.name == wanted
                        && span.span_kind == kind
                        && span.span_context.trace_id().to_string() == trace
                })
                .cloned()
        };
        support::within(support::mesh::NOTICED, "the root span ended", || async {
            name(root, SpanKind::Server).is_some()
        })
        .await;
        let server = name(root, SpanKind::Server).unwrap();
        assert_eq!(
            server.parent_span_id,
            SpanId::from_hex("00f067aa0ba902b7").unwrap()
        );
        let of =
            |wanted: &str, kind: SpanKind| name(wanted, kind).unwrap_or_else(|| panic!("no span {wanted}"));
        for child in ["tokenize", "policy"] {
            assert_eq!(
                of(child, SpanKind::Internal).parent_span_id,
                server.span_context.span_id()
            );
        }
        let client = of("deltagate.v1.ExecutorService/Forward", SpanKind::Client);
        assert_eq!(client.parent_span_id, server.span_context.span_id());
        assert!(onward.contains(&client.span_context.span_id().to_string()));
        let far = of("deltagate.v1.ExecutorService/Forward", SpanKind::Server);
        assert_eq!(far.parent_span_id, client.span_context.span_id());
    }
}
