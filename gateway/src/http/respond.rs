//! Errors as responses: one body form that every System-One client reads, and `Retry-After` where retrying helps.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use deltagate_decider::{RequestError, systemone};
use deltagate_mesh::error::ServiceError;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::body::BodyError;
use crate::classify::Refusal;

/// Shown for a 503 or 429 that does not say itself when to come back.
const DEFAULT_RETRY_SECONDS: u64 = 1;

pub(super) fn refusal(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Request(error) => request_error(error),
        Refusal::Service(error) => service_error(*error),
    }
}

/// 400 or 422.
pub(super) fn request_error(error: RequestError) -> Response {
    let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
    let body = systemone::refusal_body(&error);
    finish(status, body, Refusal::Request(error).into_service_error())
}

/// By the table of the mesh.
pub(super) fn service_error(error: ServiceError) -> Response {
    let body = if error.fields.is_empty() {
        systemone::error_body(&error.reason, &error.message)
    } else {
        let detail: Vec<Value> = error
            .fields
            .iter()
            .map(|field| {
                json!({
                    "loc": ["body", field.field],
                    "msg": field.description,
                    "type": field.reason.to_ascii_lowercase(),
                })
            })
            .collect();
        json!({"error": error.message, "detail": detail})
    };
    finish(error.http_status(), body, error)
}

pub(super) fn body_error(error: &BodyError) -> Response {
    let (status, reason) = match error {
        BodyError::ContentType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_CONTENT_TYPE"),
        BodyError::Encoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_ENCODING"),
        BodyError::Multipart => (StatusCode::UNPROCESSABLE_ENTITY, "UNSUPPORTED_MEDIA"),
        BodyError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE"),
        BodyError::Unreadable => (StatusCode::BAD_REQUEST, "UNREADABLE_BODY"),
    };
    let message = error.to_string();
    let body = systemone::error_body(reason, &message);
    let mut response = finish(status, body, ServiceError::invalid_argument(reason, message));
    if *error == BodyError::Encoding {
        response.headers_mut().insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("zstd, gzip, identity"),
        );
    }
    response
}

/// 408: the body did not come in time.
pub(super) fn slow_body() -> Response {
    let message = "the body did not come in time";
    let body = systemone::error_body("BODY_TIMEOUT", message);
    finish(
        StatusCode::REQUEST_TIMEOUT,
        body,
        ServiceError::deadline_exceeded("BODY_TIMEOUT", message),
    )
}

pub(super) async fn unknown_route() -> Response {
    let error = ServiceError::not_found("ROUTE_NOT_FOUND", "no such route");
    service_error(error)
}

pub(super) async fn wrong_method() -> Response {
    let message = "the method is not allowed on this route";
    let body = systemone::error_body("METHOD_NOT_ALLOWED", message);
    finish(
        StatusCode::METHOD_NOT_ALLOWED,
        body,
        ServiceError::unimplemented("METHOD_NOT_ALLOWED", message),
    )
}

/// The error goes along for the span, which ends outside.
fn finish(status: StatusCode, body: Value, error: ServiceError) -> Response {
    let mut response = (status, Json(body)).into_response();
    if matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        // Whole seconds, rounded up; the SDK's finer header beside it.
        let (seconds, millis) = match error.retry_after {
            Some(delay) => (
                delay.as_millis().div_ceil(1000).max(1).to_string(),
                delay.as_millis().to_string(),
            ),
            None => (
                DEFAULT_RETRY_SECONDS.to_string(),
                (DEFAULT_RETRY_SECONDS * 1000).to_string(),
            ),
        };
        let headers = response.headers_mut();
        if let (Ok(seconds), Ok(millis)) = (HeaderValue::try_from(seconds), HeaderValue::try_from(millis)) {
            headers.insert(header::RETRY_AFTER, seconds);
            headers.insert("retry-after-ms", millis);
        }
    }
    response.extensions_mut().insert(error);
    response
}
