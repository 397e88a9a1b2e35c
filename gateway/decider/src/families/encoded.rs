//! A prompt with one state in it, in tokens that fit the model.

use serde_json::{Map, Value, json};

use super::truncate::truncate;
use crate::{DeciderError, ExplainedSequence, FamilyContext, RequestError, Violation};

/// A prompt in both forms.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// Tokens that it would have had beyond these.
    pub(super) truncated: u64,
}

impl Encoded {
    /// Renders and encodes a prompt of question number `question`. Too long is an error that names both numbers, unless
    /// the state may be cut to fit.
    pub(super) fn new(
        question: usize,
        state: &str,
        truncate_state: bool,
        cx: &FamilyContext,
        render: &dyn Fn(&str) -> String,
    ) -> Result<Self, DeciderError> {
        let text = render(state);
        let ids = cx.tokenizer.encode(&text)?;
        let (count, max) = (ids.len(), cx.max_tokens);
        if count <= max {
            return Ok(Encoded {
                text,
                ids,
                truncated: 0,
            });
        }
        if truncate_state && let Some((text, ids)) = truncate(state, count, cx, render)? {
            let truncated = count.saturating_sub(ids.len()) as u64;
            return Ok(Encoded { text, ids, truncated });
        }
        let message = too_long(count, max);
        let violation = Violation::in_question(question, &[], "PROMPT_TOO_LONG", message);
        Err(RequestError::unanswerable(violation).into())
    }

    /// For people, read at its last token. `truncated_tokens` joins the spans if the state was cut.
    pub(super) fn explain(
        self,
        question: &str,
        option: Option<String>,
        mut spans: Map<String, Value>,
    ) -> ExplainedSequence {
        if self.truncated > 0 {
            spans.insert("truncated_tokens".into(), json!(self.truncated));
        }
        ExplainedSequence {
            question: question.to_owned(),
            option,
            text: self.text,
            read: vec![self.ids.len().saturating_sub(1)],
            ids: self.ids,
            spans,
        }
    }
}

/// What is told of a prompt of more tokens than allowed.
pub(super) fn too_long(count: usize, max: usize) -> String {
    format!("the prompt has {count} tokens, the limit is {max}")
}
