//! Requests of both faces with one thing in them that the case is about; all else is fine.

use deltagate_proto::v1::{
    ChoiceCriteria, ChoiceOption, ClassifyRequest, Content, Question, content, question,
};
use deltagate_tests::requests::{choice, text, yes_no};
use serde_json::{Value, json};

use crate::faces::MARK;

pub(crate) fn state(state: Content) -> ClassifyRequest {
    ClassifyRequest {
        state: Some(state),
        questions: vec![yes_no("q", MARK)],
        ..Default::default()
    }
}

pub(crate) fn document(json: &str) -> Content {
    Content {
        kind: Some(content::Kind::Json(json.to_owned())),
    }
}

pub(crate) fn with(question: Question) -> ClassifyRequest {
    ClassifyRequest {
        state: Some(text(MARK)),
        questions: vec![question],
        ..Default::default()
    }
}

pub(crate) fn options(names: &[String]) -> Question {
    let options = names.iter().map(|name| ChoiceOption {
        name: name.clone(),
        description: None,
    });
    Question {
        criteria: Some(question::Criteria::Choice(ChoiceCriteria {
            options: options.collect(),
        })),
        ..choice("q", MARK, &[])
    }
}

pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{MARK} {i}")).collect()
}

/// A body about this state (JSON text), with one question that is fine.
pub(crate) fn about(state: &str) -> String {
    format!(r#"{{"state":{state},"questions":{{"q":{{"type":"noul","instructions":"{MARK}"}}}}}}"#)
}

/// A body with this question (JSON text).
pub(crate) fn asking(question: &str) -> String {
    format!(r#"{{"state":"{MARK}","questions":{{"q":{question}}}}}"#)
}

pub(crate) fn choosing(names: &[String]) -> String {
    let criteria: serde_json::Map<_, _> = names.iter().map(|n| (n.clone(), Value::Null)).collect();
    asking(&json!({"type": "choice", "instructions": MARK, "criteria": criteria}).to_string())
}
