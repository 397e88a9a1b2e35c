//! The far side of the marks: text is encoded without them, and nothing that is given back has any.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    Answer, Content, Decider, DeciderError, ExplainedSequence, SequenceOutput, Step, TokenizeError, Tokenizer,
};

/// Encodes what lies between marks piece by piece: no token goes across one, and the mark itself is not encoded.
pub(super) struct LiteralTokenizer {
    pub(super) inner: Arc<dyn Tokenizer>,
    pub(super) mark: char,
}

impl Tokenizer for LiteralTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut pieces = text.split(self.mark);
        let mut ids = self.inner.encode(pieces.next().unwrap_or_default())?;
        for piece in pieces {
            ids.extend(self.inner.encode(piece)?);
        }
        Ok(ids)
    }

    fn added_text(&self, text: &str) -> Vec<Range<usize>> {
        self.inner.added_text(text)
    }
}

/// Gives answers without marks.
pub(super) struct LiteralDecider {
    pub(super) inner: Box<dyn Decider>,
    pub(super) mark: char,
}

impl Decider for LiteralDecider {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        let mut step = self.inner.step(outputs)?;
        if let Step::Done(answers) = &mut step {
            for (id, answer) in &mut answers.answers {
                clean(id, self.mark);
                clean_answer(answer, self.mark);
            }
        }
        Ok(step)
    }
}

fn clean_answer(answer: &mut Answer, mark: char) {
    match answer {
        Answer::Choice {
            choice,
            probabilities,
            ..
        } => {
            clean(choice, mark);
            probabilities.iter_mut().for_each(|(name, _)| clean(name, mark));
        }
        Answer::Score { legend, .. } => {
            for content in legend {
                match content {
                    Content::Text(text) => clean(text, mark),
                    Content::Json(value) => clean_value(value, mark),
                }
            }
        }
        Answer::Noul { .. } => {}
    }
}

/// Takes the marks out of everything that a sequence shows.
pub(super) fn without_mark(sequence: &mut ExplainedSequence, mark: char) {
    clean(&mut sequence.question, mark);
    clean(&mut sequence.text, mark);
    if let Some(option) = &mut sequence.option {
        clean(option, mark);
    }
    clean_map(&mut sequence.spans, mark);
}

fn clean(text: &mut String, mark: char) {
    if text.contains(mark) {
        text.retain(|c| c != mark);
    }
}

fn clean_value(value: &mut Value, mark: char) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => clean(text, mark),
        Value::Array(items) => items.iter_mut().for_each(|item| clean_value(item, mark)),
        Value::Object(map) => clean_map(map, mark),
    }
}

/// Keys keep their order, and stay different: without the marks they are those of the request.
fn clean_map(map: &mut Map<String, Value>, mark: char) {
    *map = std::mem::take(map)
        .into_iter()
        .map(|(mut key, mut value)| {
            clean(&mut key, mark);
            clean_value(&mut value, mark);
            (key, value)
        })
        .collect();
}
