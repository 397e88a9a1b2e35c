//! Logits -> answers: softmax over all candidates of a question, confidence as TypeSafe defines it, nothing rounded.

use crate::probability::softmax;
use crate::{Answer, Criteria};

/// The answer to a question with these criteria, given the logit of each candidate. A noul has one, that of true; false
/// has logit 0.
pub fn answer(criteria: &Criteria, logits: &[f32], temperature: f64) -> Answer {
    let p = match criteria {
        Criteria::Noul { .. } => softmax(&[0.0, logits.first().copied().unwrap_or_default()], temperature),
        Criteria::Choice(_) | Criteria::Score(_) => softmax(logits, temperature),
    };
    Answer::unrounded(criteria, p, 1)
}
