//! What can go wrong in an engine. No variant holds token ids or values.

use deltagate_kernels_api::KernelFamily;

/// Why the engine did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The observer cancelled at a segment boundary.
    #[error("the forward pass was cancelled")]
    Cancelled,
    /// A readout holds NaN or an infinity.
    #[error("sequence {sequence}: the readout at position {position} is not finite")]
    NotFinite {
        /// Index of the sequence.
        sequence: usize,
        /// Position of the row.
        position: u32,
    },
    /// The plan cannot be run on this model.
    #[error("{field}: {reason}")]
    InvalidPlan {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Some kernel family is bound to nothing.
    #[error("kernels are not bound: {}", reasons.join("; "))]
    NotBound {
        /// A reason per family.
        reasons: Vec<String>,
    },
    /// A kernel refused or failed.
    #[error("kernel {family} on {backend} failed: {reason}")]
    Kernel {
        /// Its family.
        family: KernelFamily,
        /// Its backend.
        backend: String,
        /// What it said.
        reason: String,
    },
    /// The device cannot be used any more; only a new process can.
    #[error("the device is lost: {reason}")]
    Poisoned {
        /// What it said.
        reason: String,
    },
    /// A tensor is missing or does not fit.
    #[error("tensor `{name}` did not load: {reason}")]
    Tensor {
        /// Unprefixed name of the tensor, or of the first of those that are fused with it.
        name: String,
        /// Why.
        reason: String,
    },
    /// The device did not open.
    #[error("device did not open: {reason}")]
    Device {
        /// Why.
        reason: String,
    },
}
