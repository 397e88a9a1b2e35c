//! The fields around the questions.

use serde_json::{Map, Value};

use super::{Rules, question};
use crate::{Content, DecisionRequest, RequestError, RequestErrorKind, Violation, parse_json};

/// A parsed body.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemOneRequest {
    /// The model asked for; `None` when absent, null or empty: the default one.
    pub model: Option<String>,
    /// The request, within the limits of the rules.
    pub request: DecisionRequest,
}

/// Parses the bytes of a body.
///
/// `Malformed` errors: not UTF-8, not JSON, not an object, `questions` not a non-empty object. `Unanswerable`: all else.
pub fn parse_body(bytes: &[u8], rules: &Rules) -> Result<SystemOneRequest, RequestError> {
    let malformed = |reason, message: String| RequestError::malformed(Violation::new([], reason, message));
    let text =
        std::str::from_utf8(bytes).map_err(|_| malformed("INVALID_UTF8", "the body is not UTF-8".into()))?;
    let value =
        parse_json(text, &rules.json).map_err(|error| malformed(error.kind.reason(), error.to_string()))?;
    let Value::Object(mut body) = value else {
        return Err(malformed("WRONG_TYPE", "the body is not a JSON object".into()));
    };
    let questions = match body.remove("questions") {
        Some(Value::Object(questions)) if !questions.is_empty() => questions,
        _ => {
            let message = "questions must be a non-empty object";
            return Err(RequestError::malformed(Violation::new(
                ["questions".into()],
                "WRONG_TYPE",
                message,
            )));
        }
    };

    let mut found = Vec::new();
    let model = match body.remove("model") {
        None | Some(Value::Null) => None,
        Some(Value::String(model)) => Some(model).filter(|model| !model.is_empty()),
        Some(_) => {
            found.push(Violation::new(
                ["model".into()],
                "WRONG_TYPE",
                "model must be a string",
            ));
            None
        }
    };
    check_extras(&body, &mut found);
    if let Some(field) = rules.not_true(&body) {
        found.push(Violation::new(
            [field.into()],
            "UNSUPPORTED_VALUE",
            "only true is supported",
        ));
    }
    let truncate_state = match body.remove("x_truncate_state") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(allowed)) => allowed,
        Some(_) => {
            let message = "x_truncate_state must be true or false";
            found.push(Violation::new(["x_truncate_state".into()], "WRONG_TYPE", message));
            false
        }
    };
    let state = body.remove("state").map(Content::from);
    if state.is_none() {
        found.push(Violation::new(["state".into()], "MISSING", "state is required"));
    }
    // Before any question is looked at: thousands of them would make thousands of violations.
    let (count, max) = (questions.len(), rules.limits.max_questions);
    if count > max {
        let message = format!("1 to {max} questions are allowed, got {count}");
        found.push(Violation::new(["questions".into()], "QUESTION_COUNT", message));
        return Err(RequestError {
            kind: RequestErrorKind::Unanswerable,
            violations: found,
        });
    }
    let mut parsed = Vec::with_capacity(questions.len());
    for (index, (id, value)) in questions.into_iter().enumerate() {
        match question::parse(index, id, value, rules) {
            Ok(question) => parsed.push(question),
            Err(violation) => found.push(violation),
        }
    }
    RequestError::unless_empty(found)?;
    let request = DecisionRequest {
        state,
        questions: parsed,
        truncate_state,
    };
    rules.limits.check(&request)?;
    Ok(SystemOneRequest { model, request })
}

/// Fields that would change the answer and that nothing here can honour.
fn check_extras(body: &Map<String, Value>, found: &mut Vec<Violation>) {
    for key in ["assets", "images"] {
        let empty = match body.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(_) => false,
        };
        if !empty {
            found.push(Violation::new(
                [key.into()],
                "UNSUPPORTED_MEDIA",
                "this model reads text only",
            ));
        }
    }
    let thinking = match body.get("thinking") {
        None | Some(Value::Null) => false,
        Some(Value::Object(map)) => map.get("enabled") != Some(&Value::Bool(false)),
        Some(_) => true,
    };
    if thinking {
        let message = "only {\"enabled\": false} is supported";
        found.push(Violation::new(
            ["thinking".into()],
            "UNSUPPORTED_THINKING",
            message,
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ChoiceOption, Criteria};

    const Q: &str = r#""questions":{"q":{"instructions":"?","criteria":{"a":null,"b":{"k":1}}}}"#;

    fn parse(body: &str) -> Result<SystemOneRequest, RequestError> {
        parse_body(body.as_bytes(), &Rules::default())
    }

    fn refusal(body: &str) -> (u16, String, &'static str) {
        let error = parse(body).unwrap_err();
        (error.http_status(), error.violations[0].field(), error.reason())
    }

    #[test]
    fn a_plain_body() {
        let parsed = parse(&format!(r#"{{"model":"m","state":"x",{Q},"zzz":1}}"#)).unwrap();
        assert_eq!(parsed.model.as_deref(), Some("m"));
        assert_eq!(parsed.request.state, Some(Content::Text("x".into())));
        let question = &parsed.request.questions[0];
        assert_eq!(
            (question.id.as_str(), &question.instructions),
            ("q", &Some(Content::Text("?".into())))
        );
        let option = |name: &str, description| ChoiceOption {
            name: name.into(),
            description,
        };
        let with = Some(Content::Json(serde_json::json!({"k": 1})));
        assert_eq!(
            question.criteria,
            Criteria::Choice(vec![option("a", None), option("b", with)])
        );
    }

    #[test]
    fn the_last_of_duplicate_fields_wins() {
        let parsed = parse(&format!(r#"{{"state":"x",{Q},"state":["y"]}}"#)).unwrap();
        assert_eq!(
            parsed.request.state,
            Some(Content::Json(serde_json::json!(["y"])))
        );
    }

    #[test]
    fn thinking_and_media() {
        for ok in [
            r#"null"#,
            r#"{"enabled":false}"#,
            r#"{"enabled":false,"budget":1}"#,
        ] {
            assert!(
                parse(&format!(r#"{{"state":"x",{Q},"thinking":{ok}}}"#)).is_ok(),
                "{ok}"
            );
        }
        for bad in [
            "true",
            "false",
            "{}",
            r#"{"enabled":true}"#,
            r#"{"enabled":null}"#,
        ] {
            let got = refusal(&format!(r#"{{"state":"x",{Q},"thinking":{bad}}}"#));
            assert_eq!(got, (422, "thinking".into(), "UNSUPPORTED_THINKING"), "{bad}");
        }
        for ok in ["null", "[]", "{}"] {
            assert!(
                parse(&format!(r#"{{"state":"x",{Q},"images":{ok},"assets":{ok}}}"#)).is_ok(),
                "{ok}"
            );
        }
        for key in ["images", "assets"] {
            let got = refusal(&format!(r#"{{"state":"x",{Q},"{key}":["aGk="]}}"#));
            assert_eq!(got, (422, key.into(), "UNSUPPORTED_MEDIA"));
        }
    }

    #[test]
    fn model_and_state() {
        for ok in ["null", r#""""#] {
            assert_eq!(
                parse(&format!(r#"{{"model":{ok},"state":null,{Q}}}"#))
                    .unwrap()
                    .model,
                None
            );
        }
        assert_eq!(
            refusal(&format!(r#"{{"model":1,"state":"x",{Q}}}"#)),
            (422, "model".into(), "WRONG_TYPE")
        );
        assert_eq!(refusal(&format!("{{{Q}}}")), (422, "state".into(), "MISSING"));
    }

    #[test]
    fn unreadable_bodies_are_malformed() {
        assert_eq!(
            parse_body(b"\xff", &Rules::default()).unwrap_err().reason(),
            "INVALID_UTF8"
        );
        assert_eq!(refusal("[]"), (400, String::new(), "WRONG_TYPE"));
        assert_eq!(
            refusal(r#"{"state":1e999}"#),
            (400, String::new(), "INVALID_JSON")
        );
        assert_eq!(refusal(&"[".repeat(100)), (400, String::new(), "JSON_TOO_DEEP"));
    }

    #[test]
    fn what_was_cut_is_asked_for_in_so_many_words() {
        let parse = |value: &str| parse(&format!(r#"{{"state":"x",{Q},"x_truncate_state":{value}}}"#));
        for (value, allowed) in [("true", true), ("false", false), ("null", false)] {
            assert_eq!(parse(value).unwrap().request.truncate_state, allowed, "{value}");
        }
        for value in ["1", r#""true""#, "{}"] {
            let error = parse(value).unwrap_err();
            assert_eq!(
                (error.reason(), error.violations[0].field().as_str()),
                ("WRONG_TYPE", "x_truncate_state")
            );
        }
    }

    #[test]
    fn a_refusal_stays_short_however_much_is_wrong() {
        let names: Vec<String> = (0..255).map(|i| format!(r#""{i}\n":null"#)).collect();
        let questions: Vec<String> = (0..64)
            .map(|i| format!(r#""q{i}":{{"criteria":{{{}}}}}"#, names.join(",")))
            .collect();
        let body = format!(r#"{{"state":"x","questions":{{{}}}}}"#, questions.join(","));
        assert_eq!(parse(&body).unwrap_err().violations.len(), crate::MAX_VIOLATIONS);
    }

    #[test]
    fn limits_name_the_question_by_position() {
        let many: Vec<String> = (0..65).map(|i| format!(r#""q{i}":{{"type":"noul"}}"#)).collect();
        let got = refusal(&format!(r#"{{"state":"x","questions":{{{}}}}}"#, many.join(",")));
        assert_eq!(got, (422, "questions".into(), "QUESTION_COUNT"));
        let many: Vec<String> = (0..256).map(|i| format!(r#""o{i}":null"#)).collect();
        let body = format!(
            r#"{{"state":"x","questions":{{"q":{{"criteria":{{{}}}}}}}}}"#,
            many.join(",")
        );
        assert_eq!(
            refusal(&body),
            (422, "questions[0].choice.options".into(), "OPTION_COUNT")
        );
        let error =
            parse(r#"{"state":"x","questions":{"":{"type":"noul"},"q":{"criteria":{"a":1,"b\n":2}}}}"#)
                .unwrap_err();
        assert_eq!(error.kind, RequestErrorKind::Unanswerable);
        assert_eq!(
            error.to_string(),
            "questions[0]: an id has 1 to 200 bytes, got 0; questions[1].criteria[1]: an option name has a line break"
        );
    }
}
