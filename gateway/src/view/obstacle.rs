//! Why a request cannot be served now: one reason, its code, and whether waiting a moment can help.

use std::time::Duration;

use deltagate_mesh::error::ServiceError;

/// One reason for not being ready. It never holds text of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// `ErrorInfo.reason`, UPPER_SNAKE.
    pub reason: &'static str,
    /// For people: lower case, no full stop.
    pub message: String,
    /// Which code it becomes.
    pub kind: ObstacleKind,
}

/// What an obstacle means to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// UNAVAILABLE: something is away; try again later.
    Away,
    /// UNAVAILABLE, but a binding or permit is just being replaced: a request waits a little for it.
    Passing,
    /// FAILED_PRECONDITION: it does not heal by itself. The subject is such as `kernel/conv1d`.
    Precondition {
        /// What the precondition is about.
        subject: String,
    },
}

impl Obstacle {
    /// Something is away.
    pub fn away(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            kind: ObstacleKind::Away,
        }
    }

    /// Something is being replaced.
    pub fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            kind: ObstacleKind::Passing,
        }
    }

    /// Something must be changed by a person.
    pub fn precondition(
        reason: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            reason,
            message: message.into(),
            kind: ObstacleKind::Precondition {
                subject: subject.into(),
            },
        }
    }

    /// Whether a request waits for it to pass.
    pub fn is_passing(&self) -> bool {
        self.kind == ObstacleKind::Passing
    }

    /// As `reason: message`, for HTTP `/health`.
    pub fn line(&self) -> String {
        format!("{}: {}", self.reason, self.message)
    }

    /// As an error to the caller.
    pub fn to_error(&self, retry_after: Duration) -> ServiceError {
        match &self.kind {
            ObstacleKind::Away | ObstacleKind::Passing => {
                ServiceError::unavailable(self.reason, self.message.clone()).retry_after(retry_after)
            }
            ObstacleKind::Precondition { subject } => ServiceError::failed_precondition(
                self.reason,
                self.message.clone(),
            )
            .precondition(self.reason, subject.clone(), self.message.clone()),
        }
    }
}
