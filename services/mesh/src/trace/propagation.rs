//! W3C `traceparent` and `tracestate` in HTTP headers and gRPC metadata.

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Puts the current span's context into an outgoing request.
pub fn inject<T>(request: &mut tonic::Request<T>) {
    inject_span(&Span::current(), request);
}

/// Puts a span's context into an outgoing request.
pub fn inject_span<T>(span: &Span, request: &mut tonic::Request<T>) {
    if !span.is_disabled() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut Metadata(request.metadata_mut()));
    }
}

/// The remote context in the headers; an empty one when there is none or it is malformed.
pub(crate) fn extract(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|v| v.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (
            MetadataKey::from_bytes(key.as_bytes()),
            MetadataValue::try_from(value),
        ) {
            self.0.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use opentelemetry::trace::TraceContextExt;

    use super::*;

    #[test]
    fn a_traceparent_is_read_and_a_broken_one_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
                .parse()
                .unwrap(),
        );
        let cx = extract(&headers);
        assert!(cx.span().span_context().is_sampled() && cx.span().span_context().is_remote());
        for broken in [
            "",
            "00-zz-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            headers.insert("traceparent", broken.parse().unwrap());
            assert!(!extract(&headers).span().span_context().is_valid(), "{broken}");
        }
    }
}
