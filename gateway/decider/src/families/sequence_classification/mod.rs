//! A plain classification head, as `transformers` trains it: one text, one logit per label from the last hidden row.
//!
//! It reads the state and nothing else, so a question is a choice among its labels: instructions, descriptions and other kinds
//! of question would silently change nothing, and are refused. The text is the prompt, without any wrapping: what stands around it
//! belongs to how the head was trained, and only the caller knows that. The logits of the labels that a question names compete
//! with each other; other labels of the head take no part.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::families::each::{Asked, EachQuestion, Reading};
use crate::families::encoded::Encoded;
use crate::families::keys::fault;
use crate::systemone::Rules;
use crate::{
    Content, Criteria, Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext,
    FamilyError, Limits, PathSegment, Projection, Question, RequestError, Shown, Violation,
};

/// Its id.
pub const ID: &str = "sequence_classification";

/// What the family needs to know of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Label of each row of the head, all different. Empty without a model: any name is then taken for a label.
    pub labels: Vec<String>,
}

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct SequenceClassification {
    config: Arc<Config>,
}

impl SequenceClassification {
    /// From `{"labels": [...]}`.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        let config = Config::deserialize(config).map_err(|error| fault("", error.to_string()))?;
        let different: BTreeSet<&String> = config.labels.iter().collect();
        if config.labels.len() < 2 || different.len() != config.labels.len() {
            return Err(fault("labels", "has less than two labels, or one twice"));
        }
        Ok(SequenceClassification {
            config: Arc::new(config),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub fn without_model() -> Self {
        SequenceClassification {
            config: Arc::default(),
        }
    }

    /// Validates a request and encodes its prompts.
    fn encode(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<(Vec<u32>, Encoded)>, DeciderError> {
        Limits::default().check(request)?;
        let mut found = Vec::new();
        let text = match request.state.as_ref().and_then(Content::as_text) {
            Some(text) if !text.is_empty() => text,
            Some(_) => {
                found.push(Violation::new(
                    ["state".into()],
                    "EMPTY_STATE",
                    "the state is empty",
                ));
                ""
            }
            None => {
                let message = "state must be text: how the head saw other values in training is not known";
                found.push(Violation::new(["state".into()], "WRONG_TYPE", message));
                ""
            }
        };
        let mut rows = Vec::new();
        for (index, question) in request.questions.iter().enumerate() {
            rows.push(self.rows(index, question, &mut found));
        }
        RequestError::unless_empty(found)?;
        let mut encoded = Vec::with_capacity(rows.len());
        for (index, rows) in rows.into_iter().enumerate() {
            let render = |state: &str| state.to_owned();
            encoded.push((
                rows,
                Encoded::new(index, text, request.truncate_state, cx, &render)?,
            ));
        }
        Ok(encoded)
    }

    /// Rows of the head for the options of question number `index`.
    fn rows(&self, index: usize, question: &Question, found: &mut Vec<Violation>) -> Vec<u32> {
        let mut refuse = |path: &[PathSegment], reason, message: &str| {
            found.push(Violation::in_question(index, path, reason, message));
        };
        let says_something = |content: &Content| !content.is_null() && content.as_text() != Some("");
        if question.instructions.as_ref().is_some_and(says_something) {
            let message = "this model reads the state only, and instructions would change nothing";
            refuse(&["instructions".into()], "UNSUPPORTED", message);
        }
        let Criteria::Choice(options) = &question.criteria else {
            refuse(
                &["type".into()],
                "UNSUPPORTED_TYPE",
                "this model answers choice questions only",
            );
            return Vec::new();
        };
        let mut rows = Vec::with_capacity(options.len());
        for (position, option) in options.iter().enumerate() {
            let at = |field: &'static str| -> [PathSegment; 4] {
                ["choice".into(), "options".into(), position.into(), field.into()]
            };
            if option.description.as_ref().is_some_and(says_something) {
                let message = "this model reads the state only, and descriptions would change nothing";
                refuse(&at("description"), "UNSUPPORTED", message);
            }
            let row = match &self.config.labels[..] {
                [] => Some(position),
                labels => labels.iter().position(|label| *label == option.name),
            };
            match row.and_then(|row| u32::try_from(row).ok()) {
                Some(row) => rows.push(row),
                None => refuse(&at("name"), "UNKNOWN_LABEL", "is no label of this model"),
            }
        }
        rows
    }
}

impl Family for SequenceClassification {
    fn id(&self) -> &'static str {
        ID
    }

    /// Nothing: no token is named, and none is added.
    fn check(&self, _: &FamilyContext) -> Result<(), FamilyError> {
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        Rules::default()
    }

    fn shows(&self) -> Shown {
        Shown::State
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        if self.config.labels.is_empty() {
            let message = "without a model's labels the family renders prompts and answers nothing";
            return Err(RequestError::unanswerable(Violation::new([], "NO_DECISION_HEAD", message)).into());
        }
        let encoded = self.encode(request, cx)?;
        let asked = request
            .questions
            .iter()
            .zip(encoded)
            .map(|(question, (rows, encoded))| Asked {
                question: question.clone(),
                token_ids: encoded.ids,
                truncated: encoded.truncated,
                projection: Projection::DecisionHead(rows),
            });
        let reading = Reading {
            temperature: 1.0,
            side_true: 0,
            noncausal_full_attention: false,
            own_confidence: None,
        };
        Ok(Box::new(EachQuestion::new(asked.collect(), reading)))
    }

    /// One sequence per question, the same for all. `spans` holds `rows`, the row of the head for each option where the model is known,
    /// and `truncated_tokens` if the state was cut.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let explained = self.encode(request, cx)?.into_iter().zip(&request.questions);
        let explained = explained.map(|((rows, encoded), question)| {
            let rows = if self.config.labels.is_empty() {
                Value::Null
            } else {
                rows.into()
            };
            encoded.explain(&question.id, None, Map::from_iter([("rows".to_owned(), rows)]))
        });
        Ok(explained.collect())
    }
}
