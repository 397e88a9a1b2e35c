//! The server span of a call: joins the caller's trace, and lasts until the last byte of the response.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame};
use opentelemetry::trace::TraceContextExt;
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};
use tracing::{Instrument, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::propagation;
use crate::{ServiceError, error::code_name};

/// Never traced.
const INFRASTRUCTURE: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];

/// Heartbeats and subscriptions: traced only when the caller's trace asks for it, or they would be most of all spans.
const CONTROL: [&str; 2] = ["/deltagate.v1.CapabilityService/", "/deltagate.v1.PolicyService/"];

/// Opens a server span for each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceLayer {
    service: &'static str,
}

impl TraceLayer {
    pub(crate) const fn new(service: &'static str) -> Self {
        Self { service }
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced {
            inner,
            service: self.service,
        }
    }
}

/// See [`TraceLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Traced<S> {
    inner: S,
    service: &'static str,
}

impl<S> Service<Request<Body>> for Traced<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(span) = grpc_span(self.service, &request) else {
            return Box::pin(self.inner.call(request));
        };
        // Ends the span as CANCELLED when this future or the body is dropped before a status was seen.
        let mut ending = Ending {
            span: span.clone(),
            done: false,
        };
        let handled = span.in_scope(|| self.inner.call(request)).instrument(span);
        Box::pin(async move {
            let response = handled.await?;
            if response.headers().contains_key("grpc-status") {
                ending.see(response.headers());
                return Ok(response);
            }
            Ok(response.map(|inner| Body::new(TracedBody { inner, ending })))
        })
    }
}

fn grpc_span(service: &'static str, request: &Request<Body>) -> Option<Span> {
    let path = request.uri().path();
    if INFRASTRUCTURE.iter().any(|p| path.starts_with(p)) {
        return None;
    }
    let remote = propagation::extract(request.headers());
    if CONTROL.iter().any(|p| path.starts_with(p)) && !remote.span().span_context().is_valid() {
        return None;
    }
    let method = path.strip_prefix('/').unwrap_or(path);
    let span = tracing::info_span!(
        target: "deltagate::rpc",
        "rpc",
        otel.name = method,
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system.name = "grpc",
        rpc.method = method,
        rpc.response.status_code = Empty,
        "error.type" = Empty,
        deltagate.service = service,
        deltagate.reason = Empty,
    );
    join(&span, remote);
    Some(span)
}

/// A server span for an HTTP request, named `{method} {route}`, in the trace of its `traceparent`.
///
/// End it with [`end_server_span`].
pub fn http_server_span(service: &'static str, method: &str, route: &str, headers: &HeaderMap) -> Span {
    let span = tracing::info_span!(
        target: "deltagate::rpc",
        "http",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        rpc.response.status_code = Empty,
        "error.type" = Empty,
        deltagate.service = service,
        deltagate.reason = Empty,
    );
    join(&span, propagation::extract(headers));
    span
}

/// Records how an HTTP request ended.
pub fn end_server_span(span: &Span, status: http::StatusCode, error: Option<&ServiceError>) {
    span.record("http.response.status_code", status.as_u16());
    if let Some(error) = error {
        span.record("deltagate.reason", error.reason.as_ref());
        if server_fault(error.code) {
            span.record("error.type", code_name(error.code));
            span.record("otel.status_code", "ERROR");
        }
    }
}

fn join(span: &Span, remote: opentelemetry::Context) {
    if !remote.span().span_context().is_valid() {
        return;
    }
    // Fails only when no OpenTelemetry layer is installed, and then there is no trace to join.
    let _ = span.set_parent(remote);
}

/// On a server only these codes make the span an error (OpenTelemetry RPC conventions).
const fn server_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// Records the status once.
struct Ending {
    span: Span,
    done: bool,
}

impl Ending {
    /// Looks for a status in headers or trailers.
    fn see(&mut self, headers: &HeaderMap) {
        if self.done {
            return;
        }
        if let Some(status) = Status::from_header_map(headers) {
            self.done = true;
            self.record(status.code());
            if status.code() != Code::Ok {
                self.span
                    .record("deltagate.reason", ServiceError::from(&status).reason.as_ref());
            }
        }
    }

    fn record(&self, code: Code) {
        self.span.record("rpc.response.status_code", code_name(code));
        if server_fault(code) {
            self.span.record("error.type", code_name(code));
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.done {
            self.record(Code::Cancelled);
        }
    }
}

/// A body inside its server span.
struct TracedBody {
    inner: Body,
    ending: Ending,
}

impl HttpBody for TracedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = this
            .ending
            .span
            .in_scope(|| Pin::new(&mut this.inner).poll_frame(cx));
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            this.ending.see(trailers);
        }
        frame
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}
