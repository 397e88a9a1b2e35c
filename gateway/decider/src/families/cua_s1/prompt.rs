//! Questions -> prompts, byte for byte as the adapter was trained.

use serde_json::Value;

use crate::chat::chat_open;
use crate::json::Dialect;
use crate::{ChoiceOption, Content, Criteria, PathSegment, Question, Violation};

/// Names of options in a prompt, in order.
pub const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

const SYSTEM: &str = "You are a one-pass computer-use decision model. You are shown the current state of a screen and a fixed, closed list of candidate (element, action) options, each given a single letter. Choose exactly one option: the single best next action to take. Answer with ONLY that option's letter -- no words, no punctuation, no explanation.";

/// A question, reduced to what its prompt shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// May be empty.
    pub goal: String,
    /// In request order, escaped as in JSON.
    pub labels: Vec<String>,
}

impl Record {
    /// Of question number `index`.
    pub fn new(index: usize, question: &Question) -> Result<Self, Violation> {
        let fault = |rest: &[PathSegment], reason, message: &str| {
            Violation::in_question(index, rest, reason, message)
        };
        let options = match &question.criteria {
            Criteria::Choice(options) => options,
            Criteria::Score(_) | Criteria::Noul { .. } => {
                let message = "this model answers choice questions only";
                return Err(fault(&["type".into()], "UNSUPPORTED_TYPE", message));
            }
        };
        let goal = match &question.instructions {
            // An explicit null is a question without a goal; a field that was forgotten is not.
            None => {
                let message = "instructions are required, and may be null";
                return Err(fault(&["instructions".into()], "MISSING", message));
            }
            Some(content) if content.is_null() => String::new(),
            Some(content) => shown(content).ok_or_else(|| {
                let message = "instructions must be null, text, an object or a list";
                fault(&["instructions".into()], "WRONG_TYPE", message)
            })?,
        };
        let mut labels = Vec::with_capacity(options.len());
        for (position, option) in options.iter().enumerate() {
            labels.push(label(option).ok_or_else(|| {
                let path = [
                    "choice".into(),
                    "options".into(),
                    position.into(),
                    "description".into(),
                ];
                let message = "a description must be null, text, an object or a list";
                fault(&path, "WRONG_TYPE", message)
            })?);
        }
        Ok(Record { goal, labels })
    }
}

/// The description, or the name where there is none, as a JSON string without its quotes.
fn label(option: &ChoiceOption) -> Option<String> {
    let text = match &option.description {
        None => option.name.clone(),
        Some(content) if content.is_null() => option.name.clone(),
        Some(content) => shown(content)?,
    };
    let quoted = Dialect::PLAIN.render(&Value::String(text));
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.map(str::to_owned)
}

/// The state as prompts show it; an empty one is refused.
pub fn state_text(state: &Content) -> Result<String, Violation> {
    let fault = |reason, message: &str| Violation::new(["state".into()], reason, message);
    let empty = match state {
        Content::Text(text) | Content::Json(Value::String(text)) => text.is_empty(),
        Content::Json(Value::Array(items)) => items.is_empty(),
        Content::Json(Value::Object(map)) => map.is_empty(),
        Content::Json(_) => false,
    };
    if empty {
        return Err(fault("MISSING", "state is empty"));
    }
    shown(state).ok_or_else(|| fault("WRONG_TYPE", "state must be text, an object or a list"))
}

/// The user's turn.
pub fn user_text(state: &str, record: &Record) -> String {
    let mut out = String::new();
    if !record.goal.is_empty() {
        out.push_str(&format!("Goal: {}\n\n", record.goal));
    }
    out.push_str("App: Cua Driver\nTask family: closed-candidate decision\n\nAccessibility tree:\n");
    out.push_str(state);
    out.push_str("\n\nOptions:\n");
    for (letter, label) in LETTERS.chars().zip(&record.labels) {
        out.push_str(&format!("{letter}. Decision \"{label}\" -> select\n"));
    }
    out.push_str("\nAnswer with a single letter.");
    out
}

/// The whole prompt.
pub fn prompt(state: &str, record: &Record) -> String {
    chat_open(Some(SYSTEM), &user_text(state, record))
}

/// Text as it is; lists and objects as JSON in their own order. Numbers, booleans and null are no text.
fn shown(content: &Content) -> Option<String> {
    match content {
        Content::Text(text) | Content::Json(Value::String(text)) => Some(text.clone()),
        Content::Json(Value::Null | Value::Bool(_) | Value::Number(_)) => None,
        Content::Json(value) => Some(Dialect::PLAIN.render(value)),
    }
}
