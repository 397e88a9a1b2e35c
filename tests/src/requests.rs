//! Requests that the tests ask, in both shapes.

use deltagate_proto::v1::{
    Answer, ChoiceCriteria, ChoiceOption, ClassifyRequest, Content, NoulCriteria, Question, ScoreCriteria,
    answer, content, question,
};
use serde_json::{Map, Value, json};

/// Three questions about one ticket, one of each kind, as the body of `POST /v1/systemone`.
pub fn ticket_body() -> Value {
    json!({
        "state": {"ticket": "I was charged twice for order #4411.", "amount": 12.5, "tags": ["billing", "app"]},
        "questions": {
            "team": {
                "type": "choice",
                "instructions": "Which team should handle this ticket?",
                "criteria": {
                    "shipping": "Delivery and tracking",
                    "billing": "Payments, refunds and invoices",
                    "other": null,
                },
            },
            "severity": {
                "type": "score",
                "instructions": "How severe is the impact?",
                "criteria": ["cosmetic", "annoying", "blocks the customer"],
            },
            "urgent": {"type": "noul", "instructions": "Should this ticket be answered today?"},
        },
    })
}

/// The same over gRPC.
pub fn ticket() -> ClassifyRequest {
    ClassifyRequest {
        model: String::new(),
        state: Some(json_content(&ticket_body()["state"])),
        questions: vec![
            choice(
                "team",
                "Which team should handle this ticket?",
                &[
                    ("shipping", Some("Delivery and tracking")),
                    ("billing", Some("Payments, refunds and invoices")),
                    ("other", None),
                ],
            ),
            Question {
                id: "severity".to_owned(),
                instructions: Some(text("How severe is the impact?")),
                criteria: Some(question::Criteria::Score(ScoreCriteria {
                    levels: ["cosmetic", "annoying", "blocks the customer"]
                        .into_iter()
                        .map(text)
                        .collect(),
                })),
            },
            yes_no("urgent", "Should this ticket be answered today?"),
        ],
        truncate_state: false,
    }
}

/// One question about one text: the cheapest request.
pub fn small(state: &str) -> ClassifyRequest {
    ClassifyRequest {
        model: String::new(),
        state: Some(text(state)),
        questions: vec![choice(
            "team",
            "Which team should handle this ticket?",
            &[
                ("shipping", Some("Delivery and tracking")),
                ("billing", Some("Payments and refunds")),
            ],
        )],
        truncate_state: false,
    }
}

/// A choice question.
pub fn choice(id: &str, instructions: &str, options: &[(&str, Option<&str>)]) -> Question {
    Question {
        id: id.to_owned(),
        instructions: Some(text(instructions)),
        criteria: Some(question::Criteria::Choice(ChoiceCriteria {
            options: options
                .iter()
                .map(|(name, description)| ChoiceOption {
                    name: (*name).to_owned(),
                    description: description.map(text),
                })
                .collect(),
        })),
    }
}

/// A yes/no question without descriptions.
pub fn yes_no(id: &str, instructions: &str) -> Question {
    Question {
        id: id.to_owned(),
        instructions: Some(text(instructions)),
        criteria: Some(question::Criteria::Noul(NoulCriteria::default())),
    }
}

/// Plain text.
pub fn text(text: &str) -> Content {
    Content {
        kind: Some(content::Kind::Text(text.to_owned())),
    }
}

/// A JSON document.
pub fn json_content(value: &Value) -> Content {
    Content {
        kind: Some(content::Kind::Json(value.to_string())),
    }
}

/// Answers of the gRPC face in the shape of the HTTP face: id → `type` and values. Levels are keys.
pub fn as_systemone(answers: &[Answer]) -> Value {
    let one = |answer: &Answer| match answer.answer.as_ref() {
        Some(answer::Answer::Choice(c)) => {
            let p: Map<_, _> = c
                .probabilities
                .iter()
                .map(|p| (p.name.clone(), json!(p.probability)))
                .collect();
            json!({"type": "choice", "choice": c.choice, "confidence": c.confidence, "probabilities": p})
        }
        Some(answer::Answer::Score(s)) => {
            let level = |l: &deltagate_proto::v1::LevelProbability| l.level.to_string();
            let p: Map<_, _> = s
                .probabilities
                .iter()
                .map(|p| (level(p), json!(p.probability)))
                .collect();
            let legend: Map<_, _> = s
                .probabilities
                .iter()
                .map(|p| (level(p), value(p.legend.as_ref())))
                .collect();
            json!({"type": "score", "score": s.score, "confidence": s.confidence, "legend": legend, "probabilities": p})
        }
        Some(answer::Answer::Noul(n)) => json!({"type": "noul", "noul": n.noul}),
        None => Value::Null,
    };
    Value::Object(answers.iter().map(|a| (a.question_id.clone(), one(a))).collect())
}

fn value(content: Option<&Content>) -> Value {
    match content.and_then(|c| c.kind.as_ref()) {
        Some(content::Kind::Text(text)) => json!(text),
        Some(content::Kind::Json(text)) => serde_json::from_str(text).unwrap_or_default(),
        None => Value::Null,
    }
}

/// The largest difference between two numbers at the same place; an error when the shapes or the texts differ.
pub fn largest_difference(a: &Value, b: &Value) -> Result<f64, String> {
    let over = |pairs: Vec<(&Value, &Value)>| {
        pairs
            .into_iter()
            .try_fold(0.0f64, |most, (a, b)| Ok(most.max(largest_difference(a, b)?)))
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => Ok((a - b).abs()),
            _ => Err(format!("{a} and {b} are no f64")),
        },
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => over(a.iter().zip(b).collect()),
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            over(a.values().zip(b.values()).collect())
        }
        _ if a == b => Ok(0.0),
        _ => Err(format!("{a} is not {b}")),
    }
}
