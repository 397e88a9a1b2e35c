//! Runs the stages of a probe on a thread of its own, so that a panic or a hang of a candidate ends in its report.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{Agreement, Candidate, CandidateReport, KernelFamily, ProbeStage, ProbeTime, Refusal};

/// Lengths at which chunked kernels tend to be wrong, and a long one.
pub const PROBE_LENGTHS: [usize; 9] = [1, 2, 63, 64, 65, 127, 128, 136, 523];

/// One run of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCase {
    /// Length of the random sequence.
    pub tokens: usize,
    /// Seed of the inputs.
    pub seed: u64,
}

/// What is probed, and for how long.
#[derive(Clone, Debug)]
pub struct ProbePlan {
    /// Lengths that must be correct.
    pub lengths: Vec<usize>,
    /// Lengths that are timed.
    pub timed: Vec<usize>,
    /// Timed runs per length; the median counts.
    pub repeats: usize,
    /// Limit of the whole probe.
    pub timeout: Duration,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Default for ProbePlan {
    fn default() -> Self {
        Self {
            lengths: PROBE_LENGTHS.to_vec(),
            timed: vec![136],
            repeats: 3,
            timeout: Duration::from_secs(30),
            seed: 0x5EED_0F0D,
        }
    }
}

/// What the probe thread tells.
enum Progress {
    Stage(ProbeStage),
    Agreement(Agreement),
    Time(ProbeTime),
    Stopped(Refusal),
    Panicked(String),
    Finished,
}

/// Probes one candidate for one family.
///
/// A candidate that hangs is reported when `plan.timeout` is over; its thread cannot be ended and is left behind.
pub fn probe(candidate: Arc<dyn Candidate>, family: KernelFamily, plan: &ProbePlan) -> CandidateReport {
    let identity = candidate.identity().clone();
    let mut report = CandidateReport {
        backend: identity.name,
        version: identity.version,
        source_digest: identity.source_digest,
        stage: ProbeStage::None,
        passed: false,
        reason: String::new(),
        relative_l2: 0.0,
        worst_element: 0.0,
        times: Vec::new(),
    };
    let deadline = Instant::now() + plan.timeout;
    let (sender, receiver) = mpsc::channel();
    let thread_plan = plan.clone();
    let spawned = thread::Builder::new().name("probe".to_owned()).spawn(move || {
        let run = catch_unwind(AssertUnwindSafe(|| {
            stages(&*candidate, family, &thread_plan, &sender)
        }));
        let last = match run {
            Ok(Ok(())) => Progress::Finished,
            Ok(Err(refusal)) => Progress::Stopped(refusal),
            Err(payload) => Progress::Panicked(panic_message(&*payload)),
        };
        // Nobody listens any more when the time limit is over.
        let _ = sender.send(last);
    });
    if let Err(error) = spawned {
        report.reason = format!("no thread to probe on: {error}");
        return report;
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left) {
            Ok(Progress::Stage(stage)) => report.stage = stage,
            Ok(Progress::Agreement(agreement)) => {
                report.relative_l2 = report.relative_l2.max(agreement.relative_l2);
                report.worst_element = report.worst_element.max(agreement.worst_element);
            }
            Ok(Progress::Time(time)) => report.times.push(time),
            Ok(Progress::Stopped(refusal)) => report.reason = refusal.0,
            Ok(Progress::Panicked(message)) => report.reason = format!("panicked: {message}"),
            Ok(Progress::Finished) => report.passed = true,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                report.reason = format!("did not end within {:?}", plan.timeout);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                report.reason = "probe thread ended early".to_owned()
            }
        }
        if report.passed || !report.reason.is_empty() {
            return report;
        }
    }
}

fn stages(
    candidate: &dyn Candidate,
    family: KernelFamily,
    plan: &ProbePlan,
    progress: &mpsc::Sender<Progress>,
) -> Result<(), Refusal> {
    let tell = |p| progress.send(p).map_err(|_| Refusal::new("time limit is over"));
    if !candidate.families().contains(&family) {
        return Err(Refusal(format!("does not serve {family}")));
    }
    candidate.present()?;
    tell(Progress::Stage(ProbeStage::Present))?;
    candidate.loadable(family)?;
    tell(Progress::Stage(ProbeStage::Loadable))?;
    let bound = candidate.bound(family);
    for &tokens in &plan.lengths {
        let case = ProbeCase {
            tokens,
            seed: plan.seed ^ tokens as u64,
        };
        let agreement = candidate
            .check(family, &case)
            .map_err(|r| Refusal(format!("{tokens} tokens: {r}")))?;
        tell(Progress::Agreement(agreement))?;
        bound
            .allows(&agreement)
            .map_err(|r| Refusal(format!("{tokens} tokens: {r}")))?;
    }
    tell(Progress::Stage(ProbeStage::Correct))?;
    for &tokens in &plan.timed {
        let case = ProbeCase {
            tokens,
            seed: plan.seed,
        };
        let mut runs = Vec::with_capacity(plan.repeats);
        for _ in 0..plan.repeats.max(1) {
            runs.push(candidate.time(family, &case)?);
        }
        runs.sort_unstable();
        tell(Progress::Time(ProbeTime {
            tokens,
            median: runs[runs.len() / 2],
        }))?;
    }
    tell(Progress::Stage(ProbeStage::Timed))
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
