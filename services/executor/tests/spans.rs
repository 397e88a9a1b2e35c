//! A sampled trace shows the queue, each segment, and each kernel family below it; an unsampled one costs nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use deltagate_mesh::telemetry::{self, TelemetryConfig};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::Span,
};
use parking_lot::Mutex;
use support::{Bench, collect};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

const TRACE: &str = "0123456789abcdef0123456789abcdef";

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans);
        self.0.lock().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let value = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == key)?
        .value
        .as_ref()?;
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("unexpected attribute value {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_shows_queue_segments_and_kernels() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collector = Collector::default();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let service = TraceServiceServer::new(collector.clone());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    let config = TelemetryConfig {
        otlp_endpoint: Some(endpoint),
        ..Default::default()
    };
    let guard = telemetry::init("executor", &config).unwrap();

    let bench = Bench::ready().await;
    *bench.script.segment_time.lock() = Duration::from_millis(2);
    for (trace, sampled) in [(TRACE, "01"), ("f".repeat(32).as_str(), "00")] {
        let mut request = tonic::Request::new(bench.request(7, &[4]));
        let traceparent = format!("00-{trace}-00f067aa0ba902b7-{sampled}");
        request
            .metadata_mut()
            .insert("traceparent", traceparent.parse().unwrap());
        collect(bench.client.clone(), request).await.unwrap();
    }
    tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();
    let spans = collector.0.lock().clone();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(
        spans.iter().all(|span| hex(&span.trace_id) != "f".repeat(32)),
        "an unsampled trace was recorded"
    );

    let ours: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let one = |name: &str| {
        let found: Vec<_> = ours.iter().filter(|span| span.name == name).collect();
        assert_eq!(
            found.len(),
            1,
            "{name} in {:?}",
            ours.iter().map(|span| &span.name).collect::<Vec<_>>()
        );
        *found[0]
    };
    let server = one("deltagate.v1.ExecutorService/Forward");
    assert_eq!(hex(&server.parent_span_id), "00f067aa0ba902b7");
    let queue = one("queue");
    let segments = [one("segment 0"), one("segment 1")];
    for child in [queue, segments[0], segments[1]] {
        assert_eq!(child.parent_span_id, server.span_id, "{}", child.name);
        assert!(
            child.start_time_unix_nano <= child.end_time_unix_nano,
            "{}",
            child.name
        );
    }
    assert!(queue.end_time_unix_nano <= segments[0].start_time_unix_nano);
    assert!(segments[0].end_time_unix_nano <= segments[1].start_time_unix_nano);
    assert_eq!(
        attribute(segments[1], "deltagate.layers").as_deref(),
        Some("4..8")
    );
    assert_eq!(attribute(segments[1], "deltagate.tokens").as_deref(), Some("4"));

    let kernels: Vec<_> = ours
        .iter()
        .filter(|span| span.name == "kernel delta_rule")
        .collect();
    assert_eq!(kernels.len(), 2, "one in each segment");
    for (kernel, segment) in kernels.iter().zip(segments) {
        assert_eq!(kernel.parent_span_id, segment.span_id);
        assert!(kernel.start_time_unix_nano >= segment.start_time_unix_nano);
        assert!(kernel.end_time_unix_nano <= segment.end_time_unix_nano);
        assert_eq!(
            attribute(kernel, "deltagate.kernel.family").as_deref(),
            Some("delta_rule")
        );
        assert_eq!(
            attribute(kernel, "deltagate.kernel.backend").as_deref(),
            Some("first")
        );
        assert_eq!(
            attribute(kernel, "deltagate.kernel.busy_ns").as_deref(),
            Some("3000")
        );
        assert_eq!(
            attribute(kernel, "deltagate.kernel.launches").as_deref(),
            Some("7")
        );
    }
}
