//! Kernel families, backend traits, probe reports and negotiation. No CUDA, no candle, no I/O.

mod family;
mod preference;
mod report;

pub use family::{KernelFamily, UnknownFamily};
pub use preference::{Preference, Preferences};
pub use report::{BindingReport, BindingState, CandidateReport, FamilyBinding, ProbeStage, ProbeTime};
