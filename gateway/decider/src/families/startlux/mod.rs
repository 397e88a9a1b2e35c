//! StartLux-Decision, 0.8B to 27B: one prompt per question, lettered options, the answer read from the letters' logits
//! at the last position.
//!
//! * [`config`] reads `decision_config.json`.
//! * [`prompt`] turns questions into text, render version 3.
//! * [`decider`] runs rounds of passes.
//! * [`tournament`] splits choices of more than 26 options.

pub mod config;
pub mod decider;
pub mod prompt;
pub mod tournament;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::config::Config;
use self::decider::{Questions, StartLuxDecider};
use crate::systemone::Rules;
use crate::{
    Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError, Served,
    Shown,
};

/// Its id.
pub const ID: &str = "startlux";

/// Most options of one prompt: the letters A to Z.
pub const MAX_LETTERS: usize = 26;

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct StartLux {
    config: Arc<Config>,
}

impl StartLux {
    /// From the model's decision config.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        Ok(StartLux {
            config: Arc::new(Config::from_json(config)?),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub fn without_model() -> Self {
        StartLux {
            config: Arc::new(Config::default()),
        }
    }
}

impl Family for StartLux {
    fn id(&self) -> &'static str {
        ID
    }

    /// Each letter is one token, the one that the config names, and does not merge with the end of a prompt.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        let probe = prompt::probe();
        let prefix = cx.encode_at_load(&probe)?;
        for (letter, id) in prompt::LETTERS.chars().zip(self.config.letter_token_ids) {
            let fail = |what| {
                Err(FamilyError::Tokenizer {
                    reason: format!("letter {letter} {what}"),
                })
            };
            let alone = cx.one_token(letter.encode_utf8(&mut [0; 4]), &format!("letter {letter}"))?;
            if alone != id {
                return fail(format!("is not token {id}, as letter_token_ids says"));
            }
            let appended = cx.encode_at_load(&format!("{probe}{letter}"))?;
            if appended.strip_prefix(prefix.as_slice()) != Some(&[id]) {
                return fail("merges with the end of the prompt".to_owned());
            }
        }
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        // A list of more names never takes part in a tournament, and a list of one is not an answered question.
        Rules {
            listed_options: 2..=MAX_LETTERS,
            ..Rules::default()
        }
    }

    fn shows(&self) -> Shown {
        Shown::Questions
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(StartLuxDecider::new(
            self.config.clone(),
            request,
            cx.clone(),
        )?))
    }

    /// One sequence per question; per group of the first round for a choice of more than 26 options; none for a choice
    /// of one. `spans` holds `letters` (`{"A": option, ...}`, noul as `true` and `false`, score as level numbers), and
    /// for a group `group` and `groups`, its number from 0 and their count; `truncated_tokens` if the state was cut.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let questions = Questions::new(&self.config, request)?;
        let mut explained = Vec::new();
        for pass in questions.next_round() {
            let encoded = questions.encode(&pass, cx)?;
            let record = questions.record(&pass);
            let letters: Map<String, Value> = prompt::LETTERS
                .chars()
                .zip(&pass.options)
                .map(|(letter, option)| (letter.to_string(), record.options[*option].id.clone().into()))
                .collect();
            let mut spans = Map::new();
            spans.insert("letters".into(), letters.into());
            if pass.groups > 1 {
                spans.insert("group".into(), json!(pass.group));
                spans.insert("groups".into(), json!(pass.groups));
            }
            explained.push(encoded.explain(questions.id(&pass), None, spans));
        }
        Ok(explained)
    }

    /// The contract, and `latency_ms`.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let mut body = served.contract();
        body["latency_ms"] = json!(served.latency.as_secs_f64() * 1e3);
        body
    }
}
