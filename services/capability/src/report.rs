//! What becomes of a heartbeat.

use deltagate_mesh::ServiceError;

/// Longest instance id in bytes.
pub(crate) const MAX_ID_BYTES: usize = 128;

/// A heartbeat was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The lease is renewed.
    Renewed,
    /// The registry lacks this revision: the snapshot must come with the next heartbeat. The lease is not renewed.
    SnapshotWanted,
    /// The executor is gone from the registry.
    Left,
}

/// A heartbeat was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The instance id is empty or too long.
    #[error("instance_id must have 1 to {MAX_ID_BYTES} bytes")]
    BadInstanceId,
    /// The snapshot is of another instance or revision than the heartbeat.
    #[error("snapshot and heartbeat differ in {0}")]
    Inconsistent(&'static str),
    /// A newer revision is known.
    #[error("revision {got} is older than {known}")]
    StaleRevision {
        /// What the heartbeat said.
        got: u64,
        /// What the registry has.
        known: u64,
    },
    /// Another snapshot is known under the same revision.
    #[error("revision {0} was sent before with other content")]
    RevisionReused(u64),
    /// The snapshot is too large.
    #[error("snapshot has {got} bytes, at most {most} are taken")]
    TooLarge {
        /// Its size.
        got: usize,
        /// The limit.
        most: usize,
    },
    /// The registry is full.
    #[error("registry holds {0} executors already")]
    Full(usize),
}

impl From<Refused> for ServiceError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::BadInstanceId => {
                Self::invalid_argument("INVALID_REQUEST", &message).field("instance_id", "LENGTH", message)
            }
            Refused::Inconsistent(field) => Self::invalid_argument("INVALID_REQUEST", &message).field(
                format!("snapshot.{field}"),
                "INCONSISTENT",
                message,
            ),
            Refused::RevisionReused(_) => {
                Self::invalid_argument("REVISION_REUSED", &message).field("revision", "REUSED", message)
            }
            Refused::TooLarge { .. } => {
                Self::invalid_argument("SNAPSHOT_TOO_LARGE", &message).field("snapshot", "TOO_LARGE", message)
            }
            Refused::StaleRevision { .. } => Self::failed_precondition("STALE_REVISION", message),
            Refused::Full(_) => Self::resource_exhausted("REGISTRY_FULL", message),
        }
    }
}
