//! One trace per request: W3C context in and out, server and client spans, and spans with explicit timestamps.
//!
//! Spans are `tracing` spans; [`crate::telemetry`] decides whether they are exported. Without telemetry nothing here
//! costs more than a disabled span.

mod explicit;
mod propagation;
pub(crate) mod server;

pub use explicit::{Anchor, Attribute, Parent};
use opentelemetry::trace::TraceContextExt;
pub use propagation::{inject, inject_span};
pub use server::{end_server_span, http_server_span};
use tracing::{Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{ServiceError, error::code_name};

/// Whether the span's trace is sampled. False for a disabled span.
pub fn is_sampled(span: &Span) -> bool {
    !span.is_disabled() && span.context().span().span_context().is_sampled()
}

/// The trace id of a span as 32 hex digits, if it has one.
pub fn trace_id(span: &Span) -> Option<String> {
    if span.is_disabled() {
        return None;
    }
    let cx = span.context();
    let id = cx.span().span_context().trace_id();
    (id != opentelemetry::trace::TraceId::INVALID).then(|| id.to_string())
}

/// A client span for a call, such as `deltagate.v1.ExecutorService/Forward`, below the current span.
///
/// Inject it with [`inject_span`], and end it with [`end_client_span`].
pub fn client_span(method: &'static str) -> Span {
    tracing::info_span!(
        target: "deltagate::rpc",
        "call",
        otel.name = method,
        otel.kind = "client",
        otel.status_code = Empty,
        otel.status_description = Empty,
        rpc.system.name = "grpc",
        rpc.method = method,
        rpc.response.status_code = Empty,
        "error.type" = Empty,
        deltagate.reason = Empty,
    )
}

/// Records how a call ended. On a client, everything but OK is an error.
pub fn end_client_span<T>(span: &Span, result: &Result<T, ServiceError>) {
    match result {
        Ok(_) => {
            span.record("rpc.response.status_code", "OK");
        }
        Err(error) => {
            let code = code_name(error.code);
            span.record("rpc.response.status_code", code);
            span.record("error.type", code);
            span.record("otel.status_code", "ERROR");
            span.record("deltagate.reason", error.reason.as_ref());
        }
    }
}
