//! Intern-Decision, 0.8B to 4B: all questions of a request in one prompt that ends with a JSON skeleton; each answer is
//! read from the logits of the option symbols at the token before the question's marker.
//!
//! Where it differs from the publisher's own program: `confidence` is TypeSafe's, as in every family, and the family's own, the
//! largest probability, stands beside it; no output token is counted, because none is generated; levels with other keys than
//! 0, 1, 2, … are refused, because they would be other labels in the prompt.
//! As there, and unlike the other families, equal probabilities go to the smallest option name, by code points.

pub mod answer;
pub mod config;
pub mod decider;
pub mod prompt;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::config::Config;
use self::decider::{Encoded, InternDecider};
use crate::systemone::{LevelKeys, Rules};
use crate::{
    Answer, Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError,
    Limits, Served,
};

/// Its id.
pub const ID: &str = "intern";

/// Most tokens of a prompt, whatever the model allows.
pub const MAX_TOKENS: usize = 8192;

/// Limits on the shape of a request.
pub fn limits() -> Limits {
    Limits {
        max_questions: 16,
        max_options: prompt::SYMBOLS.len(),
        min_levels: 1,
        max_levels: prompt::SYMBOLS.len(),
        ..Limits::default()
    }
}

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct Intern {
    config: Arc<Config>,
}

impl Intern {
    /// From the model's decision config.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        Ok(Intern {
            config: Arc::new(Config::from_json(config)?),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub fn without_model() -> Self {
        Intern {
            config: Arc::new(Config::default()),
        }
    }
}

impl Family for Intern {
    fn id(&self) -> &'static str {
        ID
    }

    fn joint(&self) -> bool {
        true
    }

    /// The marker and each symbol are one token, all different.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        let mut seen = vec![cx.one_token(prompt::MARKER, prompt::MARKER)?];
        for symbol in prompt::SYMBOLS {
            let id = cx.one_token(symbol, symbol)?;
            if seen.contains(&id) {
                let reason = format!("symbol {symbol} shares its token with another");
                return Err(FamilyError::Tokenizer { reason });
            }
            seen.push(id);
        }
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            limits: limits(),
            listed_options: Rules::NO_LISTS,
            level_keys: LevelKeys::Counted,
            noul_words: true,
            ..Rules::default()
        }
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(InternDecider::new(&self.config, request, cx)?))
    }

    /// One sequence, which belongs to no single question: `question` is empty. `spans.fields` lists, question by
    /// question, `question`, `read` (a position) and `symbols` (`{"A": option, ...}`).
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let Encoded { text, ids, read } = decider::encode(request, cx)?;
        let fields: Vec<Value> = request
            .questions
            .iter()
            .zip(&read)
            .map(|(question, read)| {
                let symbols: Map<String, Value> = prompt::SYMBOLS
                    .iter()
                    .zip(prompt::options(question))
                    .map(|(symbol, (value, _))| ((*symbol).to_owned(), value.into()))
                    .collect();
                json!({"question": question.id, "read": read, "symbols": symbols})
            })
            .collect();
        let mut spans = Map::new();
        spans.insert("fields".into(), fields.into());
        Ok(vec![ExplainedSequence {
            question: String::new(),
            option: None,
            text,
            ids,
            read: read.into_iter().map(|at| at as usize).collect(),
            spans,
        }])
    }

    /// The contract with the family's own confidence and the probabilities of every answer, a description for each level, as
    /// many output tokens as there are questions, and `calibration`.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let mut body = served.contract();
        let questions = &served.request.questions;
        for (question, (id, answer)) in questions.iter().zip(&served.answers.answers) {
            let own = &mut body["answers"][id.as_str()];
            match answer {
                Answer::Choice { own_confidence, .. } => own["confidence"] = json!(own_confidence),
                Answer::Score { own_confidence, .. } => {
                    own["confidence"] = json!(own_confidence);
                    let legend = prompt::options(question).into_iter();
                    own["legend"] = legend
                        .map(|(level, text)| (level, text.into()))
                        .collect::<Map<_, Value>>()
                        .into();
                }
                Answer::Noul { noul } => {
                    own["probabilities"] = json!({"no": 1.0 - noul, "yes": noul});
                    own["confidence"] = json!(noul.max(1.0 - noul));
                }
            }
        }
        body["usage"]["output_tokens"] = questions.len().into();
        body["calibration"] =
            json!({"method": "temperature-scaling", "temperature": self.config.temperature});
        body
    }
}
