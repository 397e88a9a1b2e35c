//! A message that cannot be read is its sender's fault: INVALID_ARGUMENT with details, where tonic says INTERNAL; and what
//! is no gRPC at all is HTTP 415.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use deltagate_mesh::error::ServiceError;
use http::{HeaderMap, Request, Response, StatusCode, header};
use tonic::{Code, Status, body::Body, server::NamedService};
use tower::Service;

/// A generated service whose refusals of unreadable messages are corrected.
#[derive(Clone, Debug)]
pub(crate) struct Readable<S>(S);

impl<S> Readable<S> {
    /// Around a generated service.
    pub(crate) fn new(service: S) -> Self {
        Self(service)
    }
}

impl<S: NamedService> NamedService for Readable<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Readable<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !is_grpc(request.headers()) {
            let mut response = Response::new(Body::default());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Box::pin(std::future::ready(Ok(response)));
        }
        let answered = self.0.call(request);
        Box::pin(async move {
            let response = answered.await?;
            Ok(match corrected(response.headers()) {
                Some(status) => status.into_http(),
                None => response,
            })
        })
    }
}

/// What tonic refuses before a method is called is INTERNAL and has no details; every status of our own has some.
fn corrected(headers: &HeaderMap) -> Option<Status> {
    let status = Status::from_header_map(headers).filter(|status| status.code() == Code::Internal)?;
    if !status.details().is_empty() {
        return None;
    }
    let error = ServiceError::invalid_argument(
        "MALFORMED_MESSAGE",
        "the request is not one whole message of its type",
    );
    let place = status
        .message()
        .strip_prefix("failed to decode Protobuf message: ");
    let field = field(place.unwrap_or_default());
    Some(if field.is_empty() {
        error.into()
    } else {
        error.field(field, "MALFORMED_MESSAGE", "cannot be read").into()
    })
}

/// What gRPC with protobuf calls itself. The protocol asks for HTTP 415 otherwise; tonic does not look.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media = value.and_then(|value| value.split(';').next()).map(str::trim);
    matches!(media, Some("application/grpc" | "application/grpc+proto"))
}

/// `state.kind` of prost's `ClassifyRequest.state: Content.kind: …`, whichever of them it names first.
fn field(place: &str) -> String {
    let steps: Vec<(&str, &str)> = place
        .split(": ")
        .map_while(|step| step.split_once('.'))
        .take_while(|(message, field)| message.starts_with(char::is_uppercase) && is_name(field))
        .collect();
    let outermost_first = steps
        .first()
        .is_some_and(|(message, _)| message.starts_with("Classify"));
    let mut fields: Vec<&str> = steps.iter().map(|(_, field)| *field).collect();
    if !outermost_first {
        fields.reverse();
    }
    fields.join(".")
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use deltagate_proto::v1::{ClassifyRequest, ClassifyStreamRequest};
    use http::HeaderValue;
    use prost::Message;

    use super::*;

    /// The error that tonic makes of bytes that are no `T`.
    fn refused<T: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> ServiceError {
        let error = T::decode(bytes).unwrap_err();
        let response: Response<()> = Status::internal(error.to_string()).into_http();
        ServiceError::from(&corrected(response.headers()).unwrap())
    }

    #[test]
    fn an_unreadable_message_is_invalid_and_its_field_is_named() {
        // model (1) is not UTF-8; state (2) holds a text (1) that is not.
        for (bytes, field) in [
            (&b"\x0a\x01\xff"[..], "model"),
            (b"\x12\x03\x0a\x01\xff", "state.kind"),
        ] {
            let error = refused::<ClassifyRequest>(bytes);
            assert_eq!(error.code, deltagate_mesh::error::Code::InvalidArgument);
            assert_eq!(error.reason, "MALFORMED_MESSAGE");
            assert_eq!(error.fields[0].field, field);
        }
        let nested = refused::<ClassifyStreamRequest>(b"\x0a\x05\x12\x03\x0a\x01\xff");
        assert_eq!(nested.fields[0].field, "request.state.kind");
        assert!(refused::<ClassifyRequest>(b"\xff").fields.is_empty());
    }

    #[test]
    fn content_types() {
        let typed = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            is_grpc(&headers)
        };
        assert!(typed("application/grpc") && typed("application/grpc+proto; charset=utf-8"));
        for other in [
            "application/grpc-web",
            "application/grpc+json",
            "application/json",
            "",
        ] {
            assert!(!typed(other), "{other}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn other_statuses_stay() {
        let stays = |status: Status| corrected(status.into_http::<()>().headers()).is_none();
        assert!(stays(Status::not_found("Missing request message.")));
        assert!(stays(Status::out_of_range("decoded message length too large")));
        let ours = ServiceError::internal("X", "failed to decode Protobuf message: of the executor");
        assert!(stays(ours.into()));
    }
}
