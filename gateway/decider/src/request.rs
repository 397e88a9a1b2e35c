//! A decision request, as all faces of the gateway hand it to a family.

use serde_json::Value;

/// A state and the questions about it.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// What the questions are about. `None`: the request had none, which is refused.
    pub state: Option<Content>,
    /// In request order.
    pub questions: Vec<Question>,
    /// Whether a family may cut the end of the state so that a prompt fits the model. Otherwise it refuses.
    pub truncate_state: bool,
}

/// A value that a prompt shows to the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A JSON document. `Json(Value::String(s))` means the same as `Text(s)` in most families.
    Json(Value),
}

impl Content {
    /// The text, if this is a string in either form.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Content::Text(text) | Content::Json(Value::String(text)) => Some(text),
            Content::Json(_) => None,
        }
    }

    /// True of JSON `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Content::Json(Value::Null))
    }

    /// As a JSON value; text becomes a string.
    pub fn to_value(&self) -> Value {
        match self {
            Content::Text(text) => Value::String(text.clone()),
            Content::Json(value) => value.clone(),
        }
    }
}

impl From<Value> for Content {
    /// Strings become [`Content::Text`].
    fn from(value: Value) -> Self {
        match value {
            Value::String(text) => Content::Text(text),
            other => Content::Json(other),
        }
    }
}

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Unique within the request; given back with the answer.
    pub id: String,
    /// What is asked. `None`: nothing was said; JSON `null` where the request says so, because families differ in what
    /// they make of it.
    pub instructions: Option<Content>,
    /// Its kind and its options.
    pub criteria: Criteria,
}

/// Kind and options of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Criteria {
    /// Exactly one of these options.
    Choice(Vec<ChoiceOption>),
    /// A level on a scale, lowest first.
    Score(Vec<Content>),
    /// True or false, each side optionally described. An explicit JSON `null` is kept.
    Noul {
        /// When the answer is true.
        when_true: Option<Content>,
        /// When the answer is false.
        when_false: Option<Content>,
    },
}

/// One option of a choice question.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceOption {
    /// Returned when chosen.
    pub name: String,
    /// When it fits.
    pub description: Option<Content>,
}
