#![allow(clippy::unwrap_used, clippy::panic)]
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{Bound, Identity};

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Absent,
    WrongDevice,
    WrongAt(usize),
    Panics,
    Hangs,
}

struct Fake {
    identity: Identity,
    fault: Fault,
    checks: AtomicUsize,
}

impl Fake {
    fn report(fault: Fault) -> (CandidateReport, usize) {
        let identity = Identity {
            name: "fake".into(),
            version: "1".into(),
            source_digest: "00".into(),
        };
        let fake = Arc::new(Self {
            identity,
            fault,
            checks: AtomicUsize::new(0),
        });
        let plan = ProbePlan {
            timeout: Duration::from_millis(300),
            repeats: 3,
            timed: vec![8, 16],
            ..ProbePlan::default()
        };
        let report = probe(fake.clone(), KernelFamily::Norm, &plan);
        (report, fake.checks.load(Ordering::SeqCst))
    }
}

impl Candidate for Fake {
    fn identity(&self) -> &Identity {
        &self.identity
    }
    fn families(&self) -> &[KernelFamily] {
        &[KernelFamily::Norm]
    }
    fn present(&self) -> Result<(), Refusal> {
        if self.fault == Fault::Absent {
            Err(Refusal::new("no pack"))
        } else {
            Ok(())
        }
    }
    fn loadable(&self, _: KernelFamily) -> Result<(), Refusal> {
        if self.fault == Fault::WrongDevice {
            Err(Refusal::new("needs sm_90"))
        } else {
            Ok(())
        }
    }
    fn check(&self, _: KernelFamily, case: &ProbeCase) -> Result<Agreement, Refusal> {
        self.checks.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::Panics => panic!("index out of bounds"),
            Fault::Hangs => {
                thread::sleep(Duration::from_secs(2));
                Ok(Agreement::default())
            }
            Fault::WrongAt(tokens) if tokens == case.tokens => Ok(Agreement {
                relative_l2: 0.5,
                worst_element: 1.0,
                largest: 1.0,
            }),
            _ => Ok(Agreement {
                relative_l2: 1e-7,
                worst_element: 1e-7,
                largest: 1.0,
            }),
        }
    }
    fn bound(&self, _: KernelFamily) -> Bound {
        Bound {
            relative_l2: 1e-5,
            worst_element: 1e-4,
        }
    }
    fn time(&self, _: KernelFamily, case: &ProbeCase) -> Result<Duration, Refusal> {
        Ok(Duration::from_micros(case.tokens as u64))
    }
}

#[test]
fn a_good_candidate_passes_every_stage() {
    let (report, checks) = Fake::report(Fault::None);
    assert!(report.passed && report.reason.is_empty());
    assert_eq!(report.stage, ProbeStage::Timed);
    assert_eq!(checks, PROBE_LENGTHS.len());
    assert_eq!(report.relative_l2, 1e-7);
    let times: Vec<_> = report
        .times
        .iter()
        .map(|t| (t.tokens, t.median.as_micros()))
        .collect();
    assert_eq!(times, [(8, 8), (16, 16)]);
}

#[test]
fn each_stage_stops_with_its_reason() {
    for (fault, stage, reason) in [
        (Fault::Absent, ProbeStage::None, "no pack"),
        (Fault::WrongDevice, ProbeStage::Present, "needs sm_90"),
        (
            Fault::WrongAt(65),
            ProbeStage::Loadable,
            "65 tokens: differs from the oracle",
        ),
        (Fault::WrongAt(523), ProbeStage::Loadable, "523 tokens: differs"),
        (
            Fault::Panics,
            ProbeStage::Loadable,
            "panicked: index out of bounds",
        ),
        (Fault::Hangs, ProbeStage::Loadable, "did not end within 300ms"),
    ] {
        let (report, _) = Fake::report(fault);
        assert!(!report.passed);
        assert_eq!(report.stage, stage, "{reason}");
        assert!(report.reason.starts_with(reason), "{} / {reason}", report.reason);
        assert!(report.times.is_empty());
    }
}

#[test]
fn a_family_that_is_not_served_is_refused() {
    let identity = Identity {
        name: "fake".into(),
        version: "1".into(),
        source_digest: "00".into(),
    };
    let fake = Arc::new(Fake {
        identity,
        fault: Fault::None,
        checks: AtomicUsize::new(0),
    });
    let report = probe(fake, KernelFamily::Mlp, &ProbePlan::default());
    assert!(!report.passed && report.reason.contains("does not serve mlp"));
}
