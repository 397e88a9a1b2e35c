//! Cua-S1 4B 0.2, text adapter: the next action on a screen. One prompt per choice question, lettered options, the answer
//! read from the letters' logits at the last position, without a temperature.
//!
//! Where it differs from the publisher's own program: the adapter is merged into the weights, and the logits are f32, where
//! there they are rounded to BF16 before an f32 softmax; `confidence` is TypeSafe's as in every family, and the family's own,
//! which is by entropy, stands beside it; more than 64 questions are 422 and not 413.

pub mod prompt;

mod config;
mod decider;

use serde_json::{Map, Value};

use self::decider::Questions;
use crate::systemone::Rules;
use crate::{
    Answer, Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError,
    JsonLimits, Limits, Served, Shown,
};

/// Its id.
pub const ID: &str = "cua_s1";

/// Most tokens of a prompt, whatever the model allows.
pub const MAX_TOKENS: usize = 16_384;

/// The name under which the family's own server answers.
const MODEL: &str = "cua-ai/cua-s1-4b-0.2@16818868b0cc7813808aae4e87b417657046ab79:text";

/// Tokens of the chat format. A tokenizer without them would spell them out, and every answer would silently be wrong.
const SPECIAL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<think>"];

/// Limits on the shape of a request.
pub fn limits() -> Limits {
    Limits {
        max_options: prompt::LETTERS.len(),
        ..Limits::default()
    }
}

/// No prompt is longer than the family allows, nor than the model takes.
fn bounded(cx: &FamilyContext) -> FamilyContext {
    FamilyContext {
        max_tokens: cx.max_tokens.min(MAX_TOKENS),
        ..cx.clone()
    }
}

/// The family. One model differs from another in its weights only.
#[derive(Clone, Copy, Debug, Default)]
pub struct CuaS1;

impl CuaS1 {
    /// From the content of the adapter's `adapter_config.json`.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        config::check(config)?;
        Ok(CuaS1)
    }
}

impl Family for CuaS1 {
    fn id(&self) -> &'static str {
        ID
    }

    fn shows(&self) -> Shown {
        Shown::Questions
    }

    /// Each letter and each special token is one token, and no two letters share one.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        for special in SPECIAL {
            cx.one_token(special, special)?;
        }
        let mut seen = Vec::new();
        for letter in prompt::LETTERS.chars() {
            let id = cx.one_token(letter.encode_utf8(&mut [0; 4]), &format!("letter {letter}"))?;
            if seen.contains(&id) {
                let reason = format!("letter {letter} shares its token with another");
                return Err(FamilyError::Tokenizer { reason });
            }
            seen.push(id);
        }
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            limits: limits(),
            json: JsonLimits::STRICT,
            // Criteria are an object.
            listed_options: Rules::NO_LISTS,
            ..Rules::default()
        }
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(decider::start(request, cx)?))
    }

    /// One sequence per question. `spans` holds `letters` (`{"A": option, ...}`); `truncated_tokens` if the state was cut.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let questions = Questions::new(request)?;
        let mut explained = Vec::new();
        for (index, (question, record)) in questions.questions.iter().enumerate() {
            let encoded = questions.encode(index, record, cx)?;
            let mut spans = Map::new();
            if let crate::Criteria::Choice(options) = &question.criteria {
                let letters = prompt::LETTERS.chars().zip(options);
                let letters =
                    letters.map(|(letter, option)| (letter.to_string(), option.name.clone().into()));
                spans.insert("letters".into(), letters.collect::<Map<String, Value>>().into());
            }
            explained.push(encoded.explain(&question.id, None, spans));
        }
        Ok(explained)
    }

    /// The contract under the adapter's name, with confidence by entropy.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let mut body = served.contract();
        body["model"] = MODEL.into();
        for (id, answer) in &served.answers.answers {
            if let Answer::Choice {
                own_confidence: Some(own),
                ..
            } = answer
            {
                body["answers"][id.as_str()]["confidence"] = (*own).into();
            }
        }
        body
    }
}
