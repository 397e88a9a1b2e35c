//! One pass per question, all of them at once.

use super::prompt::{LETTERS, Record, prompt, state_text};
use super::{bounded, limits};
use crate::families::encoded::Encoded;
use crate::families::passes::Passes;
use crate::probability::{entropy_confidence, softmax};
use crate::{
    Answer, Answers, Decider, DeciderError, DecisionRequest, FamilyContext, PlannedSequence, Projection,
    Question, RequestError, RowSelection, SequenceOutput, Step, Usage,
};

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

/// A request on its way.
pub(super) struct CuaS1Decider {
    questions: Vec<Question>,
    /// All of them, until they are sent.
    waiting: Vec<(usize, PlannedSequence)>,
    /// Number of options of each that is out.
    passes: Passes<usize>,
    usage: Usage,
}

impl CuaS1Decider {
    /// Renders and encodes every prompt: what is wrong with any is known before one runs.
    pub(super) fn new(request: &DecisionRequest, cx: &FamilyContext) -> Result<Self, DeciderError> {
        let questions = Questions::new(request)?;
        let mut letters = Vec::with_capacity(LETTERS.len());
        for letter in LETTERS.chars() {
            letters.extend(cx.tokenizer.encode(letter.encode_utf8(&mut [0; 4]))?);
        }
        let (mut waiting, mut usage) = (Vec::new(), Usage::default());
        for (index, (_, record)) in questions.questions.iter().enumerate() {
            let encoded = questions.encode(index, record, cx)?;
            usage.input_tokens += encoded.ids.len() as u64;
            usage.truncated_tokens += encoded.truncated;
            let options = record.labels.len();
            let sequence = PlannedSequence {
                token_ids: encoded.ids,
                read: RowSelection::Last,
                projection: Projection::OutputEmbedding(letters.iter().take(options).copied().collect()),
            };
            waiting.push((options, sequence));
        }
        Ok(CuaS1Decider {
            questions: questions
                .questions
                .into_iter()
                .map(|(question, _)| question)
                .collect(),
            waiting,
            passes: Passes::new(false),
            usage,
        })
    }
}

impl Decider for CuaS1Decider {
    /// The questions of a request, at most 64, fit into one plan.
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        let back = self.passes.receive(outputs, |options| *options)?;
        if !self.waiting.is_empty() {
            return Ok(self.passes.send(std::mem::take(&mut self.waiting)));
        }
        let answers = self.questions.iter().zip(back).map(|(question, (_, logits))| {
            let answer = Answer::unrounded(&question.criteria, softmax(logits, 1.0), 0);
            (
                question.id.clone(),
                answer.with_own_confidence(entropy_confidence),
            )
        });
        Ok(Step::Done(Answers {
            answers: answers.collect(),
            usage: self.usage,
        }))
    }
}
