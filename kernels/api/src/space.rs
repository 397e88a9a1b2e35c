//! Where tensors live, and the newtypes that keep numbers of different meaning apart.

use std::ops::Range;

/// A memory space with its tensor types: all backends that are bound together share one.
pub trait Space: Sized + Send + Sync + 'static {
    /// Activations, and the small weights (norms, taps, gates), row-major.
    type Tensor: Clone + Send + Sync + 'static;
    /// A matrix prepared for `x · Wᵀ`; its layout is the space's own affair.
    type Matrix: Send + Sync + 'static;

    /// Rows of a `[rows, columns]` tensor.
    fn row_count(tensor: &Self::Tensor) -> usize;

    /// A view of some columns of `[rows, columns]`; nothing is copied.
    fn columns(tensor: &Self::Tensor, range: Range<usize>) -> Result<Self::Tensor, OpError>;

    /// Gathers rows: `[rows, columns]` -> `[indices.len(), columns]`.
    fn rows(tensor: &Self::Tensor, indices: &[u32]) -> Result<Self::Tensor, OpError>;
}

/// `g = -exp(A_log) · softplus(a + dt_bias)`, at most 0: the logarithm of the decay of one token, `[T, Hv]`, f32.
#[derive(Clone, Debug)]
pub struct LogDecay<T>(pub T);

/// `exp(g)`, in (0, 1]: the decay of one token itself, `[T, Hv]`, f32.
#[derive(Clone, Debug)]
pub struct Alpha<T>(pub T);

/// `sigmoid(b)`, in (0, 1): how much of the new value is written, `[T, Hv]`, f32.
#[derive(Clone, Debug)]
pub struct Beta<T>(pub T);

/// The decay in the form that a delta-rule backend takes. A backend refuses the other form; it never converts.
#[derive(Clone, Debug)]
pub enum Decay<T> {
    /// Logarithm of the decay.
    Log(LogDecay<T>),
    /// The decay itself.
    Alpha(Alpha<T>),
}

/// Why an op did not run. Holds shapes and library messages, never data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// An argument has another shape than the op was told.
    #[error("{argument} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Which argument.
        argument: &'static str,
        /// Shape that the op needs.
        expected: Vec<usize>,
        /// Shape that it got.
        found: Vec<usize>,
    },
    /// The decay came in a form that this backend does not take.
    #[error("this backend takes the decay as {expected}")]
    WrongDecay {
        /// The form that it takes.
        expected: &'static str,
    },
    /// An index lies outside its table.
    #[error("index {index} is outside 0..{limit}")]
    Index {
        /// The index.
        index: u64,
        /// The first index that does not exist.
        limit: u64,
    },
    /// The library or the device refused.
    #[error("{0}")]
    Device(String),
    /// The device cannot be used any more: an error that stays until the process ends.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
}
