//! One prompt per question, one row of logits per prompt: what several families have in common.

use std::collections::VecDeque;

use super::passes::Passes;
use crate::probability::softmax;
use crate::{
    Answer, Answers, Decider, DeciderError, MAX_SEQUENCES_PER_PLAN, PlannedSequence, Projection, Question,
    RowSelection, SequenceOutput, Step, Usage,
};

/// How the logits of a question become its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// What the logits are divided by.
    pub(super) temperature: f64,
    /// Which of the two sides of a noul is true.
    pub(super) side_true: usize,
    /// Full-attention layers see the whole prompt.
    pub(super) noncausal_full_attention: bool,
    /// The family's own measure of confidence, if it has another one.
    pub(super) own_confidence: Option<fn(&[f64]) -> f64>,
}

/// A question, encoded: what is read from its last row is a logit per option.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) token_ids: Vec<u32>,
    pub(super) truncated: u64,
    pub(super) projection: Projection,
}

/// A request on its way.
pub(super) struct EachQuestion {
    reading: Reading,
    questions: Vec<Question>,
    /// Questions that no plan has held yet, by number.
    waiting: VecDeque<(usize, PlannedSequence)>,
    passes: Passes<(usize, usize)>,
    /// Probabilities that are back, by question.
    p: Vec<Vec<f64>>,
    usage: Usage,
}

impl EachQuestion {
    pub(super) fn new(asked: Vec<Asked>, reading: Reading) -> Self {
        let mut usage = Usage::default();
        let (mut questions, mut waiting) = (Vec::new(), VecDeque::new());
        for (number, asked) in asked.into_iter().enumerate() {
            usage.input_tokens += asked.token_ids.len() as u64;
            usage.truncated_tokens += asked.truncated;
            questions.push(asked.question);
            let sequence = PlannedSequence {
                token_ids: asked.token_ids,
                read: RowSelection::Last,
                projection: asked.projection,
            };
            waiting.push_back((number, sequence));
        }
        EachQuestion {
            reading,
            p: vec![Vec::new(); questions.len()],
            questions,
            waiting,
            passes: Passes::new(reading.noncausal_full_attention),
            usage,
        }
    }

    fn answers(&mut self) -> Answers {
        let Reading {
            side_true,
            own_confidence,
            ..
        } = self.reading;
        let answer = |(question, p): (&Question, Vec<f64>)| {
            let answer = Answer::unrounded(&question.criteria, p, side_true);
            let answer = match own_confidence {
                Some(measure) => answer.with_own_confidence(measure),
                None => answer,
            };
            (question.id.clone(), answer)
        };
        Answers {
            answers: self
                .questions
                .iter()
                .zip(std::mem::take(&mut self.p))
                .map(answer)
                .collect(),
            usage: self.usage,
        }
    }
}

impl Decider for EachQuestion {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        for ((number, _), logits) in self.passes.receive(outputs, |(_, width)| *width)? {
            if let Some(p) = self.p.get_mut(number) {
                *p = softmax(logits, self.reading.temperature);
            }
        }
        if self.waiting.is_empty() {
            return Ok(Step::Done(self.answers()));
        }
        let count = self.waiting.len().min(MAX_SEQUENCES_PER_PLAN);
        let planned = self.waiting.drain(..count).map(|(number, sequence)| {
            let width = sequence.projection.width(0);
            ((number, width), sequence)
        });
        Ok(self.passes.send(planned.collect()))
    }
}
