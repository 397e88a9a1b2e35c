//! The one error type of the mesh, and its mapping to gRPC and HTTP.

mod status;

use std::{borrow::Cow, time::Duration};

pub use tonic::Code;

/// Domain of every `google.rpc.ErrorInfo` that a Deltagate service sends.
pub const DOMAIN: &str = "deltagate.dev";

/// One field at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// Path of the field, such as `questions[0].choice.options[2].name`.
    pub field: String,
    /// What is wrong with it. Never holds the field's text.
    pub description: String,
    /// UPPER_SNAKE code of the rule that it breaks.
    pub reason: Cow<'static, str>,
}

/// One thing that must change before a retry can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// UPPER_SNAKE kind, such as `KERNEL_NOT_BOUND`.
    pub kind: Cow<'static, str>,
    /// What it is about, such as `kernel/delta_rule`.
    pub subject: String,
    /// What must change.
    pub description: String,
}

/// An error that leaves a service: a code, a machine-readable reason, and google.rpc details.
///
/// No part of it may hold user text: not the state, a question, an option, or token ids.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The gRPC code.
    pub code: Code,
    /// UPPER_SNAKE reason, unique within [`DOMAIN`].
    pub reason: Cow<'static, str>,
    /// For people; lower case, no full stop.
    pub message: String,
    /// Fields at fault (BadRequest).
    pub fields: Vec<FieldViolation>,
    /// What must change first (PreconditionFailure).
    pub preconditions: Vec<Precondition>,
    /// When to come back (RetryInfo).
    pub retry_after: Option<Duration>,
    /// Further facts (ErrorInfo.metadata).
    pub metadata: Vec<(Cow<'static, str>, String)>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
            Self::new(Code::$code, reason, message)
        })*
    };
}

impl ServiceError {
    /// An error with no details but its reason.
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            fields: Vec::new(),
            preconditions: Vec::new(),
            retry_after: None,
            metadata: Vec::new(),
        }
    }

    constructors! {
        /// The request itself is wrong; name the fields with [`field`](Self::field).
        invalid_argument => InvalidArgument;
        /// What was named does not exist.
        not_found => NotFound;
        /// It exists already.
        already_exists => AlreadyExists;
        /// Policy says no.
        permission_denied => PermissionDenied;
        /// The caller did not say who it is.
        unauthenticated => Unauthenticated;
        /// It will not heal by itself; name what must change with [`precondition`](Self::precondition).
        failed_precondition => FailedPrecondition;
        /// A queue or quota is full.
        resource_exhausted => ResourceExhausted;
        /// Retrying just this call later may succeed.
        unavailable => Unavailable;
        /// The deadline passed, or cannot be met.
        deadline_exceeded => DeadlineExceeded;
        /// The caller went away.
        cancelled => Cancelled;
        /// An invariant is broken.
        internal => Internal;
        /// The method is not there.
        unimplemented => Unimplemented;
    }

    /// Adds a field at fault.
    #[must_use]
    pub fn field(
        mut self,
        field: impl Into<String>,
        reason: impl Into<Cow<'static, str>>,
        description: impl Into<String>,
    ) -> Self {
        self.fields.push(FieldViolation {
            field: field.into(),
            description: description.into(),
            reason: reason.into(),
        });
        self
    }

    /// Adds something that must change before a retry can succeed.
    #[must_use]
    pub fn precondition(
        mut self,
        kind: impl Into<Cow<'static, str>>,
        subject: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        self.preconditions.push(Precondition {
            kind: kind.into(),
            subject: subject.into(),
            description: description.into(),
        });
        self
    }

    /// Says when to come back.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Adds a fact, such as `("stage", "queue")`.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// The value of a fact.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.metadata
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// The status of the same error on the HTTP face.
    pub fn http_status(&self) -> http::StatusCode {
        http_status(self.code)
    }
}

/// The HTTP status for a gRPC code. 499 is "the client closed the request".
pub fn http_status(code: Code) -> http::StatusCode {
    use http::StatusCode;
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::UNPROCESSABLE_ENTITY,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::FailedPrecondition | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Internal | Code::Unknown | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The canonical name of a gRPC code, such as `DEADLINE_EXCEEDED`.
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
