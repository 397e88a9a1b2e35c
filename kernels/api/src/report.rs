//! What was probed and what is bound.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{KernelFamily, Preference};

/// How far a candidate came in its probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeStage {
    /// Nothing passed: the candidate was not found.
    None,
    /// Its pack was found and its digest is right.
    Present,
    /// It loads on this device.
    Loadable,
    /// It agrees with the oracle.
    Correct,
    /// It was timed.
    Timed,
}

/// Median time of a candidate at one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeTime {
    /// Length in tokens.
    pub tokens: usize,
    /// Median over the timed runs.
    pub median: Duration,
}

/// Probe report of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// Its name, such as `cpu.chunked`.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// Digest of its source or pack, lower-case hex.
    pub source_digest: String,
    /// The last stage that it passed.
    pub stage: ProbeStage,
    /// Whether it may be bound.
    pub passed: bool,
    /// Why it stopped, or why it was not chosen; empty for the bound one.
    pub reason: String,
    /// Worst relative L2 error against the oracle over all probed lengths.
    pub relative_l2: f64,
    /// Worst absolute error of one element.
    pub worst_element: f64,
    /// Median times.
    pub times: Vec<ProbeTime>,
}

/// Whether a family is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingState {
    /// Bound to a candidate whose probe passed.
    Bound,
    /// No candidate of the preferred names exists.
    Missing,
    /// Candidates exist, none passed its probe.
    ProbeFailed,
}

/// What one family is bound to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FamilyBinding {
    /// The family.
    pub family: KernelFamily,
    /// Whether it is bound.
    pub state: BindingState,
    /// Name of the bound backend; empty when not bound.
    pub backend: String,
    /// Version of the bound backend.
    pub version: String,
    /// Digest of its source or pack.
    pub source_digest: String,
    /// What was preferred.
    pub preference: Preference,
    /// Every candidate, also the losing ones.
    pub candidates: Vec<CandidateReport>,
}

/// What every family is bound to.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct BindingReport {
    /// One per family of the layer plan.
    pub bindings: Vec<FamilyBinding>,
}

impl BindingReport {
    /// The binding of one family, if it was negotiated.
    pub fn binding(&self, family: KernelFamily) -> Option<&FamilyBinding> {
        self.bindings.iter().find(|b| b.family == family)
    }
}
