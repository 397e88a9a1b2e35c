//! Spans reach a collector with the right parents, times and attributes. One test: telemetry is set up once a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use deltagate_mesh::{
    ServiceError,
    client::{ChannelOptions, channel},
    health::Health,
    server::{ServeOptions, listen, serve},
    telemetry::{self, TelemetryConfig, TelemetryError},
    trace::{self, Attribute, Parent},
};
use deltagate_proto::v1::{
    DescribeRequest, DescribeResponse, ForwardRequest, ForwardResponse, GetArtifactRequest,
    GetArtifactResponse,
    executor_service_client::ExecutorServiceClient,
    executor_service_server::{ExecutorService, ExecutorServiceServer},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::{Span as WireSpan, status::StatusCode},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::Instrument;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<(String, WireSpan)>>>);

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let service = resource
                .resource
                .iter()
                .flat_map(|r| &r.attributes)
                .find(|a| a.key == "service.name")
                .map(|a| format!("{:?}", a.value))
                .unwrap_or_default();
            for scope in resource.scope_spans {
                self.0
                    .lock()
                    .unwrap()
                    .extend(scope.spans.into_iter().map(|s| (service.clone(), s)));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Probe;

#[tonic::async_trait]
impl ExecutorService for Probe {
    type ForwardStream = futures::stream::Iter<std::vec::IntoIter<Result<ForwardResponse, Status>>>;
    type GetArtifactStream = futures::stream::Iter<std::vec::IntoIter<Result<GetArtifactResponse, Status>>>;

    async fn forward(&self, _: Request<ForwardRequest>) -> Result<Response<Self::ForwardStream>, Status> {
        let start = SystemTime::now();
        if let Some(parent) = Parent::of(&tracing::Span::current()) {
            let segment = parent.record("segment 0", start, start + Duration::from_millis(3), vec![]);
            segment.record(
                "kernel delta_rule",
                start + Duration::from_millis(1),
                start + Duration::from_millis(2),
                vec![Attribute::new("deltagate.kernel.backend", "cpu.chunked")],
            );
        }
        Ok(Response::new(futures::stream::iter(vec![Ok(
            ForwardResponse::default(),
        )])))
    }

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        Err(ServiceError::failed_precondition("KERNEL_NOT_BOUND", "delta_rule is not bound").into())
    }

    async fn get_artifact(
        &self,
        _: Request<GetArtifactRequest>,
    ) -> Result<Response<Self::GetArtifactStream>, Status> {
        Err(Status::internal("broken"))
    }
}

fn attribute(span: &WireSpan, key: &str) -> Option<String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    span.attributes
        .iter()
        .find(|a| a.key == key)
        .and_then(|a| a.value.as_ref()?.value.clone())
        .map(|v| match v {
            Value::StringValue(s) => s,
            other => format!("{other:?}"),
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_joined_timed_and_named() {
    let sink = Sink::default();
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(sink.clone()))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );
    // The log level is off: it must not cut spans.
    let config = TelemetryConfig {
        otlp_endpoint: Some(endpoint),
        log_level: "off".to_owned(),
        ..Default::default()
    };
    let _guard = telemetry::init("test", &config).unwrap();
    let _again = telemetry::init("other", &TelemetryConfig::default()).unwrap();
    let elsewhere = TelemetryConfig {
        otlp_endpoint: Some("http://127.0.0.1:1".to_owned()),
        ..Default::default()
    };
    assert!(matches!(
        telemetry::init("other", &elsewhere),
        Err(TelemetryError::OtherEndpoint)
    ));

    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let server = serve(
        listener,
        Health::new(["x"]).await,
        CancellationToken::new(),
        ServeOptions::new("executor"),
        |routes| {
            routes.add_service(ExecutorServiceServer::new(Probe));
        },
    )
    .await
    .unwrap();
    let mut client =
        ExecutorServiceClient::new(channel(&server.endpoint(), ChannelOptions::default()).unwrap());

    // 1. A call below a local root: client span, server span, segment, kernel.
    let root = tracing::info_span!(target: "deltagate::test", "root");
    assert!(trace::is_sampled(&root));
    let call = root.in_scope(|| trace::client_span("deltagate.v1.ExecutorService/Forward"));
    let mut request = Request::new(ForwardRequest::default());
    trace::inject_span(&call, &mut request);
    let mut stream = client
        .forward(request)
        .instrument(call.clone())
        .await
        .unwrap()
        .into_inner();
    while stream.message().await.unwrap().is_some() {}
    trace::end_client_span(&call, &Ok(()));
    let trace_id = trace::trace_id(&root).unwrap();
    drop((call, root));

    // 2. A remote caller that is not sampled: nothing is exported.
    let mut request = Request::new(DescribeRequest {});
    request.metadata_mut().insert(
        "traceparent",
        "00-11111111111111111111111111111111-2222222222222222-00"
            .parse()
            .unwrap(),
    );
    client.describe(request).await.unwrap_err();

    // 3. A remote caller that is sampled: joined. A refusal is no error span, but says why.
    let mut request = Request::new(DescribeRequest {});
    request.metadata_mut().insert(
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            .parse()
            .unwrap(),
    );
    client.describe(request).await.unwrap_err();
    // 4. A server fault is an error span.
    client
        .get_artifact(GetArtifactRequest::default())
        .await
        .unwrap_err();

    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        tokio::task::spawn_blocking(|| telemetry::flush(Duration::from_secs(5)))
            .await
            .unwrap()
    );
    let spans = sink.0.lock().unwrap().clone();
    assert!(
        spans
            .iter()
            .all(|(service, _)| service.contains("deltagate-test"))
    );
    let spans: Vec<WireSpan> = spans.into_iter().map(|(_, span)| span).collect();
    let find = |name: &str, kind: i32| {
        spans
            .iter()
            .find(|s| s.name == name && s.kind == kind)
            .unwrap_or_else(|| panic!("no span {name} of kind {kind} in {spans:#?}"))
    };
    const INTERNAL: i32 = 1;
    const SERVER: i32 = 2;
    const CLIENT: i32 = 3;

    let root = find("root", INTERNAL);
    let call = find("deltagate.v1.ExecutorService/Forward", CLIENT);
    let served = find("deltagate.v1.ExecutorService/Forward", SERVER);
    let segment = find("segment 0", INTERNAL);
    let kernel = find("kernel delta_rule", INTERNAL);
    assert_eq!(hex::encode(&root.trace_id), trace_id);
    for (child, parent) in [(call, root), (served, call), (segment, served), (kernel, segment)] {
        assert_eq!(
            child.parent_span_id, parent.span_id,
            "{} under {}",
            child.name, parent.name
        );
        assert_eq!(child.trace_id, root.trace_id);
    }
    assert_eq!(
        segment.end_time_unix_nano - segment.start_time_unix_nano,
        3_000_000
    );
    assert_eq!(
        kernel.start_time_unix_nano - segment.start_time_unix_nano,
        1_000_000
    );
    assert_eq!(
        attribute(kernel, "deltagate.kernel.backend").as_deref(),
        Some("cpu.chunked")
    );
    assert_eq!(
        attribute(served, "deltagate.service").as_deref(),
        Some("executor")
    );
    assert_eq!(attribute(served, "rpc.system.name").as_deref(), Some("grpc"));
    assert_eq!(
        attribute(served, "rpc.response.status_code").as_deref(),
        Some("OK")
    );

    let described: Vec<_> = spans.iter().filter(|s| s.name.ends_with("/Describe")).collect();
    assert_eq!(described.len(), 1);
    assert_eq!(
        hex::encode(&described[0].trace_id),
        "4bf92f3577b34da6a3ce929d0e0e4736"
    );
    assert_eq!(hex::encode(&described[0].parent_span_id), "00f067aa0ba902b7");
    assert_eq!(
        attribute(described[0], "deltagate.reason").as_deref(),
        Some("KERNEL_NOT_BOUND")
    );
    assert_ne!(
        described[0].status.as_ref().map(|s| s.code),
        Some(StatusCode::Error as i32)
    );

    let broken = find("deltagate.v1.ExecutorService/GetArtifact", SERVER);
    assert_eq!(
        broken.status.as_ref().map(|s| s.code),
        Some(StatusCode::Error as i32)
    );
    assert_eq!(
        attribute(broken, "rpc.response.status_code").as_deref(),
        Some("INTERNAL")
    );
}
