//! Keep a change only if it is measurably faster and answers as before.

use serde::Serialize;

use crate::Evidence;

/// What becomes of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether to keep it.
    pub keep: bool,
    /// Why; never empty.
    pub reasons: Vec<String>,
    /// Candidate p50 divided by baseline p50, round trip.
    pub p50_ratio: Option<f64>,
    /// Candidate p95 divided by baseline p95, round trip.
    pub p95_ratio: Option<f64>,
    /// Tasks in which at least one decision differs.
    pub changed_decisions: usize,
}

/// Largest share of tasks whose decisions may differ: numerics move a few close calls, quality must not.
const MAX_CHANGED: f64 = 0.01;

/// Judges a change. It is rejected when there is no sample, a pass failed, the tasks or the devices differ, more
/// than 1 % of the tasks are decided otherwise, or p50 or p95 is not lower.
pub fn gate(baseline: &Evidence, candidate: &Evidence) -> Verdict {
    let mut reasons = Vec::new();
    let changed = baseline
        .tasks
        .iter()
        .zip(&candidate.tasks)
        .filter(|(a, b)| a.decisions != b.decisions)
        .count();
    let (old, new) = (baseline.round_trip(), candidate.round_trip());
    for (name, evidence) in [("baseline", baseline), ("candidate", candidate)] {
        if evidence.round_trip().is_none() {
            reasons.push(format!("{name} has no sample"));
        }
        if evidence.failures() > 0 {
            reasons.push(format!("{name} has {} failed passes", evidence.failures()));
        }
        if evidence.warm_ups < 5 {
            reasons.push(format!(
                "{name} had {} warm-ups, at least 5 are needed",
                evidence.warm_ups
            ));
        }
    }
    let same_tasks = baseline.tasks.len() == candidate.tasks.len()
        && baseline
            .tasks
            .iter()
            .zip(&candidate.tasks)
            .all(|(a, b)| a.input_tokens == b.input_tokens);
    if !same_tasks {
        reasons.push("the two runs did not have the same tasks".to_owned());
    }
    if baseline.devices != candidate.devices {
        reasons.push("the two runs were on different devices".to_owned());
    }
    if changed as f64 > MAX_CHANGED * baseline.tasks.len() as f64 {
        reasons.push(format!(
            "{changed} of {} tasks are decided otherwise",
            baseline.tasks.len()
        ));
    }
    let ratio = |pick: fn(&crate::Percentiles) -> f64| Some(pick(new.as_ref()?) / pick(old.as_ref()?));
    let (p50_ratio, p95_ratio) = (ratio(|p| p.p50), ratio(|p| p.p95));
    for (name, ratio) in [("p50", p50_ratio), ("p95", p95_ratio)] {
        match ratio {
            Some(r) if r < 1.0 => {}
            Some(r) => reasons.push(format!("{name} is {r:.3} times the baseline, not lower")),
            None => {}
        }
    }
    let keep = reasons.is_empty();
    if keep {
        reasons.push("p50 and p95 are lower and the decisions stand".to_owned());
    }
    Verdict {
        keep,
        reasons,
        p50_ratio,
        p95_ratio,
        changed_decisions: changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskRecord;

    fn evidence(ms: &[f64]) -> Evidence {
        Evidence {
            format: 1,
            model: "m".into(),
            capability_fingerprint: "f".into(),
            devices: vec!["d".into()],
            warm_ups: 5,
            passes: 1,
            tasks: ms
                .iter()
                .enumerate()
                .map(|(task, ms)| TaskRecord {
                    task,
                    input_tokens: 100,
                    round_trip_ms: vec![*ms],
                    forward_ms: vec![*ms],
                    tokenize_ms: vec![],
                    policy_ms: vec![],
                    queue_ms: vec![],
                    gateway_ms: vec![],
                    decisions: vec!["a".into()],
                    failures: vec![],
                })
                .collect(),
        }
    }

    #[test]
    fn keeps_a_faster_run_and_nothing_else() {
        let base = evidence(&[10.0, 11.0, 30.0]);
        assert!(gate(&base, &evidence(&[9.0, 10.0, 20.0])).keep);
        assert!(!gate(&base, &base).keep, "no gain is no reason");
        assert!(!gate(&base, &evidence(&[9.0, 10.0, 31.0])).keep, "p95 got worse");
        assert!(!gate(&base, &evidence(&[])).keep, "no sample");
        let mut other = evidence(&[9.0, 10.0, 20.0]);
        other.tasks[0].decisions = vec!["b".into()];
        assert!(!gate(&base, &other).keep, "quality");
        let mut other = evidence(&[9.0, 10.0, 20.0]);
        other.tasks[0].failures.push("UNAVAILABLE".into());
        assert!(!gate(&base, &other).keep, "a failed pass");
        let mut other = evidence(&[9.0, 10.0, 20.0]);
        other.devices = vec!["another".into()];
        assert!(!gate(&base, &other).keep, "another device");
        let mut other = evidence(&[9.0, 10.0, 20.0]);
        other.warm_ups = 0;
        assert!(!gate(&base, &other).keep, "cold");
    }
}
