//! Questions -> prompts, byte for byte as the models were trained.

use serde_json::Value;

use super::config::Config;
use crate::json::Dialect;
use crate::python::strip;
use crate::{Content, Criteria, PathSegment, Question, Violation};

/// A question, reduced to what its prompts show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// With what yes and no mean, for a noul that says so.
    pub instructions: String,
    /// The proposed answers, in request order; none for a noul, which has one prompt that proposes nothing.
    pub proposed: Option<Vec<String>>,
}

impl Record {
    /// Of question number `index`.
    pub fn new(index: usize, question: &Question) -> Result<Self, Violation> {
        let fault = |rest: &[PathSegment], reason, message: &str| {
            Violation::in_question(index, rest, reason, message)
        };
        let mut instructions = match &question.instructions {
            None => {
                let message = "instructions are required";
                return Err(fault(&["instructions".into()], "MISSING", message));
            }
            Some(content) => describable(content).ok_or_else(|| {
                let message = "instructions must be text, an object or a list";
                fault(&["instructions".into()], "WRONG_TYPE", message)
            })?,
        };
        let proposed = match &question.criteria {
            Criteria::Choice(options) => {
                let mut proposed = Vec::with_capacity(options.len());
                for (position, option) in options.iter().enumerate() {
                    proposed.push(match &option.description {
                        None => option.name.clone(),
                        Some(content) if content.is_null() => option.name.clone(),
                        Some(content) => {
                            let text = describable(content).ok_or_else(|| {
                                let path = [
                                    "choice".into(),
                                    "options".into(),
                                    position.into(),
                                    "description".into(),
                                ];
                                let message = "a description must be null, text, an object or a list";
                                fault(&path, "WRONG_TYPE", message)
                            })?;
                            format!("{}: {text}", option.name)
                        }
                    });
                }
                Some(proposed)
            }
            Criteria::Score(levels) => Some(levels.iter().map(shown).collect()),
            Criteria::Noul {
                when_true,
                when_false,
            } => {
                let side = |content: &Content, side: &'static str| {
                    describable(content).ok_or_else(|| {
                        let message = "a description must be text, an object or a list";
                        fault(&["noul".into(), side.into()], "WRONG_TYPE", message)
                    })
                };
                match (when_true, when_false) {
                    (None, None) => {}
                    (Some(yes), Some(no)) => {
                        let (yes, no) = (side(yes, "true_description")?, side(no, "false_description")?);
                        instructions.push_str(&format!("\nYes means: {yes}\nNo means: {no}"));
                    }
                    (yes, _) => {
                        let missing = if yes.is_none() {
                            "true_description"
                        } else {
                            "false_description"
                        };
                        let message = "both sides of a noul are described, or neither is";
                        return Err(fault(&["noul".into(), missing.into()], "MISSING", message));
                    }
                }
                None
            }
        };
        Ok(Record {
            instructions,
            proposed,
        })
    }
}

/// The state as prompts show it.
pub fn state_text(state: &Content) -> Result<String, Violation> {
    describable(state).ok_or_else(|| {
        let message = "state must be text, an object or a list";
        Violation::new(["state".into()], "WRONG_TYPE", message)
    })
}

/// The user's turn about candidate number `candidate`; of a noul there is only one.
pub fn user_text(state: &str, record: &Record, candidate: usize) -> String {
    let mut out = format!("Context:\n{state}\n\nQuestion: {}\n", record.instructions);
    match &record.proposed {
        None => out.push_str("Is the answer to this question yes? Answer Yes or No."),
        Some(proposed) => {
            out.push_str("Proposed answer: ");
            out.push_str(proposed.get(candidate).map_or("", String::as_str));
            out.push_str("\nIs this proposed answer correct? Answer Yes or No.");
        }
    }
    out
}

/// The whole prompt.
pub fn prompt(config: &Config, state: &str, record: &Record, candidate: usize) -> String {
    let user = user_text(state, record, candidate);
    [config.chat_prefix.as_str(), strip(&user), &config.chat_suffix].concat()
}

/// Text as it is; anything else as JSON with sorted keys.
fn shown(content: &Content) -> String {
    match content.as_text() {
        Some(text) => text.to_owned(),
        None => Dialect::SORTED.render(&content.to_value()),
    }
}

/// As [`shown`], of what the family takes as a description: no number, boolean or null.
fn describable(content: &Content) -> Option<String> {
    match content {
        Content::Json(Value::Null | Value::Bool(_) | Value::Number(_)) => None,
        _ => Some(shown(content)),
    }
}
