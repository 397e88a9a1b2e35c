//! PPLX-decider, v1 and v1.1: one prompt per question, options with codes of one or two letters, a readout matrix with a row for
//! each code on the last hidden row. v1.1 is v1 with full attention that sees the whole prompt.
//!
//! * [`config`]: what the family needs to know of a model.
//! * [`prompt`] turns questions into text.

pub mod config;
pub mod prompt;

use std::sync::Arc;

use serde_json::{Map, Value};

use self::config::{AttentionMode, Config};
use self::prompt::{Record, prompt, state_text};
use crate::families::each::{Asked, EachQuestion, Reading};
use crate::families::encoded::Encoded;
use crate::families::keys::fault;
use crate::systemone::Rules;
use crate::{
    Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError, Limits,
    Projection, RequestError, Shown, Violation,
};

/// Id of v1.
pub const V1: &str = "pplx_v1";
/// Id of v1.1.
pub const V1_1: &str = "pplx_v1_1";

/// Tokens of the chat format. A tokenizer without them would spell them out, and every answer would silently be wrong.
const SPECIAL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct Pplx {
    config: Arc<Config>,
}

const fn mode(id: &str) -> AttentionMode {
    // Both ids are constants of this module, of different lengths.
    if id.len() == V1.len() {
        AttentionMode::Causal
    } else {
        AttentionMode::NoncausalFullAttention
    }
}

impl Pplx {
    /// `id` is [`V1`] or [`V1_1`], and the configuration must be of the same.
    pub fn new(id: &str, config: &Value) -> Result<Self, FamilyError> {
        let config = Config::from_json(config)?;
        if config.attention_mode != mode(id) {
            return Err(fault("attention_mode", format!("is not the one of {id}")));
        }
        Ok(Pplx {
            config: Arc::new(config),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub fn without_model(id: &str) -> Self {
        Pplx {
            config: Arc::new(Config::without_model(mode(id))),
        }
    }

    /// Validates a request and encodes its prompts.
    fn encode(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<(Record, Encoded)>, DeciderError> {
        let limits = Limits {
            max_options: self.config.codes.len().min(Limits::default().max_options),
            ..Limits::default()
        };
        limits.check(request)?;
        let state = state_text(request).map_err(RequestError::unanswerable)?;
        let cx = FamilyContext {
            max_tokens: cx.max_tokens.min(self.config.max_length),
            ..cx.clone()
        };
        let mut encoded = Vec::with_capacity(request.questions.len());
        for (index, question) in request.questions.iter().enumerate() {
            let record = Record::new(question);
            // A model with few codes may not have one for each level.
            if record.options.len() > self.config.codes.len() {
                let message = format!("the model has {} codes", self.config.codes.len());
                let violation = Violation::in_question(index, &["criteria".into()], "OPTION_COUNT", message);
                return Err(RequestError::unanswerable(violation).into());
            }
            let render = |state: &str| prompt(state, &record, &self.config.codes);
            let ids = Encoded::new(index, &state, request.truncate_state, &cx, &render)?;
            encoded.push((record, ids));
        }
        Ok(encoded)
    }
}

impl Family for Pplx {
    fn id(&self) -> &'static str {
        match self.config.attention_mode {
            AttentionMode::Causal => V1,
            AttentionMode::NoncausalFullAttention => V1_1,
        }
    }

    /// Special tokens and codes are one token each, the codes those that the configuration names.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        for special in SPECIAL {
            cx.one_token(special, special)?;
        }
        for (code, id) in self.config.codes.iter().zip(&self.config.token_ids) {
            let found = cx.one_token(code, &format!("code {code}"))?;
            if found != *id {
                let reason = format!("code {code} is token {found}, not {id} as token_ids says");
                return Err(FamilyError::Tokenizer { reason });
            }
        }
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            only_noul_sides: true,
            ..Rules::default()
        }
    }

    fn shows(&self) -> Shown {
        Shown::Questions
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        let encoded = self.encode(request, cx)?;
        let asked = request
            .questions
            .iter()
            .zip(encoded)
            .map(|(question, (record, encoded))| Asked {
                question: question.clone(),
                token_ids: encoded.ids,
                truncated: encoded.truncated,
                projection: Projection::DecisionHead((0u32..).take(record.options.len()).collect()),
            });
        let reading = Reading {
            temperature: self.config.temperature,
            side_true: 1,
            noncausal_full_attention: self.config.attention_mode == AttentionMode::NoncausalFullAttention,
            own_confidence: None,
        };
        Ok(Box::new(EachQuestion::new(asked.collect(), reading)))
    }

    /// One sequence per question. `spans` holds `codes` (`{"A": text of the option, ...}`), and `truncated_tokens` if the state was
    /// cut.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let explained = self.encode(request, cx)?.into_iter().zip(&request.questions);
        let explained = explained.map(|((record, encoded), question)| {
            let codes = self.config.codes.iter().cloned();
            let codes: Map<String, Value> = codes.zip(record.options.into_iter().map(Value::from)).collect();
            let spans = Map::from_iter([("codes".to_owned(), codes.into())]);
            encoded.explain(&question.id, None, spans)
        });
        Ok(explained.collect())
    }
}
