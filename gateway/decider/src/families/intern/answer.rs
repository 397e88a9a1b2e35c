//! Probabilities -> answers: confidence as TypeSafe defines it, nothing rounded.

use crate::{Answer, Criteria};

/// The answer, given the probability of each option. For a noul `p` is `[no, yes]`.
pub fn answer(criteria: &Criteria, p: Vec<f64>) -> Answer {
    let mut answer = Answer::unrounded(criteria, p, 1);
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
