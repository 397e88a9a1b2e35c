//! A backend that may be bound, and what it is bound as.

use std::{sync::Arc, time::Duration};

use crate::{
    Agreement, Attention, Conv1d, DeltaRule, Embed, GatedNorm, KernelFamily, LaunchBackend, Mlp, Norm,
    ProbeCase, Projection, Readout, Space,
};

/// Who a candidate is. The digest is for correctness, the name for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Such as `cpu.chunked`.
    pub name: String,
    /// Version of the backend.
    pub version: String,
    /// Digest of its source or pack, lower-case hex.
    pub source_digest: String,
}

/// Why a probe stage did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// A refusal with this reason.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// A backend that can be probed. One candidate may serve several families.
///
/// The stages are asked in order: present, loadable, correct (once per length), timed. They run on a thread of their own and
/// may panic or hang there.
pub trait Candidate: Send + Sync {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// The families that it serves.
    fn families(&self) -> &[KernelFamily];

    /// Is it there, unchanged?
    fn present(&self) -> Result<(), Refusal>;

    /// Can it run on this device, for the sizes of the model?
    fn loadable(&self, family: KernelFamily) -> Result<(), Refusal>;

    /// Runs it on seeded random inputs of `case.tokens` tokens, with outputs poisoned by NaN beforehand, and compares it with
    /// the oracle. A number that is not finite is a refusal.
    fn check(&self, family: KernelFamily, case: &ProbeCase) -> Result<Agreement, Refusal>;

    /// The bound that `check` must keep.
    fn bound(&self, family: KernelFamily) -> crate::Bound;

    /// Times one run at the model's own sizes, inputs prepared beforehand.
    fn time(&self, family: KernelFamily, case: &ProbeCase) -> Result<Duration, Refusal>;
}

/// The object that serves a family once it is bound.
pub enum Backend<S: Space> {
    /// Serves `embed`.
    Embed(Arc<dyn Embed<S>>),
    /// Serves `norm`.
    Norm(Arc<dyn Norm<S>>),
    /// Serves `projection`.
    Projection(Arc<dyn Projection<S>>),
    /// Serves `conv1d`.
    Conv1d(Arc<dyn Conv1d<S>>),
    /// Serves `delta_rule`.
    DeltaRule(Arc<dyn DeltaRule<S>>),
    /// Serves `gated_norm`.
    GatedNorm(Arc<dyn GatedNorm<S>>),
    /// Serves `attention`.
    Attention(Arc<dyn Attention<S>>),
    /// Serves `mlp`.
    Mlp(Arc<dyn Mlp<S>>),
    /// Serves `readout`.
    Readout(Arc<dyn Readout<S>>),
    /// Serves `launch`.
    Launch(Arc<dyn LaunchBackend>),
}

impl<S: Space> Backend<S> {
    /// The family that it serves.
    pub const fn family(&self) -> KernelFamily {
        match self {
            Self::Embed(_) => KernelFamily::Embed,
            Self::Norm(_) => KernelFamily::Norm,
            Self::Projection(_) => KernelFamily::Projection,
            Self::Conv1d(_) => KernelFamily::Conv1d,
            Self::DeltaRule(_) => KernelFamily::DeltaRule,
            Self::GatedNorm(_) => KernelFamily::GatedNorm,
            Self::Attention(_) => KernelFamily::Attention,
            Self::Mlp(_) => KernelFamily::Mlp,
            Self::Readout(_) => KernelFamily::Readout,
            Self::Launch(_) => KernelFamily::Launch,
        }
    }
}

/// A candidate whose backends work in the space `S`.
pub trait Bindable<S: Space>: Candidate {
    /// The object that serves `family`; `None` when the candidate does not serve it.
    fn backend(&self, family: KernelFamily) -> Option<Backend<S>>;
}
