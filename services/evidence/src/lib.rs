//! Bench and gate: timed runs with raw samples, and keep-or-reject verdicts.
//!
//! A gain counts only when it was measured: every task answered, five warm-ups, one request in flight, the same
//! device, and the raw samples kept beside the verdict.

mod cancel;
mod gate;
mod record;
mod run;

pub use cancel::{CancelEvidence, cancel};
pub use gate::{Verdict, gate};
pub use record::{Evidence, Percentiles, TaskRecord};
pub use run::{BenchError, BenchSettings, run};
