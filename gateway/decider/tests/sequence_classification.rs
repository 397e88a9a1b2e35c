//! The plain classification head: what it reads, and what it refuses because it would not read it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{Answer, DeciderError, Family, Projection, RequestError, family};
use serde_json::json;
use support::{assert_near, context, drive_rows};

fn heads() -> Arc<dyn Family> {
    family(
        "sequence_classification",
        &json!({"labels": ["spam", "ham", "other one", "4"]}),
    )
    .unwrap()
}

fn refusal(body: &str) -> RequestError {
    let request = parse_body(body.as_bytes(), &heads().systemone_rules())
        .unwrap()
        .request;
    match heads().start(&request, &context().1) {
        Err(DeciderError::Request(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{body}"),
    }
}

#[test]
fn labels_of_a_question_compete_and_the_text_is_the_prompt() {
    let body = r#"{"state":" Buy now! ","questions":{
        "all":{"type":"choice","criteria":["4","spam","ham","other one"]},
        "two":{"type":"choice","instructions":null,"criteria":{"ham":null,"spam":""}}}}"#;
    let request = parse_body(body.as_bytes(), &heads().systemone_rules())
        .unwrap()
        .request;
    let (answers, plans) = drive_rows(&*heads(), &request, &context().1, |_, sequence| {
        let Projection::DecisionHead(rows) = &sequence.projection else {
            panic!()
        };
        // The logit of row n is n / 2.
        rows.iter().map(|row| *row as f32 / 2.0).collect()
    })
    .unwrap();
    assert_eq!(plans.len(), 1);
    let rows: Vec<_> = plans[0]
        .sequences
        .iter()
        .map(|sequence| sequence.projection.clone())
        .collect();
    assert_eq!(
        rows,
        [
            Projection::DecisionHead(vec![3, 0, 1, 2]),
            Projection::DecisionHead(vec![1, 0])
        ]
    );
    let explained = heads().explain(&request, &context().1).unwrap();
    assert_eq!(explained[0].text, " Buy now! ");
    assert_eq!(explained[1].spans["rows"], json!([1, 0]));
    let Answer::Choice {
        choice,
        probabilities,
        confidence,
        own_confidence,
    } = &answers.answers[1].1
    else {
        panic!()
    };
    assert_eq!((choice.as_str(), own_confidence), ("ham", &None));
    let p = 1.0 / (1.0 + (-0.5f64).exp());
    assert_near(
        &json!([probabilities[0].1, probabilities[1].1]),
        &json!([p, 1.0 - p]),
        "two labels",
    );
    assert_near(&json!(confidence), &json!(2.0 * p - 1.0), "confidence");
    assert!(matches!(&answers.answers[0].1, Answer::Choice { choice, .. } if choice == "4"));
}

#[test]
fn what_the_head_would_not_read_is_refused() {
    for (body, reason, field) in [
        (
            r#"{"state":{"a":1},"questions":{"q":{"type":"choice","criteria":["spam","ham"]}}}"#,
            "WRONG_TYPE",
            "state",
        ),
        (
            r#"{"state":"","questions":{"q":{"type":"choice","criteria":["spam","ham"]}}}"#,
            "EMPTY_STATE",
            "state",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"choice","instructions":"Is it?","criteria":["spam","ham"]}}}"#,
            "UNSUPPORTED",
            "questions[0].instructions",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"choice","criteria":{"spam":"bad","ham":null}}}}"#,
            "UNSUPPORTED",
            "questions[0].choice.options[0].description",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"choice","criteria":["spam","Ham"]}}}"#,
            "UNKNOWN_LABEL",
            "questions[0].choice.options[1].name",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul"}}}"#,
            "UNSUPPORTED_TYPE",
            "questions[0].type",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"score","criteria":["spam","ham"]}}}"#,
            "UNSUPPORTED_TYPE",
            "questions[0].type",
        ),
    ] {
        let error = refusal(body);
        let violation = &error.violations[0];
        assert_eq!(
            (violation.reason, violation.field().as_str()),
            (reason, field),
            "{body}"
        );
    }
    for labels in [json!(["one"]), json!(["a", "a"]), json!([1, 2]), json!("a")] {
        assert!(
            family("sequence_classification", &json!({"labels": labels})).is_err(),
            "{labels}"
        );
    }
}
