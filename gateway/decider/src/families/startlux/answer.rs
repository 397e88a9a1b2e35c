//! Probabilities -> answers: confidence as TypeSafe defines it, nothing rounded.

use crate::probability::{argmax, choice_confidence, expected_level, score_confidence};
use crate::{Answer, Content, Criteria};

/// The answer to a question with these criteria, given the probability of each option. For a noul `p` is `[true, false]`.
pub fn answer(criteria: &Criteria, p: Vec<f64>) -> Answer {
    match criteria {
        Criteria::Choice(options) => {
            let confidence = choice_confidence(&p);
            let choice = options
                .get(argmax(&p))
                .map(|option| option.name.clone())
                .unwrap_or_default();
            let probabilities = options.iter().map(|option| option.name.clone()).zip(p).collect();
            Answer::Choice {
                choice,
                confidence,
                probabilities,
            }
        }
        Criteria::Score(levels) => Answer::Score {
            score: expected_level(&p),
            confidence: score_confidence(&p),
            probabilities: p,
            legend: levels.iter().map(Content::clone).collect(),
        },
        Criteria::Noul { .. } => Answer::Noul {
            noul: p.first().copied().unwrap_or_default(),
        },
    }
}
