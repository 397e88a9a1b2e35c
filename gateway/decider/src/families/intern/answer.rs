//! Probabilities -> answers. The family's own measure of confidence is the largest probability.

use crate::{Answer, Criteria};

/// The answer, given the probability of each option. For a noul `p` is `[no, yes]`.
pub fn answer(criteria: &Criteria, p: Vec<f64>) -> Answer {
    let top = |p: &[f64]| p.iter().copied().fold(0.0, f64::max);
    let mut answer = Answer::unrounded(criteria, p, 1).with_own_confidence(top);
    if let Answer::Choice {
        choice,
        probabilities,
        ..
    } = &mut answer
    {
        // Of equals the smallest name, as the publisher's program has it.
        let best = probabilities
            .iter()
            .max_by(|a, b| a.1.total_cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
        *choice = best.map(|(name, _)| name.clone()).unwrap_or_default();
    }
    answer
}
