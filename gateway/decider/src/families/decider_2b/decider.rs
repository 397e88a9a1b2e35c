//! One pass per row, all of them at once.

use std::collections::VecDeque;

use super::answer::{answer, probabilities};
use super::config::Config;
use super::encoded::Encoded;
use super::labels::LABELS;
use super::prompt::Row;
use crate::families::passes::Passes;
use crate::{
    Answers, Criteria, Decider, DeciderError, DecisionRequest, FamilyContext, MAX_SEQUENCES_PER_PLAN,
    PlannedSequence, Projection, Question, RowSelection, SequenceOutput, Step, Usage,
};

/// A request on its way.
pub(super) struct Decider2bDecider {
    questions: Vec<Question>,
    temperatures: Vec<f32>,
    context: Vec<u32>,
    /// Tokens of the labels, as many as the widest row has.
    labels: Vec<u32>,
    /// Rows that no plan has held yet.
    waiting: VecDeque<(Row, Vec<u32>)>,
    passes: Passes<Row>,
    /// What is back, by question: the probabilities of each row.
    back: Vec<Vec<Vec<f64>>>,
    usage: Usage,
}

impl Decider2bDecider {
    /// Renders and encodes every row: what is wrong with any is known before one runs.
    pub(super) fn new(
        config: &Config,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Self, DeciderError> {
        let encoded = Encoded::new(config, request, cx)?;
        let usage = Usage {
            input_tokens: encoded.input_tokens(),
            truncated_tokens: encoded.truncated,
            ..Usage::default()
        };
        let widest = encoded
            .rows
            .iter()
            .map(|(row, _)| row.options.len())
            .max()
            .unwrap_or(0);
        let mut labels = Vec::with_capacity(widest);
        for label in LABELS.iter().take(widest) {
            labels.extend(cx.tokenizer.encode(label)?);
        }
        let temperature = |question: &Question| match question.criteria {
            Criteria::Choice(_) => config.choice,
            Criteria::Score(_) => config.score,
            Criteria::Noul { .. } => config.noul,
        };
        Ok(Decider2bDecider {
            temperatures: request.questions.iter().map(temperature).collect(),
            back: vec![Vec::new(); request.questions.len()],
            questions: request.questions.clone(),
            context: encoded.context,
            labels,
            waiting: encoded.rows.into(),
            passes: Passes::new(false),
            usage,
        })
    }

    fn answers(&self) -> Answers {
        let answers = self.questions.iter().zip(&self.back);
        let answers = answers.map(|(question, rows)| (question.id.clone(), answer(&question.criteria, rows)));
        Answers {
            answers: answers.collect(),
            usage: self.usage,
        }
    }
}

impl Decider for Decider2bDecider {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        for (row, logits) in self.passes.receive(outputs, |row| row.options.len())? {
            let p = probabilities(logits, self.temperatures[row.question]);
            self.back[row.question].push(p);
        }
        if self.waiting.is_empty() {
            return Ok(Step::Done(self.answers()));
        }
        let count = self.waiting.len().min(MAX_SEQUENCES_PER_PLAN);
        let planned = self.waiting.drain(..count).map(|(row, ids)| {
            let labels = self.labels.iter().take(row.options.len()).copied();
            let sequence = PlannedSequence {
                token_ids: self.context.iter().copied().chain(ids).collect(),
                read: RowSelection::Last,
                projection: Projection::OutputEmbedding(labels.collect()),
            };
            (row, sequence)
        });
        Ok(self.passes.send(planned.collect()))
    }
}
