//! [`ServiceError`] to and from `tonic::Status` with google.rpc details.

use std::{borrow::Cow, collections::HashMap, error::Error};

use tonic::{Code, Status, TimeoutExpired};
use tonic_types::{ErrorDetails, FieldViolation as WireField, PreconditionViolation, StatusExt};

use super::{DOMAIN, FieldViolation, Precondition, ServiceError};

/// Prefix of the metadata keys that carry the reason of each field violation: BadRequest as tonic-types knows it
/// has no place for it.
const FIELD_REASON: &str = "field_reason.";

impl From<ServiceError> for Status {
    fn from(error: ServiceError) -> Self {
        let mut details = ErrorDetails::new();
        let mut metadata: HashMap<String, String> = error
            .metadata
            .into_iter()
            .map(|(k, v)| (k.into_owned(), v))
            .collect();
        for (index, violation) in error.fields.iter().enumerate() {
            metadata.insert(format!("{FIELD_REASON}{index}"), violation.reason.to_string());
        }
        details.set_error_info(error.reason, DOMAIN, metadata);
        if !error.fields.is_empty() {
            details.set_bad_request(
                error
                    .fields
                    .into_iter()
                    .map(|v| WireField::new(v.field, v.description))
                    .collect::<Vec<_>>(),
            );
        }
        if !error.preconditions.is_empty() {
            details.set_precondition_failure(
                error
                    .preconditions
                    .into_iter()
                    .map(|p| PreconditionViolation::new(p.kind, p.subject, p.description))
                    .collect::<Vec<_>>(),
            );
        }
        if error.retry_after.is_some() {
            details.set_retry_info(error.retry_after);
        }
        Status::with_error_details(error.code, error.message, details)
    }
}

impl From<&Status> for ServiceError {
    /// Keeps what a downstream service said. A status without details gets a reason after its code.
    fn from(status: &Status) -> Self {
        let (code, reason) = match status.code() {
            Code::Cancelled if timed_out(status) => (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
            code => (code, super::code_name(code)),
        };
        let mut error = ServiceError::new(code, reason, status.message());
        // Details that do not decode are of no service of ours: the code and message remain.
        let Ok(details) = status.check_error_details() else {
            return error;
        };
        let mut field_reasons = HashMap::new();
        if let Some(info) = details.error_info() {
            error.reason = Cow::Owned(info.reason.clone());
            for (key, value) in &info.metadata {
                match key
                    .strip_prefix(FIELD_REASON)
                    .and_then(|i| i.parse::<usize>().ok())
                {
                    Some(index) => {
                        field_reasons.insert(index, value.clone());
                    }
                    None => error.metadata.push((Cow::Owned(key.clone()), value.clone())),
                }
            }
            error.metadata.sort();
        }
        if let Some(bad) = details.bad_request() {
            error.fields = bad
                .field_violations
                .iter()
                .enumerate()
                .map(|(index, v)| FieldViolation {
                    field: v.field.clone(),
                    description: v.description.clone(),
                    reason: Cow::Owned(field_reasons.remove(&index).unwrap_or_default()),
                })
                .collect();
        }
        if let Some(failure) = details.precondition_failure() {
            error.preconditions = failure
                .violations
                .iter()
                .map(|v| Precondition {
                    kind: Cow::Owned(v.r#type.clone()),
                    subject: v.subject.clone(),
                    description: v.description.clone(),
                })
                .collect();
        }
        error.retry_after = details.retry_info().and_then(|r| r.retry_delay);
        error
    }
}

impl From<Status> for ServiceError {
    fn from(status: Status) -> Self {
        Self::from(&status)
    }
}

/// tonic's client reports its own timer as CANCELLED; the source tells it from a real cancellation.
fn timed_out(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<TimeoutExpired>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{sync::Arc, time::Duration};

    use super::*;

    #[test]
    fn every_detail_survives_the_round_trip() {
        let error = ServiceError::failed_precondition("KERNEL_NOT_BOUND", "delta_rule is not bound")
            .precondition("KERNEL_NOT_BOUND", "kernel/delta_rule", "bind a backend")
            .field("questions[0].id", "DUPLICATE", "is not unique")
            .field("questions[1].id", "EMPTY", "is empty")
            .retry_after(Duration::from_millis(250))
            .with("stage", "queue");
        let status = Status::from(error.clone());
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.get_details_error_info().unwrap().domain, DOMAIN);
        assert_eq!(ServiceError::from(&status), error);
    }

    #[test]
    fn a_bare_status_gets_the_reason_of_its_code() {
        let error = ServiceError::from(&Status::unavailable("tcp connect error"));
        assert_eq!(
            (error.code, error.reason.as_ref()),
            (Code::Unavailable, "UNAVAILABLE")
        );
    }

    #[test]
    fn a_client_timer_is_a_deadline_and_a_cancellation_is_not() {
        let mut status = Status::cancelled("Timeout expired");
        assert_eq!(ServiceError::from(&status).code, Code::Cancelled);
        status.set_source(Arc::new(TimeoutExpired(())));
        assert_eq!(ServiceError::from(&status).code, Code::DeadlineExceeded);
    }

    #[test]
    fn garbage_details_keep_code_and_message() {
        let status = Status::with_details(Code::Internal, "broken", bytes::Bytes::from_static(b"\xff\xff"));
        let error = ServiceError::from(&status);
        assert_eq!((error.code, error.message.as_str()), (Code::Internal, "broken"));
    }

    #[test]
    fn http_statuses_follow_the_contract() {
        for (code, http) in [
            (Code::InvalidArgument, 422),
            (Code::Unavailable, 503),
            (Code::FailedPrecondition, 503),
            (Code::ResourceExhausted, 429),
            (Code::DeadlineExceeded, 504),
            (Code::PermissionDenied, 403),
            (Code::NotFound, 404),
            (Code::Cancelled, 499),
            (Code::Internal, 500),
        ] {
            assert_eq!(
                ServiceError::new(code, "X", "x").http_status().as_u16(),
                http,
                "{code:?}"
            );
        }
    }
}
