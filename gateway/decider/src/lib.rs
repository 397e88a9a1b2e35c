//! Decider families: prompts, readout plans and answer rules. Pure: no I/O, no async, no tokenizer of its own.
//!
//! A request goes `bytes -> `[`systemone::parse_body`]` -> `[`DecisionRequest`]` -> `[`Family::start`]` -> `[`Decider`],
//! and then round the loop `step -> `[`Plan`]` -> executor -> `[`SequenceOutput`]`s -> step`, until [`Step::Done`].
//! [`systemone::render_response`] turns the [`Answers`] back into the body that existing clients read.
//!
//! * [`json`]: the strict parser, and the JSON spellings that prompts use (Python's, byte for byte).
//! * [`systemone`]: the HTTP body of `POST /v1/systemone`, in both directions.
//! * [`families`]: one module per family, and how to add one.
//! * [`special`]: text that spells a special token.
//! * [`probability`], [`chat`], [`python`]: what several families share.
//!
//! No error of this crate holds text of a request: violations name positions (`questions[0].choice.options[3].name`).

pub mod chat;
pub mod families;
pub mod json;
pub mod probability;
pub mod python;
pub mod special;
pub mod systemone;

mod answer;
mod error;
mod family;
mod limits;
mod plan;
mod request;

pub use answer::{Answer, Answers, Usage};
pub use error::{
    DeciderError, FamilyError, MAX_VIOLATIONS, PathSegment, RequestError, RequestErrorKind, TokenizeError,
    Violation,
};
pub use families::{family, family_defaults};
pub use family::{Decider, ExplainedSequence, Family, FamilyContext, Served, Shown, Tokenizer};
pub use json::{DuplicateKeys, JsonError, JsonErrorKind, JsonLimits, parse_json};
pub use limits::Limits;
pub use plan::{
    JointQuestion, MAX_SEQUENCES_PER_PLAN, Plan, PlannedSequence, Projection, RowSelection, SequenceOutput,
    Step,
};
pub use request::{ChoiceOption, Content, Criteria, DecisionRequest, Question};
pub use special::SpecialTokens;
