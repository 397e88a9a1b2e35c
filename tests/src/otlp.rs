//! An OTLP collector in this process: what a test sends spans to.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value,
    trace::v1::Span,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A received span.
#[derive(Clone, Debug)]
pub struct Received {
    /// `service.name` of the resource.
    pub service: String,
    /// The span.
    pub span: Span,
}

impl Received {
    /// A string or integer attribute, as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        let value = self
            .span
            .attributes
            .iter()
            .find(|a| a.key == key)?
            .value
            .as_ref()?
            .value
            .as_ref()?;
        Some(match value {
            any_value::Value::StringValue(text) => text.clone(),
            any_value::Value::IntValue(number) => number.to_string(),
            any_value::Value::BoolValue(flag) => flag.to_string(),
            other => format!("{other:?}"),
        })
    }

    /// Trace id, lower-case hex.
    pub fn trace_id(&self) -> String {
        hex::encode(&self.span.trace_id)
    }
}

/// The collector. It stops when dropped with its runtime.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    spans: Arc<Mutex<Vec<Received>>>,
}

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.spans.lock().map_err(|_| Status::internal("poisoned"))?;
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|r| r.attributes).unwrap_or_default();
            let service = attributes
                .iter()
                .find(|a| a.key == "service.name")
                .and_then(|a| match a.value.as_ref()?.value.as_ref()? {
                    any_value::Value::StringValue(text) => Some(text.clone()),
                    _ => None,
                })
                .unwrap_or_default();
            for scope in resource.scope_spans {
                spans.extend(scope.spans.into_iter().map(|span| Received {
                    service: service.clone(),
                    span,
                }));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Sink {
    /// Starts a collector on a free port.
    pub async fn start() -> anyhow::Result<(Self, SocketAddr)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let sink = Self::default();
        let service = TraceServiceServer::new(sink.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Ok((sink, address))
    }

    /// Every span received so far.
    pub fn spans(&self) -> Vec<Received> {
        self.spans.lock().map(|s| s.clone()).unwrap_or_default()
    }

    /// Waits until `enough` holds for the spans received, and gives them; else what came in time.
    pub async fn wait_for(&self, within: Duration, enough: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let end = Instant::now() + within;
        loop {
            let spans = self.spans();
            if enough(&spans) || Instant::now() > end {
                return spans;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
