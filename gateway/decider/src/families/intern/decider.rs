//! One sequence for all questions; one row per question.

use super::answer::answer;
use super::config::Config;
use super::{MAX_TOKENS, limits, prompt};
use crate::families::encoded::too_long;
use crate::probability::softmax;
use crate::{
    Answers, Decider, DeciderError, DecisionRequest, FamilyContext, Plan, PlannedSequence, Projection,
    Question, RequestError, RowSelection, SequenceOutput, Step, Usage, Violation,
};

/// A prompt in both forms.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// The position before each marker, question by question.
    pub(super) read: Vec<u32>,
}

/// Validates, renders and encodes. A prompt that is too long is refused, even if the state might be cut.
pub(super) fn encode(request: &DecisionRequest, cx: &FamilyContext) -> Result<Encoded, DeciderError> {
    limits().check(request)?;
    let state = prompt::state_text(request.state.as_ref());
    let fields: Vec<String> = request.questions.iter().map(prompt::field_text).collect();
    let reserved = "the text holds the reserved decision marker";
    let mut found = Vec::new();
    if state.contains(prompt::MARKER) {
        found.push(Violation::new(["state".into()], "RESERVED_MARKER", reserved));
    }
    for (index, field) in fields.iter().enumerate() {
        if field.contains(prompt::MARKER) {
            found.push(Violation::in_question(index, &[], "RESERVED_MARKER", reserved));
        }
    }
    RequestError::unless_empty(found)?;
    let names = request.questions.iter().map(|question| question.id.as_str());
    let text = prompt::prompt(&state, &fields, names);
    let ids = cx.tokenizer.encode(&text)?;
    let (count, max) = (ids.len(), cx.max_tokens.min(MAX_TOKENS));
    if count > max {
        let message = too_long(count, max);
        return Err(RequestError::unanswerable(Violation::new([], "PROMPT_TOO_LONG", message)).into());
    }
    let marker = cx.tokenizer.encode(prompt::MARKER)?;
    let read: Vec<u32> = (0u32..)
        .zip(ids.windows(2))
        .filter(|(_, pair)| marker == pair[1..])
        .map(|(at, _)| at)
        .collect();
    let (expected, got) = (request.questions.len(), read.len());
    if expected != got {
        let message = format!("the prompt has {got} decision markers for {expected} questions");
        return Err(RequestError::unanswerable(Violation::new([], "RESERVED_MARKER", message)).into());
    }
    Ok(Encoded { text, ids, read })
}

/// A request on its way.
pub(super) struct InternDecider {
    temperature: f64,
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

impl InternDecider {
    pub(super) fn new(
        config: &Config,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Self, DeciderError> {
        let Encoded { ids, read, .. } = encode(request, cx)?;
        let counts: Vec<usize> = request.questions.iter().map(prompt::option_count).collect();
        let mut symbols = Vec::new();
        for symbol in prompt::SYMBOLS
            .iter()
            .take(counts.iter().copied().max().unwrap_or(0))
        {
            symbols.extend(cx.tokenizer.encode(symbol)?);
        }
        let usage = Usage {
            input_tokens: ids.len() as u64,
            ..Usage::default()
        };
        let sequence = PlannedSequence {
            token_ids: ids,
            read: RowSelection::Positions(read),
            projection: Projection::OutputEmbedding(symbols),
        };
        Ok(InternDecider {
            temperature: config.temperature,
            questions: request.questions.clone(),
            counts,
            usage,
            phase: Phase::Fresh(Plan {
                sequences: vec![sequence],
                prefix: Vec::new(),
                noncausal_full_attention: false,
            }),
        })
    }

    fn answers(&self, outputs: &[SequenceOutput]) -> Result<Answers, DeciderError> {
        DeciderError::check_shape("sequences", 1, outputs.len())?;
        let rows = outputs.first().map_or(&[][..], |output| &output.rows);
        DeciderError::check_shape("rows", self.questions.len(), rows.len())?;
        let width = self.counts.iter().copied().max().unwrap_or(0);
        let mut answers = Vec::with_capacity(rows.len());
        for ((question, count), row) in self.questions.iter().zip(&self.counts).zip(rows) {
            DeciderError::check_shape("values", width, row.len())?;
            DeciderError::check_finite(0, row)?;
            let own: Vec<f32> = row.iter().take(*count).copied().collect();
            let p = softmax(&own, self.temperature);
            answers.push((question.id.clone(), answer(&question.criteria, p)));
        }
        Ok(Answers {
            answers,
            usage: self.usage,
        })
    }
}

impl Decider for InternDecider {
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
