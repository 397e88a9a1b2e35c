//! Why the executor is not ready: a code for machines and a sentence for people.

use std::{fmt, time::Duration};

use deltagate_mesh::error::ServiceError;

/// One reason, written `CODE` or `CODE: detail` in snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    code: &'static str,
    detail: String,
}

/// A caller is told to come back after this time when the executor may be ready again by itself.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

impl Reason {
    /// A reason that its code says in full.
    pub(crate) const fn bare(code: &'static str) -> Self {
        Self {
            code,
            detail: String::new(),
        }
    }

    /// A reason with a detail. Never user text.
    pub(crate) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// What a caller gets while this is the reason: FAILED_PRECONDITION when somebody must change something first,
    /// UNAVAILABLE when waiting may help.
    pub(crate) fn refusal(&self) -> ServiceError {
        let message = format!("executor is not ready: {self}");
        match self.code {
            "KERNEL_NOT_BOUND" => ServiceError::failed_precondition(self.code, message).precondition(
                self.code,
                "executor",
                self.detail.as_str(),
            ),
            "POLICY_DENIED" => ServiceError::failed_precondition(self.code, message).precondition(
                self.code,
                "policy",
                self.detail.as_str(),
            ),
            _ => ServiceError::unavailable(self.code, message).retry_after(RETRY),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)?;
        if self.detail.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.detail)
        }
    }
}
