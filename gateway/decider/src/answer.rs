//! What a decider answers.

use crate::probability::{argmax, choice_confidence, expected_level, score_confidence};
use crate::{Content, Criteria};

/// All answers to one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// `(question id, answer)`, in the order of the questions.
    pub answers: Vec<(String, Answer)>,
    /// Tokens over all sequences of all steps.
    pub usage: Usage,
}

/// One answer. Every number is finite and unrounded, unless the family rounds.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To a choice question.
    Choice {
        /// Name of the most likely option, the first of equals in request order.
        choice: String,
        /// In `[0, 1]`; the definition is the family's.
        confidence: f64,
        /// `(option name, probability)` in request order; they sum to 1.
        probabilities: Vec<(String, f64)>,
    },
    /// To a score question.
    Score {
        /// Expected level `sum of i p_i`, in `[0, levels - 1]`.
        score: f64,
        /// In `[0, 1]`; the definition is the family's.
        confidence: f64,
        /// By level, lowest first; they sum to 1.
        probabilities: Vec<f64>,
        /// The levels as they stood in the request, in level order.
        legend: Vec<Content>,
    },
    /// To a yes/no question.
    Noul {
        /// Probability of true, in `[0, 1]`.
        noul: f64,
    },
}

impl Answer {
    /// The answer to a question with these criteria, given the probability of each option or level, or of the two sides of
    /// a noul, of which `side_true` is true. Confidence as TypeSafe defines it; of equals the first; nothing rounded.
    pub fn unrounded(criteria: &Criteria, p: Vec<f64>, side_true: usize) -> Self {
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
                legend: levels.clone(),
            },
            Criteria::Noul { .. } => Answer::Noul {
                noul: p.get(side_true).copied().unwrap_or_default(),
            },
        }
    }
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompts, unpadded.
    pub input_tokens: u64,
    /// Tokens that were generated: 0 in every family that reads answers from the prompt.
    pub output_tokens: u64,
    /// Tokens that the prompts would have had beyond those, had the state not been cut; see
    /// [`DecisionRequest::truncate_state`](crate::DecisionRequest::truncate_state).
    pub truncated_tokens: u64,
}
