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

/// One answer. Every number is finite and unrounded, also where the family's own server rounds: then its numbers agree with
/// each other. `confidence` is the same measure in every family, so that a threshold means the same everywhere.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To a choice question.
    Choice {
        /// Name of the most likely option, the first of equals in request order.
        choice: String,
        /// In `[0, 1]`, as TypeSafe defines it: [`choice_confidence`].
        confidence: f64,
        /// The family's own measure of confidence, if it has another one.
        own_confidence: Option<f64>,
        /// `(option name, probability)` in request order; they sum to 1.
        probabilities: Vec<(String, f64)>,
    },
    /// To a score question.
    Score {
        /// Expected level `sum of i p_i`, in `[0, levels - 1]`.
        score: f64,
        /// In `[0, 1]`, as TypeSafe defines it: [`score_confidence`].
        confidence: f64,
        /// The family's own measure of confidence, if it has another one.
        own_confidence: Option<f64>,
        /// By level, lowest first; they sum to 1.
        probabilities: Vec<f64>,
        /// By level: the probability that it fits, judged alone. Only of families that ask about each level; these do not
        /// sum to 1.
        level_fit: Option<Vec<f64>>,
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
                    own_confidence: None,
                    probabilities,
                }
            }
            Criteria::Score(levels) => Answer::Score {
                score: expected_level(&p),
                confidence: score_confidence(&p),
                own_confidence: None,
                probabilities: p,
                level_fit: None,
                legend: levels.clone(),
            },
            Criteria::Noul { .. } => Answer::Noul {
                noul: p.get(side_true).copied().unwrap_or_default(),
            },
        }
    }

    /// What every family gives, and nothing that only some do.
    pub fn plain(mut self) -> Self {
        if let Answer::Choice { own_confidence, .. } | Answer::Score { own_confidence, .. } = &mut self {
            *own_confidence = None;
        }
        if let Answer::Score { level_fit, .. } = &mut self {
            *level_fit = None;
        }
        self
    }

    /// The same, with the family's own measure of confidence. A noul has none.
    pub fn with_own_confidence(mut self, measure: impl Fn(&[f64]) -> f64) -> Self {
        match &mut self {
            Answer::Choice {
                own_confidence,
                probabilities,
                ..
            } => {
                let p: Vec<f64> = probabilities.iter().map(|(_, p)| *p).collect();
                *own_confidence = Some(measure(&p));
            }
            Answer::Score {
                own_confidence,
                probabilities,
                ..
            } => *own_confidence = Some(measure(probabilities)),
            Answer::Noul { .. } => {}
        }
        self
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
