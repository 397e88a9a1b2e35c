//! One pass per candidate, all of them at once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::answer;
use super::config::Config;
use super::prompt::{Record, prompt, state_text};
use crate::families::encoded::Encoded;
use crate::families::passes::Passes;
use crate::{
    Answers, Criteria, Decider, DeciderError, DecisionRequest, FamilyContext, Limits, MAX_SEQUENCES_PER_PLAN,
    PlannedSequence, Projection, Question, RequestError, RowSelection, SequenceOutput, Step, Usage,
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

/// How many prompts a question takes: one for each proposed answer, one for a noul.
pub(super) fn candidate_count(question: &Question) -> usize {
    match &question.criteria {
        Criteria::Choice(options) => options.len(),
        Criteria::Score(levels) => levels.len(),
        Criteria::Noul { .. } => 1,
    }
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
            .map(|(question, _)| candidate_count(question));
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
        let (_, record) = &self.questions[candidate.question];
        let render = |state: &str| prompt(config, state, record, candidate.index);
        Encoded::new(candidate.question, &self.state, self.truncate_state, cx, &render)
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
    passes: Passes<Candidate>,
    /// Logits that are back, by question.
    logits: Vec<Vec<f32>>,
    usage: Usage,
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
            passes: Passes::new(false),
            usage,
        })
    }

    /// Keeps the logits of the plan that was out.
    fn collect(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<(), DeciderError> {
        // A decider is not made without one.
        let Some(head) = &self.config.head else {
            return Err(DeciderError::OutOfTurn);
        };
        let back = self.passes.receive(outputs, |_| head.weight.len())?;
        for (sequence, (candidate, hidden)) in back.into_iter().enumerate() {
            let logit = head.logit(hidden);
            // Finite values may still sum up to more than an f32 holds.
            DeciderError::check_finite(sequence, &[logit])?;
            self.logits[candidate.question].push(logit);
        }
        Ok(())
    }

    /// The next plan.
    fn plan(&mut self) -> Result<Step, DeciderError> {
        let count = self.waiting.len().min(MAX_SEQUENCES_PER_PLAN);
        let mut planned = Vec::with_capacity(count);
        for (candidate, kept) in self.waiting.drain(..count) {
            let token_ids = match kept {
                Some(ids) => ids,
                None => self.questions.encode(candidate, &self.config, &self.cx)?.ids,
            };
            let sequence = PlannedSequence {
                token_ids,
                read: RowSelection::Last,
                projection: Projection::Hidden,
            };
            planned.push((candidate, sequence));
        }
        Ok(self.passes.send(planned))
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
        self.collect(outputs)?;
        if self.waiting.is_empty() {
            return Ok(Step::Done(self.answers()));
        }
        self.plan()
    }
}
