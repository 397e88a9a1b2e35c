//! Rounds of passes: all questions of a request at once, tournaments round by round.

use std::collections::VecDeque;
use std::sync::Arc;

use super::config::Config;
use super::prompt::{Record, prompt, state_text};
use super::tournament::Tournament;
use crate::families::encoded::Encoded;
use crate::families::passes::Passes;
use crate::probability::softmax;
use crate::{
    Answer, Answers, Criteria, Decider, DeciderError, DecisionRequest, FamilyContext, Limits,
    MAX_SEQUENCES_PER_PLAN, PlannedSequence, Projection, Question, RequestError, RowSelection,
    SequenceOutput, Step, Usage,
};

/// One prompt: some options of one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// Index of the question.
    pub(super) question: usize,
    /// Its options, in letter order.
    pub(super) options: Vec<usize>,
    /// Which of the question's passes of this round it is.
    pub(super) group: usize,
    /// How many there are.
    pub(super) groups: usize,
}

/// The questions of a request and how far each has come.
#[derive(Debug)]
pub(super) struct Questions {
    state: String,
    truncate_state: bool,
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    question: Question,
    record: Record,
    tournament: Tournament,
    /// Of all options, once known.
    p: Option<Vec<f64>>,
    temperature: f64,
}

impl Questions {
    /// Validates a request, whichever face it came through.
    pub(super) fn new(config: &Config, request: &DecisionRequest) -> Result<Self, RequestError> {
        Limits::default().check(request)?;
        let (mut runs, mut found) = (Vec::new(), Vec::new());
        for (index, question) in request.questions.iter().enumerate() {
            match Record::new(index, question) {
                Ok(record) => runs.push(Run::new(config, question, record)),
                Err(violation) => found.push(violation),
            }
        }
        RequestError::unless_empty(found)?;
        Ok(Questions {
            state: state_text(request.state.as_ref()),
            truncate_state: request.truncate_state,
            runs,
        })
    }

    /// The passes that are due.
    pub(super) fn next_round(&self) -> Vec<Pass> {
        let mut round = Vec::new();
        for (question, run) in self.runs.iter().enumerate().filter(|(_, run)| run.p.is_none()) {
            let passes = run.tournament.passes();
            let groups = passes.len();
            let pass = |(group, options)| Pass {
                question,
                options,
                group,
                groups,
            };
            round.extend(passes.into_iter().enumerate().map(pass));
        }
        round
    }

    /// Renders and encodes a pass. Too long is an error that names both numbers, unless the state may be cut to fit.
    pub(super) fn encode(&self, pass: &Pass, cx: &FamilyContext) -> Result<Encoded, DeciderError> {
        let render = |state: &str| prompt(state, self.record(pass), &pass.options);
        Encoded::new(pass.question, &self.state, self.truncate_state, cx, &render)
    }

    pub(super) fn record(&self, pass: &Pass) -> &Record {
        &self.runs[pass.question].record
    }

    pub(super) fn id(&self, pass: &Pass) -> &str {
        &self.runs[pass.question].question.id
    }

    /// Takes the logits of a whole round, pass by pass.
    fn advance(&mut self, round: Vec<(Pass, Vec<f32>)>) {
        let mut by_question: Vec<Vec<Vec<f64>>> = vec![Vec::new(); self.runs.len()];
        for (pass, logits) in round {
            by_question[pass.question].push(softmax(&logits, self.runs[pass.question].temperature));
        }
        for (run, p) in self
            .runs
            .iter_mut()
            .zip(by_question)
            .filter(|(_, p)| !p.is_empty())
        {
            run.p = run.tournament.advance(&p);
        }
    }

    fn answers(&mut self, usage: Usage) -> Answers {
        let answers = self.runs.iter_mut().map(|run| {
            let p = run.p.take().unwrap_or_default();
            // The prompt shows true first.
            (
                run.question.id.clone(),
                Answer::unrounded(&run.question.criteria, p, 0),
            )
        });
        Answers {
            answers: answers.collect(),
            usage,
        }
    }
}

impl Run {
    fn new(config: &Config, question: &Question, record: Record) -> Self {
        let n = record.options.len();
        let temperature = match question.criteria {
            Criteria::Choice(_) => config.temperature.choice,
            Criteria::Score(_) => config.temperature.score,
            Criteria::Noul { .. } => config.temperature.noul,
        };
        Run {
            question: question.clone(),
            record,
            tournament: Tournament::new(n, config.wide_choice),
            // A choice of one option needs no model.
            p: (n == 1).then(|| vec![1.0]),
            temperature,
        }
    }
}

/// A request on its way.
pub(super) struct StartLuxDecider {
    config: Arc<Config>,
    cx: FamilyContext,
    questions: Questions,
    /// Passes of this round that no plan has held yet, with their tokens.
    waiting: VecDeque<(Pass, Vec<u32>)>,
    passes: Passes<Pass>,
    /// Passes of this round that are back.
    back: Vec<(Pass, Vec<f32>)>,
    usage: Usage,
}

impl StartLuxDecider {
    /// Renders and encodes the first round.
    pub(super) fn new(
        config: Arc<Config>,
        request: &DecisionRequest,
        cx: FamilyContext,
    ) -> Result<Self, DeciderError> {
        let questions = Questions::new(&config, request)?;
        let mut decider = StartLuxDecider {
            config,
            cx,
            questions,
            waiting: VecDeque::new(),
            passes: Passes::new(false),
            back: Vec::new(),
            usage: Usage::default(),
        };
        decider.prepare_round()?;
        Ok(decider)
    }

    fn prepare_round(&mut self) -> Result<(), DeciderError> {
        for pass in self.questions.next_round() {
            let encoded = self.questions.encode(&pass, &self.cx)?;
            self.usage.input_tokens += encoded.ids.len() as u64;
            self.usage.truncated_tokens += encoded.truncated;
            self.waiting.push_back((pass, encoded.ids));
        }
        Ok(())
    }

    /// The next plan of this round.
    fn plan(&mut self) -> Step {
        let count = self.waiting.len().min(MAX_SEQUENCES_PER_PLAN);
        let planned = self.waiting.drain(..count).map(|(pass, token_ids)| {
            let letters = self.config.letter_token_ids.iter();
            let letters = letters.take(pass.options.len()).copied().collect();
            let sequence = PlannedSequence {
                token_ids,
                read: RowSelection::Last,
                projection: Projection::OutputEmbedding(letters),
            };
            (pass, sequence)
        });
        self.passes.send(planned.collect())
    }
}

impl Decider for StartLuxDecider {
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError> {
        let back = self.passes.receive(outputs, |pass| pass.options.len())?;
        self.back
            .extend(back.into_iter().map(|(pass, logits)| (pass, logits.to_vec())));
        if self.waiting.is_empty() && !self.back.is_empty() {
            let round = std::mem::take(&mut self.back);
            self.questions.advance(round);
            self.prepare_round()?;
        }
        if self.waiting.is_empty() {
            return Ok(Step::Done(self.questions.answers(self.usage)));
        }
        Ok(self.plan())
    }
}
