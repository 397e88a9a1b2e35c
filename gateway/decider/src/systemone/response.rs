//! Bodies of responses.

use serde_json::{Map, Value, json};

use crate::{Answer, Answers, Content, PathSegment, RequestError};

/// The body of a 200: `model`, `answers` and `usage`, then `extras` (server-specific fields such as `x_...` or
/// `latency_ms`; one with a name of the contract is dropped).
pub fn render_response(model: &str, answers: &Answers, extras: Map<String, Value>) -> Value {
    let mut by_id = Map::new();
    for (id, answer) in &answers.answers {
        by_id.insert(id.clone(), render_answer(answer));
    }
    let mut usage = json!({
        "input_tokens": answers.usage.input_tokens,
        "output_tokens": answers.usage.output_tokens,
    });
    if answers.usage.truncated_tokens > 0 {
        usage["truncated_tokens"] = answers.usage.truncated_tokens.into();
    }
    let mut body = Map::new();
    body.insert("model".into(), model.into());
    body.insert("answers".into(), by_id.into());
    body.insert("usage".into(), usage);
    for (key, value) in extras {
        body.entry(key).or_insert(value);
    }
    body.into()
}

fn render_answer(answer: &Answer) -> Value {
    match answer {
        Answer::Choice {
            choice,
            confidence,
            own_confidence,
            probabilities,
        } => {
            let probabilities: Map<_, _> = probabilities
                .iter()
                .map(|(name, p)| (name.clone(), json!(p)))
                .collect();
            let mut answer = json!({"type": "choice", "choice": choice, "confidence": confidence, "probabilities": probabilities});
            if let Some(own) = own_confidence {
                answer["x_confidence"] = json!(own);
            }
            answer
        }
        Answer::Score {
            score,
            confidence,
            own_confidence,
            probabilities,
            level_fit,
            legend,
        } => {
            let legend = by_level(legend.iter().map(Content::to_value));
            let probabilities = by_level(probabilities.iter().map(|p| json!(p)));
            let mut answer = json!({"type": "score", "score": score, "confidence": confidence, "legend": legend, "probabilities": probabilities});
            if let Some(own) = own_confidence {
                answer["x_confidence"] = json!(own);
            }
            if let Some(fit) = level_fit {
                answer["x_level_fit"] = by_level(fit.iter().map(|p| json!(p))).into();
            }
            answer
        }
        Answer::Noul { noul } => json!({"type": "noul", "noul": noul}),
    }
}

/// Values by level, as `"0"`, `"1"` and so on.
pub(crate) fn by_level(values: impl Iterator<Item = Value>) -> Map<String, Value> {
    values
        .enumerate()
        .map(|(level, value)| (level.to_string(), value))
        .collect()
}

/// The body of a 400 or 422: `{"error": ..., "detail": [{"loc": ["body", ...], "msg": ..., "type": ...}]}`.
pub fn refusal_body(error: &RequestError) -> Value {
    let detail: Vec<Value> = error
        .violations
        .iter()
        .map(|violation| {
            let path = violation.http_path().into_iter().map(|segment| match segment {
                PathSegment::Key(key) => Value::from(key),
                PathSegment::Index(index) => Value::from(index),
            });
            let loc: Vec<Value> = std::iter::once(Value::from("body")).chain(path).collect();
            json!({"loc": loc, "msg": violation.message, "type": violation.reason.to_ascii_lowercase()})
        })
        .collect();
    json!({"error": error.summary(), "detail": detail})
}

/// The body of any other error, in the same form. `reason` is an upper-case code such as `QUEUE_FULL`.
pub fn error_body(reason: &str, message: &str) -> Value {
    json!({"error": message, "detail": [{"loc": ["body"], "msg": message, "type": reason.to_ascii_lowercase()}]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Usage, Violation};

    #[test]
    fn a_response_of_every_type() {
        let choice = Answer::Choice {
            choice: "b".into(),
            confidence: 0.5,
            own_confidence: Some(0.75),
            probabilities: vec![("b".into(), 0.75), ("a".into(), 0.25)],
        };
        let legend = vec![Content::Text("low".into()), Content::Json(json!({"at": 1}))];
        let score = Answer::Score {
            score: 1.0,
            confidence: 1.0,
            own_confidence: None,
            probabilities: vec![0.0, 1.0],
            level_fit: Some(vec![0.25, 0.5]),
            legend,
        };
        let answers = Answers {
            answers: vec![
                ("z".into(), choice),
                ("a".into(), score),
                ("n".into(), Answer::Noul { noul: 0.1 }),
            ],
            usage: Usage {
                input_tokens: 7,
                output_tokens: 0,
                truncated_tokens: 3,
            },
        };
        let extras = [("x_note".to_owned(), json!(1)), ("usage".to_owned(), json!(2))]
            .into_iter()
            .collect();
        assert_eq!(
            render_response("m", &answers, extras).to_string(),
            concat!(
                r#"{"model":"m","answers":{"#,
                r#""z":{"type":"choice","choice":"b","confidence":0.5,"probabilities":{"b":0.75,"a":0.25},"x_confidence":0.75},"#,
                r#""a":{"type":"score","score":1.0,"confidence":1.0,"legend":{"0":"low","1":{"at":1}},"probabilities":{"0":0.0,"1":1.0},"x_level_fit":{"0":0.25,"1":0.5}},"#,
                r#""n":{"type":"noul","noul":0.1}},"usage":{"input_tokens":7,"output_tokens":0,"truncated_tokens":3},"x_note":1}"#
            )
        );
    }

    #[test]
    fn a_refusal_names_places_and_reasons() {
        let path = ["questions", "choice", "options"].map(PathSegment::Key);
        let [questions, choice, options] = path;
        let violation = Violation::new(
            [questions, 2.into(), choice, options, 5.into(), "name".into()],
            "INVALID_OPTION_NAME",
            "blank",
        );
        assert_eq!(
            refusal_body(&RequestError::unanswerable(violation)).to_string(),
            r#"{"error":"questions[2].criteria[5]: blank","detail":[{"loc":["body","questions",2,"criteria",5],"msg":"blank","type":"invalid_option_name"}]}"#
        );
        assert_eq!(
            error_body("QUEUE_FULL", "the queue is full").to_string(),
            r#"{"error":"the queue is full","detail":[{"loc":["body"],"msg":"the queue is full","type":"queue_full"}]}"#
        );
    }
}
