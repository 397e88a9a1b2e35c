//! One model on one device: weights, layer plan, bound kernels.
//!
//! [`Engine`] is the face; `runtime` is the same for every memory space; `cpu` is the space there is so far. It knows layers and
//! readouts, and nothing of who asks for them.

mod binding;
mod clock;
mod cpu;
mod device;
mod error;
mod fingerprint;
mod joint_head;
mod layers;
mod plan;
mod probing;
mod runtime;
mod segment;
mod settings;
mod shapes;
mod source;
mod weights;

use std::{ops::ControlFlow, ops::Range, sync::Arc, time::Duration, time::Instant};

use deltagate_checkpoint::Checkpoint;
use deltagate_kernels_api::{BindingReport, KernelFamily, Preferences};

pub use device::DeviceIdentity;
pub use error::EngineError;
pub use fingerprint::fingerprint;
pub use layers::{LayerPlan, NormAt, OpCall, PlannedCall, Segment};
pub use plan::{ForwardPlan, Projection, RowSelection, SequencePlan};
pub use settings::{Dtype, EngineSettings};
pub use source::TensorSource;

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the checkpoint that are on the device.
    pub done_bytes: u64,
    /// Bytes that will be.
    pub total_bytes: u64,
}

/// Told after each segment.
pub trait ForwardObserver {
    /// `Break` cancels the forward pass at this boundary.
    fn segment(&mut self, event: &SegmentDone) -> ControlFlow<()>;
}

/// A segment that has ended.
#[derive(Clone, Debug)]
pub struct SegmentDone {
    /// Index of the sequence in the plan.
    pub sequence: usize,
    /// Index of the segment.
    pub segment: usize,
    /// How many segments this sequence has.
    pub segments: usize,
    /// Its layers.
    pub layers: Range<usize>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// What each kernel family did in it, in the order of the families. The first segment embeds, the last one reads out.
    pub kernels: Vec<KernelSpan>,
}

/// What one kernel family did.
#[derive(Clone, Debug)]
pub struct KernelSpan {
    /// The family.
    pub family: KernelFamily,
    /// The backend that it is bound to.
    pub backend: Arc<str>,
    /// Start of its first call.
    pub first_start: Instant,
    /// End of its last call.
    pub last_end: Instant,
    /// Sum over its calls. For `launch`: the time of the segment that is spent in no other family.
    pub busy: Duration,
    /// Number of its calls.
    pub launches: u64,
}

/// What a plan gave: every row that was asked for, every value finite.
#[derive(Clone, Debug)]
pub struct ForwardOutput {
    /// Rows of each sequence, in the order that they were asked for.
    pub sequences: Vec<Vec<OutputRow>>,
    /// What each kernel family did, over all segments.
    pub kernels: Vec<KernelSpan>,
    /// When the first segment began.
    pub start: Instant,
    /// When the last one ended.
    pub end: Instant,
}

/// One row of a readout.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputRow {
    /// Position in the sequence.
    pub position: u32,
    /// Hidden values, a logit per row of a table, or one per option.
    pub values: Vec<f32>,
}

/// A runtime of whatever memory space.
trait Runtime: Send {
    fn device(&self) -> DeviceIdentity;
    fn report(&self) -> &BindingReport;
    fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError>;
    fn is_bound(&self) -> Result<(), Vec<String>>;
    fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError>;
}

/// A loaded model. Owned by one thread at a time.
pub struct Engine {
    runtime: Box<dyn Runtime>,
}

impl Engine {
    /// Puts the model of a checkpoint on the device, probes the kernels and binds them. A family that does not bind is no error
    /// here: [`Engine::is_bound`] and [`Engine::report`] say so, and [`Engine::forward`] refuses.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or if the device refuses.
    pub fn load(
        checkpoint: &Checkpoint,
        settings: &EngineSettings,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        Self::from_source(checkpoint, settings, progress)
    }

    /// The same, from wherever the tensors are.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_source(
        source: &dyn TensorSource,
        settings: &EngineSettings,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let device = cpu::CpuDevice::open(source.config(), source.joint_head().as_ref(), settings)?;
        Ok(Self {
            runtime: Box::new(runtime::ModelRuntime::load(device, source, settings, progress)?),
        })
    }

    /// The device.
    pub fn device(&self) -> DeviceIdentity {
        self.runtime.device()
    }

    /// What every family is bound to, with every candidate's probe.
    pub fn report(&self) -> &BindingReport {
        self.runtime.report()
    }

    /// Probes anew the families whose preference is another one, and switches if every family binds. Otherwise the binding stays as
    /// it is, and the report shows why.
    ///
    /// # Errors
    /// [`EngineError::NotBound`] with a reason per family that did not bind.
    pub fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError> {
        self.runtime.rebind(preferences)
    }

    /// Ok when every family is bound; otherwise a reason for each that is not.
    ///
    /// # Errors
    /// The reasons.
    pub fn is_bound(&self) -> Result<(), Vec<String>> {
        self.runtime.is_bound()
    }

    /// Runs a plan, sequence by sequence.
    ///
    /// # Errors
    /// If the plan is not valid, a family is not bound, the observer cancels, a kernel fails, or a value is not finite.
    pub fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError> {
        self.runtime.forward(plan, observer)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.runtime.device())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
