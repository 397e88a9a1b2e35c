//! Clef (27B) and clef-flash (9B): all questions of a request in one prompt, decided together by a joint head that reads
//! every row of it.
//!
//! The prompt is made of fragments that are tokenised alone, because the head reads spans of tokens: what each question
//! asks, and each option. Options of a choice are sorted by name in the prompt; answers are in request order. There is no
//! temperature.
//!
//! Where it differs from the publisher's own program: a state is cut only where the request allows it, and what was cut is
//! counted; confidence is TypeSafe's, as in every family, and nothing is rounded. [`Family::own_response`] gives the
//! publisher's rounding and measure.

pub mod answer;
pub mod config;
pub mod prompt;

mod decider;
mod encode;

use serde_json::{Map, Value, json};

use self::decider::ClefDecider;
use self::encode::{Encoded, encode};
use crate::systemone::{Rules, render_response};
use crate::{
    Answers, Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError,
    Limits, Served,
};

/// Its id.
pub const ID: &str = "clef";

/// Tokens that the prompt is built around.
const SPECIAL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// Limits on the shape of a request.
pub fn limits() -> Limits {
    Limits {
        min_levels: 1,
        ..Limits::default()
    }
}

/// The family, for any model of it.
#[derive(Clone, Copy, Debug)]
pub struct Clef;

impl Clef {
    /// From the model's head configuration.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        config::check(config)?;
        Ok(Clef)
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub const fn without_model() -> Self {
        Clef
    }
}

impl Family for Clef {
    fn id(&self) -> &'static str {
        ID
    }

    fn joint(&self) -> bool {
        true
    }

    /// Each special token of the prompt is one token.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        SPECIAL
            .iter()
            .try_for_each(|token| cx.one_token(token, token).map(drop))
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            limits: limits(),
            ..Rules::default()
        }
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(ClefDecider::new(request, cx)?))
    }

    /// One sequence, which belongs to no single question: `question` is empty, and every position is read. `spans.fields`
    /// lists, question by question, `question`, `type` (a row of the head's type embedding), `span` and `options`, each of
    /// them `option` and `span`, in the order of the prompt. The text holds all of the state, even where the tokens
    /// do not; then `spans.truncated_tokens` says how many are missing.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let Encoded {
            text,
            ids,
            questions,
            truncated,
        } = encode(request, cx)?;
        let span = |range: &std::ops::Range<u32>| json!([range.start, range.end]);
        let fields: Vec<Value> = request
            .questions
            .iter()
            .zip(&questions)
            .map(|(question, joint)| {
                let options: Vec<Value> = prompt::options(&question.criteria)
                    .into_iter()
                    .zip(&joint.options)
                    .map(|(listed, tokens)| json!({"option": listed.id, "span": span(tokens)}))
                    .collect();
                json!({
                    "question": question.id,
                    "type": joint.kind,
                    "span": span(&joint.span),
                    "options": options,
                })
            })
            .collect();
        let mut spans = Map::new();
        spans.insert("fields".into(), fields.into());
        if truncated > 0 {
            spans.insert("truncated_tokens".into(), truncated.into());
        }
        Ok(vec![ExplainedSequence {
            question: String::new(),
            option: None,
            text,
            read: (0..ids.len()).collect(),
            ids,
            spans,
        }])
    }

    /// Four decimals, the largest probability as confidence, and the model's name as the request gave it.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let answers = Answers {
            answers: served
                .answers
                .answers
                .iter()
                .map(|(id, answer)| (id.clone(), answer::rounded(answer)))
                .collect(),
            usage: served.answers.usage,
        };
        let model = served.asked_model.unwrap_or(served.model);
        render_response(model, &answers, Map::new())
    }
}
