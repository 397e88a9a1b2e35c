//! What ends an executor: conditions that only a new process heals.

use std::sync::OnceLock;

use deltagate_mesh::error::ServiceError;
use tokio_util::sync::CancellationToken;

/// Exit code when the model could not be loaded.
pub const EXIT_LOAD_FAILED: u8 = 78;
/// Exit code when the device or its thread is lost. A supervisor starts the executor anew.
pub const EXIT_DEVICE_LOST: u8 = 70;

/// Why the device cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// The model did not load.
    #[error("{0}")]
    Load(String),
    /// The engine said that it cannot be used any more.
    #[error("{0}")]
    Poisoned(String),
    /// The engine panicked: its state is unknown.
    #[error("the device thread panicked")]
    Panicked,
    /// The heartbeat is gone: nobody would notice that an answer ran out.
    #[error("the heartbeat thread panicked")]
    Heartbeat,
    /// No segment was finished for longer than the watchdog allows.
    #[error("the device makes no progress")]
    Hangs,
}

impl DeviceFailure {
    /// Code of the reason in the snapshot.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Load(_) => "LOAD_FAILED",
            Self::Poisoned(_) | Self::Panicked => "DEVICE_LOST",
            Self::Heartbeat => "HEARTBEAT_LOST",
            Self::Hangs => "DEVICE_HANGS",
        }
    }

    /// Exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Load(_) => EXIT_LOAD_FAILED,
            Self::Poisoned(_) | Self::Panicked | Self::Heartbeat | Self::Hangs => EXIT_DEVICE_LOST,
        }
    }

    /// What callers get whose requests were admitted.
    pub(crate) fn refusal(&self) -> ServiceError {
        match self {
            Self::Load(_) => ServiceError::unavailable(self.code(), "the model did not load"),
            _ => ServiceError::internal("KERNEL_FAILED", "the device failed, the executor restarts"),
        }
    }
}

/// Raised at most once; everybody can wait for it.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    cause: OnceLock<DeviceFailure>,
    raised: CancellationToken,
}

impl Failure {
    /// The first cause stays.
    pub(crate) fn raise(&self, cause: DeviceFailure) {
        self.cause.get_or_init(|| cause);
        self.raised.cancel();
    }

    /// Waits until it is raised.
    pub(crate) async fn raised(&self) -> DeviceFailure {
        self.raised.cancelled().await;
        self.cause().unwrap_or(DeviceFailure::Panicked)
    }

    /// The cause, once raised.
    pub(crate) fn cause(&self) -> Option<DeviceFailure> {
        self.cause.get().cloned()
    }
}
