//! Kernel families, backend traits, probe reports and negotiation. No CUDA, no candle, no I/O.

mod agreement;
mod candidate;
mod family;
mod joint_head;
mod launch;
mod negotiate;
mod ops;
mod preference;
mod probe;
mod random;
mod report;
mod space;

pub use agreement::{Agreement, Bound, compare};
pub use candidate::{Backend, Bindable, Candidate, Identity, Refusal};
pub use family::{KernelFamily, UnknownFamily};
pub use joint_head::{
    Affine, EvidenceLayer, FeedForward, JointHead, JointHeadShape, JointHeadTensors, JointQuestion,
    LayerNorm, MultiHead, QUESTION_TYPES, QuestionLayer,
};
pub use launch::{LaunchBackend, SegmentCalls};
pub use negotiate::negotiate;
pub use ops::{
    Attention, AttentionShape, AttentionWeights, Conv1d, DeltaRule, DeltaRuleShape, Embed, GateWeights,
    GatedNorm, Gates, Mlp, Norm, Projection, Readout,
};
pub use preference::{Preference, Preferences};
pub use probe::{PROBE_LENGTHS, ProbeCase, ProbePlan, probe};
pub use random::Random;
pub use report::{BindingReport, BindingState, CandidateReport, FamilyBinding, ProbeStage, ProbeTime};
pub use space::{Alpha, Beta, Decay, LogDecay, OpError, Space};
