//! Probabilities -> answers: confidence as TypeSafe defines it, nothing rounded.

use crate::probability::{choice_confidence, expected_level, score_confidence};
use crate::{Answer, Criteria};

/// The answer, given the probability of each option. For a noul `p` is `[no, yes]`.
pub fn answer(criteria: &Criteria, p: Vec<f64>) -> Answer {
    match criteria {
        Criteria::Choice(options) => {
            let confidence = choice_confidence(&p);
            let probabilities: Vec<(String, f64)> =
                options.iter().map(|option| option.name.clone()).zip(p).collect();
            // Of equals the smallest name, as the publisher's program has it.
            let best = probabilities
                .iter()
                .max_by(|a, b| a.1.total_cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
            Answer::Choice {
                choice: best.map(|(name, _)| name.clone()).unwrap_or_default(),
                confidence,
                probabilities,
            }
        }
        Criteria::Score(levels) => Answer::Score {
            score: expected_level(&p),
            confidence: score_confidence(&p),
            probabilities: p,
            legend: levels.clone(),
        },
        Criteria::Noul { .. } => Answer::Noul {
            noul: p.get(1).copied().unwrap_or_default(),
        },
    }
}
