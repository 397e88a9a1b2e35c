//! What a family is: something that turns a request into plans and their outputs into answers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::{
    Answers, DeciderError, DecisionRequest, FamilyError, SequenceOutput, Step, TokenizeError, systemone,
};

/// Text to token ids.
pub trait Tokenizer: Send + Sync {
    /// Encodes a whole string. No token is added; text that spells a special token becomes that token.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError>;

    /// Where `text` spells special tokens, that is tokens which were added to the vocabulary and are looked for before a text
    /// is cut into words: byte ranges, left to right, without overlap. All of which [`Tokenizer::encode`] may make such a
    /// token, whatever stands before and after `text`.
    fn added_text(&self, text: &str) -> Vec<Range<usize>>;
}

/// What a family needs to know of the model it runs on.
#[derive(Clone)]
pub struct FamilyContext {
    /// The model's tokenizer. Shared, because a later step may have to encode again.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Longest sequence, in tokens. A longer one is refused; it is cut only if the request says so.
    pub max_tokens: usize,
}

impl FamilyContext {
    /// Encodes when a model is loaded: a failure is the tokenizer's.
    pub(crate) fn encode_at_load(&self, text: &str) -> Result<Vec<u32>, FamilyError> {
        let failed = |_| FamilyError::Tokenizer {
            reason: "it cannot encode a prompt".into(),
        };
        self.tokenizer.encode(text).map_err(failed)
    }

    /// The token of a text that must be one token; an error calls it `name`.
    pub(crate) fn one_token(&self, text: &str, name: &str) -> Result<u32, FamilyError> {
        match self.encode_at_load(text)?.as_slice() {
            [id] => Ok(*id),
            ids => Err(FamilyError::Tokenizer {
                reason: format!("{name} is {} tokens, not one", ids.len()),
            }),
        }
    }
}

impl fmt::Debug for FamilyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FamilyContext")
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// A decider family with the configuration of one model.
pub trait Family: Send + Sync + fmt::Debug {
    /// Its name, one of [`crate::families::FAMILIES`].
    fn id(&self) -> &'static str;

    /// Whether the questions of a request share a prompt, so that one's answer may depend on the others. Otherwise each is
    /// answered as if it were alone.
    fn joint(&self) -> bool {
        false
    }

    /// Checks that the tokenizer is the one that the configuration means. Once, when a model is loaded.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError>;

    /// The rules of `POST /v1/systemone` bodies.
    fn systemone_rules(&self) -> systemone::Rules;

    /// Which texts of a request its prompts show.
    fn shows(&self) -> Shown {
        Shown::QuestionIds
    }

    /// Validates the request, renders and encodes the first step. Costs time in proportion to the text.
    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError>;

    /// The sequences of the first step, for people. Runs nothing.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError>;

    /// The body of a 200 of the family's own server, for callers that need exactly that one: its rounding, its measure of
    /// confidence, its extra fields. Most servers answer with the bare contract.
    fn own_response(&self, served: &Served<'_>) -> Value {
        served.contract()
    }
}

/// Which texts of a request prompts show. Each shows what those before it show, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// The state.
    State,
    /// Instructions, names of options, descriptions and levels.
    Questions,
    /// The ids of questions.
    QuestionIds,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The served name of the model.
    pub model: &'a str,
    /// The name that the request gave, if it gave one.
    pub asked_model: Option<&'a str>,
    /// The request.
    pub request: &'a DecisionRequest,
    /// Its answers.
    pub answers: &'a Answers,
    /// From the request's arrival to its answer.
    pub latency: Duration,
}

impl Served<'_> {
    /// The body that the contract asks for, without any field beyond it.
    pub fn contract(&self) -> Value {
        let answers = &self.answers.answers;
        let plain = Answers {
            answers: answers
                .iter()
                .map(|(id, answer)| (id.clone(), answer.clone().plain()))
                .collect(),
            usage: self.answers.usage,
        };
        systemone::render_response(self.model, &plain, Map::new())
    }
}

/// One request on its way. The first call of `step` takes `None`; each later one the outputs of the plan before it.
pub trait Decider: Send {
    /// Takes the outputs of the last plan, in its order; gives the next plan or the answers.
    fn step(&mut self, outputs: Option<&[SequenceOutput]>) -> Result<Step, DeciderError>;
}

/// A sequence, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedSequence {
    /// Id of the question.
    pub question: String,
    /// The option, in families that run one sequence per option.
    pub option: Option<String>,
    /// The prompt.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Positions that are read.
    pub read: Vec<usize>,
    /// What the family marks: half-open token ranges, labels. Each family documents its own.
    pub spans: Map<String, Value>,
}
