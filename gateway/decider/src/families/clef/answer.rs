//! Logits -> answers, and the answers as the family's own server rounds them.

use super::prompt;
use crate::probability::{round_decimal, softmax};
use crate::{Answer, Criteria};

/// Decimals of the family's own server.
const DECIMALS: usize = 4;

/// The answer to a question, given the logits of its options in the order of the prompt. There is no temperature. The
/// family's own measure of confidence is the largest probability.
pub fn answer(criteria: &Criteria, logits: &[f32]) -> Answer {
    let mut p = vec![0.0; logits.len()];
    for (listed, probability) in prompt::options(criteria).iter().zip(softmax(logits, 1.0)) {
        if let Some(p) = p.get_mut(listed.index) {
            *p = probability;
        }
    }
    let top = |p: &[f64]| p.iter().copied().fold(0.0, f64::max);
    Answer::unrounded(criteria, p, 0).with_own_confidence(top)
}

/// The same with four decimals everywhere, and the family's own confidence as the only one.
pub fn rounded(answer: &Answer) -> Answer {
    let round = |x: f64| round_decimal(x, DECIMALS);
    let mut answer = answer.clone();
    match &mut answer {
        Answer::Choice {
            confidence,
            own_confidence,
            probabilities,
            ..
        } => {
            *confidence = round(own_confidence.unwrap_or(*confidence));
            probabilities.iter_mut().for_each(|(_, p)| *p = round(*p));
        }
        Answer::Score {
            score,
            confidence,
            own_confidence,
            probabilities,
            ..
        } => {
            *score = round(*score);
            *confidence = round(own_confidence.unwrap_or(*confidence));
            probabilities.iter_mut().for_each(|p| *p = round(*p));
        }
        Answer::Noul { noul } => *noul = round(*noul),
    }
    answer.plain()
}
