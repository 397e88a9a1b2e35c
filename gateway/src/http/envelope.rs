//! What every response has: the request id, the trace, and no panic's text.

use std::panic::AssertUnwindSafe;

use axum::{extract::Request, middleware::Next, response::Response};
use deltagate_mesh::{
    error::ServiceError,
    trace::{end_server_span, http_server_span, inject_span},
};
use futures::FutureExt;
use http::{HeaderName, HeaderValue};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::respond;
use crate::classify::new_request_id;

/// Id of a request, in its extensions.
#[derive(Clone)]
pub(super) struct RequestId(pub(super) String);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-typesafe-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Probes come every second and say nothing in a trace.
const TRACED: [&str; 2] = ["/v1/systemone", "/v1/models"];

pub(super) async fn wrap(mut request: Request, next: Next) -> Response {
    let id = new_request_id();
    let span = span_for(&request, &id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let handled = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .instrument(span.clone());
    let mut response = handled.await.unwrap_or_else(|_panic| {
        respond::service_error(ServiceError::internal(
            "PANICKED",
            "the request could not be answered",
        ))
    });
    end_server_span(
        &span,
        response.status(),
        response.extensions().get::<ServiceError>(),
    );
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Some(value) = traceparent(&span) {
        headers.insert(TRACEPARENT, value);
    }
    response
}

fn span_for(request: &Request, id: &str) -> Span {
    match TRACED.iter().find(|path| request.uri().path() == **path) {
        None => Span::none(),
        Some(route) => {
            let span = http_server_span("gateway", request.method().as_str(), route, request.headers());
            span.set_attribute("deltagate.request_id", id.to_owned());
            span
        }
    }
}

fn traceparent(span: &Span) -> Option<HeaderValue> {
    let mut carrier = tonic::Request::new(());
    inject_span(span, &mut carrier);
    HeaderValue::from_bytes(carrier.metadata().get("traceparent")?.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use axum::{Router, body::Body, middleware, routing::get};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_500_without_its_text() {
        async fn broken() -> &'static str {
            panic!("secret")
        }
        let app = Router::new()
            .route("/", get(broken))
            .layer(middleware::from_fn(wrap));
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-typesafe-request-id"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.contains("panicked") && !text.contains("secret"), "{text}");
    }
}
