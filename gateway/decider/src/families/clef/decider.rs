//! One sequence for all questions, one row of logits for all options.

use super::answer::answer;
use super::encode::{Encoded, encode};
use crate::{
    Answers, Decider, DeciderError, DecisionRequest, FamilyContext, Plan, PlannedSequence, Projection,
    Question, RowSelection, SequenceOutput, Step, Usage,
};

/// A request on its way.
pub(super) struct ClefDecider {
    questions: Vec<Question>,
    /// Options of each question.
    counts: Vec<usize>,
    usage: Usage,
    phase: Phase,
}

enum Phase {
    Fresh(Plan),
    PlanOut,
    Ended,
}

impl ClefDecider {
    pub(super) fn new(request: &DecisionRequest, cx: &FamilyContext) -> Result<Self, DeciderError> {
        let Encoded {
            ids,
            questions,
            truncated,
            ..
        } = encode(request, cx)?;
        let counts = questions.iter().map(|question| question.options.len()).collect();
        let usage = Usage {
            input_tokens: ids.len() as u64,
            truncated_tokens: truncated,
            ..Usage::default()
        };
        let sequence = PlannedSequence {
            token_ids: ids,
            read: RowSelection::All,
            projection: Projection::JointHead(questions),
        };
        Ok(ClefDecider {
            questions: request.questions.clone(),
            counts,
            usage,
            phase: Phase::Fresh(Plan::sharing(vec![sequence], false)),
        })
    }

    fn answers(&self, outputs: &[SequenceOutput]) -> Result<Answers, DeciderError> {
        DeciderError::check_shape("sequences", 1, outputs.len())?;
        let rows = outputs.first().map_or(&[][..], |output| &output.rows);
        DeciderError::check_shape("rows", 1, rows.len())?;
        let mut logits = rows.first().map_or(&[][..], Vec::as_slice);
        DeciderError::check_shape("values", self.counts.iter().sum(), logits.len())?;
        DeciderError::check_finite(0, logits)?;
        let mut answers = Vec::with_capacity(self.questions.len());
        for (question, count) in self.questions.iter().zip(&self.counts) {
            let (own, others) = logits.split_at_checked(*count).unwrap_or((logits, &[]));
            logits = others;
            answers.push((question.id.clone(), answer(&question.criteria, own)));
        }
        Ok(Answers {
            answers,
            usage: self.usage,
        })
    }
}

impl Decider for ClefDecider {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        // Whatever fails below ends the request.
        match (std::mem::replace(&mut self.phase, Phase::Ended), outputs) {
            (Phase::Fresh(plan), None) => {
                self.phase = Phase::PlanOut;
                Ok(Step::Run(plan))
            }
            (Phase::PlanOut, Some(outputs)) => Ok(Step::Done(self.answers(outputs)?)),
            _ => Err(DeciderError::OutOfTurn),
        }
    }
}
