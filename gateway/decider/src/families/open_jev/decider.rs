//! One pass per candidate, all of them at once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::answer;
use super::config::Config;
use super::prompt::{Record, prompt, state_text};
use crate::families::startlux::truncate::truncate;
use crate::{
    Answers, Criteria, Decider, DeciderError, DecisionRequest, FamilyContext, Limits, MAX_SEQUENCES_PER_PLAN,
    Plan, PlannedSequence, Projection, Question, RequestError, RowSelection, SequenceOutput, Step, Usage,
    Violation,
};

/// Tokens of a request that are kept from its length check until they run. The widest request has thousands of prompts:
/// beyond this they are encoded again when they are due, which costs time where keeping them would cost memory.
const KEPT_TOKENS: u64 = 1 << 22;

/// One prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Index of the question.
    question: usize,
    /// Index of the proposed answer in it; 0 for a noul.
    index: usize,
}

/// A prompt in both forms.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// Tokens that it would have had beyond these.
    pub(super) truncated: u64,
}

/// The questions of a request.
#[derive(Debug)]
pub(super) struct Questions {
    state: String,
    truncate_state: bool,
    questions: Vec<(Question, Record)>,
}

impl Questions {
    /// Validates a request, whichever face it came through.
    pub(super) fn new(request: &DecisionRequest) -> Result<Self, RequestError> {
        Limits::default().check(request)?;
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

    /// All candidates, question by question.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let counts = self
            .questions
            .iter()
            .map(|(_, record)| record.proposed.as_ref().map_or(1, Vec::len));
        let of = |(question, count)| (0..count).map(move |index| Candidate { question, index });
        counts.enumerate().flat_map(of).collect()
    }

    /// Renders and encodes a prompt. Too long is an error that names both numbers, unless the state may be cut to fit.
    pub(super) fn encode(
        &self,
        candidate: Candidate,
        config: &Config,
        cx: &FamilyContext,
    ) -> Result<Encoded, DeciderError> {
        let max = cx.max_tokens.min(config.max_length);
        let (_, record) = &self.questions[candidate.question];
        let render = |state: &str| prompt(config, state, record, candidate.index);
        let text = render(&self.state);
        let ids = cx.tokenizer.encode(&text)?;
        let count = ids.len();
        if count <= max {
            return Ok(Encoded {
                text,
                ids,
                truncated: 0,
            });
        }
        let cx = FamilyContext {
            max_tokens: max,
            ..cx.clone()
        };
        if self.truncate_state
            && let Some((text, ids)) = truncate(&self.state, count, &cx, &render)?
        {
            let truncated = count.saturating_sub(ids.len()) as u64;
            return Ok(Encoded { text, ids, truncated });
        }
        let message = format!("the prompt has {count} tokens, the limit is {max}");
        let violation = Violation::in_question(candidate.question, &[], "PROMPT_TOO_LONG", message);
        Err(RequestError::unanswerable(violation).into())
    }

    pub(super) fn id(&self, candidate: Candidate) -> &str {
        &self.questions[candidate.question].0.id
    }

    /// Name of the option or number of the level; none of a noul.
    pub(super) fn option(&self, candidate: Candidate) -> Option<String> {
        match &self.questions[candidate.question].0.criteria {
            Criteria::Choice(options) => options.get(candidate.index).map(|option| option.name.clone()),
            Criteria::Score(_) => Some(candidate.index.to_string()),
            Criteria::Noul { .. } => None,
        }
    }
}

/// A request on its way.
pub(super) struct OpenJevDecider {
    config: Arc<Config>,
    cx: FamilyContext,
    questions: Questions,
    /// Candidates that no plan has held yet, with their tokens if those are kept.
    waiting: VecDeque<(Candidate, Option<Vec<u32>>)>,
    /// Candidates of the plan that is out.
    out: Vec<Candidate>,
    /// Logits that are back, by question.
    logits: Vec<Vec<f32>>,
    usage: Usage,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    PlanOut,
    Ended,
}

impl OpenJevDecider {
    /// Renders and encodes every prompt: what is wrong with any is known before one runs.
    pub(super) fn new(
        config: Arc<Config>,
        request: &DecisionRequest,
        cx: FamilyContext,
    ) -> Result<Self, DeciderError> {
        if config.head.is_none() {
            let message = "without a model's decision head the family renders prompts and answers nothing";
            return Err(RequestError::unanswerable(Violation::new([], "NO_DECISION_HEAD", message)).into());
        }
        let questions = Questions::new(request)?;
        let mut waiting = VecDeque::new();
        let mut usage = Usage::default();
        for candidate in questions.candidates() {
            let encoded = questions.encode(candidate, &config, &cx)?;
            usage.input_tokens += encoded.ids.len() as u64;
            usage.truncated_tokens += encoded.truncated;
            let kept = usage.input_tokens <= KEPT_TOKENS;
            waiting.push_back((candidate, kept.then_some(encoded.ids)));
        }
        Ok(OpenJevDecider {
            logits: vec![Vec::new(); questions.questions.len()],
            config,
            cx,
            questions,
            waiting,
            out: Vec::new(),
            usage,
            phase: Phase::Fresh,
        })
    }

    /// Checks the outputs of the plan that is out and keeps their logits.
    fn collect(&mut self, outputs: &[SequenceOutput]) -> Result<(), DeciderError> {
        let out = std::mem::take(&mut self.out);
        // A decider is not made without one.
        let Some(head) = &self.config.head else {
            return Err(DeciderError::OutOfTurn);
        };
        let shape = |what, expected, got| {
            if expected == got {
                Ok(())
            } else {
                Err(DeciderError::OutputShape { what, expected, got })
            }
        };
        shape("sequences", out.len(), outputs.len())?;
        for (sequence, (candidate, output)) in out.into_iter().zip(outputs).enumerate() {
            shape("rows", 1, output.rows.len())?;
            let hidden = output.rows.first().map_or(&[][..], Vec::as_slice);
            shape("values", head.weight.len(), hidden.len())?;
            let logit = head.logit(hidden);
            // A value times a weight of 0 would be NaN as well: this finds every value that is not finite.
            if !logit.is_finite() {
                return Err(DeciderError::NotFinite { sequence });
            }
            self.logits[candidate.question].push(logit);
        }
        Ok(())
    }

    /// The next plan.
    fn plan(&mut self) -> Result<Plan, DeciderError> {
        let count = self.waiting.len().min(MAX_SEQUENCES_PER_PLAN);
        let mut sequences = Vec::with_capacity(count);
        for (candidate, kept) in self.waiting.drain(..count) {
            let token_ids = match kept {
                Some(ids) => ids,
                None => self.questions.encode(candidate, &self.config, &self.cx)?.ids,
            };
            sequences.push(PlannedSequence {
                token_ids,
                read: RowSelection::Last,
                projection: Projection::Hidden,
            });
            self.out.push(candidate);
        }
        Ok(Plan {
            sequences,
            noncausal_full_attention: false,
        })
    }

    fn answers(&self) -> Answers {
        let answers = self.questions.questions.iter().zip(&self.logits);
        let answers = answers.map(|((question, _), logits)| {
            let answer = answer(&question.criteria, logits, self.config.temperature);
            (question.id.clone(), answer)
        });
        Answers {
            answers: answers.collect(),
            usage: self.usage,
        }
    }
}

impl Decider for OpenJevDecider {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        // Whatever fails below ends the request.
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        match (phase, outputs) {
            (Phase::Fresh, None) => {}
            (Phase::PlanOut, Some(outputs)) => self.collect(outputs)?,
            _ => return Err(DeciderError::OutOfTurn),
        }
        if self.waiting.is_empty() {
            return Ok(Step::Done(self.answers()));
        }
        let plan = self.plan()?;
        self.phase = Phase::PlanOut;
        Ok(Step::Run(plan))
    }
}
