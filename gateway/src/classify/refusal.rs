//! Why a call has no answers. Both faces map it from here, so that their codes agree.

use deltagate_decider::{DeciderError, RequestError, Violation, special::SPECIAL_TOKEN_TEXT};
use deltagate_mesh::error::ServiceError;
use tonic::Status;

/// A refusal. It never holds text of the request.
#[derive(Debug)]
pub enum Refusal {
    /// The request is at fault.
    Request(RequestError),
    /// Something else is.
    Service(Box<ServiceError>),
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self::Service(Box::new(error))
    }
}

impl From<DeciderError> for Refusal {
    fn from(error: DeciderError) -> Self {
        match error {
            DeciderError::Request(error) => Self::Request(error),
            DeciderError::Tokenize(_) => {
                ServiceError::internal("TOKENIZER_FAILED", "the tokenizer failed").into()
            }
            DeciderError::NotFinite { .. } => {
                ServiceError::internal("NOT_FINITE", "the model gave a value that is not finite").into()
            }
            DeciderError::OutputShape { .. } | DeciderError::OutOfTurn => {
                ServiceError::internal("INTERNAL", error.to_string()).into()
            }
        }
    }
}

impl Refusal {
    /// A request that is too much for a limit.
    pub(super) fn prompt_too_long(message: String) -> Self {
        let violation = Violation::new(["questions".into()], "PROMPT_TOO_LONG", message);
        Self::Request(RequestError::unanswerable(violation))
    }

    /// As the error of the mesh, with fields in the names of the proto.
    pub fn into_service_error(self) -> ServiceError {
        match self {
            Self::Service(error) => *error,
            Self::Request(error) => {
                let reason = match error.reason() {
                    "PROMPT_TOO_LONG" => "PROMPT_TOO_LONG",
                    SPECIAL_TOKEN_TEXT => SPECIAL_TOKEN_TEXT,
                    _ => "INVALID_REQUEST",
                };
                let message = error.violations.first().map_or_else(
                    || "the request cannot be answered".to_owned(),
                    |first| match first.field() {
                        field if field.is_empty() => first.message.clone(),
                        field => format!("{field}: {}", first.message),
                    },
                );
                error.violations.into_iter().fold(
                    ServiceError::invalid_argument(reason, message),
                    |sum, violation| sum.field(violation.field(), violation.reason, violation.message),
                )
            }
        }
    }

    /// As a gRPC status with details.
    pub fn into_status(self) -> Status {
        self.into_service_error().into()
    }
}
