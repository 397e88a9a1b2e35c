//! Logits -> answers: softmax over all candidates of a question, confidence as TypeSafe defines it, nothing rounded.

use crate::families::startlux;
use crate::probability::softmax;
use crate::{Answer, Criteria};

/// The answer to a question with these criteria, given the logit of each candidate. A noul has one, that of true; false
/// has logit 0.
pub fn answer(criteria: &Criteria, logits: &[f32], temperature: f64) -> Answer {
    if let Criteria::Noul { .. } = criteria {
        let logit = logits.first().copied().unwrap_or_default();
        let p = softmax(&[0.0, logit], temperature);
        return Answer::Noul {
            noul: p.get(1).copied().unwrap_or_default(),
        };
    }
    // The same definitions, given probabilities.
    startlux::answer::answer(criteria, softmax(logits, temperature))
}
