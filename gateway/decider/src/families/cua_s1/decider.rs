//! One pass per question, all of them at once.

use super::prompt::{LETTERS, Record, prompt, state_text};
use super::{bounded, limits};
use crate::families::each::{Asked, EachQuestion, Reading};
use crate::families::encoded::Encoded;
use crate::probability::entropy_confidence;
use crate::{DeciderError, DecisionRequest, FamilyContext, Projection, Question, RequestError};

/// The questions of a request, validated.
#[derive(Debug)]
pub(super) struct Questions {
    state: String,
    truncate_state: bool,
    pub(super) questions: Vec<(Question, Record)>,
}

impl Questions {
    /// Validates a request, whichever face it came through.
    pub(super) fn new(request: &DecisionRequest) -> Result<Self, RequestError> {
        limits().check(request)?;
        let (mut questions, mut found) = (Vec::new(), Vec::new());
        // The limits refuse a request without a state.
        let state = request.state.as_ref().map(state_text).transpose();
        let state = state.unwrap_or_else(|violation| {
            found.push(violation);
            None
        });
        for (index, question) in request.questions.iter().enumerate() {
            match Record::new(index, question) {
                Ok(record) => questions.push((question.clone(), record)),
                Err(violation) => found.push(violation),
            }
        }
        RequestError::unless_empty(found)?;
        Ok(Questions {
            state: state.unwrap_or_default(),
            truncate_state: request.truncate_state,
            questions,
        })
    }

    /// Renders and encodes the prompt of one of them. Too long is an error, unless the state may be cut to fit.
    pub(super) fn encode(
        &self,
        index: usize,
        record: &Record,
        cx: &FamilyContext,
    ) -> Result<Encoded, DeciderError> {
        let render = |state: &str| prompt(state, record);
        Encoded::new(index, &self.state, self.truncate_state, &bounded(cx), &render)
    }
}

/// Renders and encodes every prompt: what is wrong with any is known before one runs.
pub(super) fn start(request: &DecisionRequest, cx: &FamilyContext) -> Result<EachQuestion, DeciderError> {
    let questions = Questions::new(request)?;
    let mut letters = Vec::with_capacity(LETTERS.len());
    for letter in LETTERS.chars() {
        letters.extend(cx.tokenizer.encode(letter.encode_utf8(&mut [0; 4]))?);
    }
    let mut asked = Vec::with_capacity(questions.questions.len());
    for (index, (question, record)) in questions.questions.iter().enumerate() {
        let encoded = questions.encode(index, record, cx)?;
        let rows = letters.iter().take(record.labels.len()).copied();
        asked.push(Asked {
            question: question.clone(),
            token_ids: encoded.ids,
            truncated: encoded.truncated,
            projection: Projection::OutputEmbedding(rows.collect()),
        });
    }
    let reading = Reading {
        temperature: 1.0,
        side_true: 0,
        noncausal_full_attention: false,
        own_confidence: Some(entropy_confidence),
    };
    Ok(EachQuestion::new(asked, reading))
}
