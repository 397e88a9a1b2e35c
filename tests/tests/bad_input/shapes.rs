//! Questions, options and their numbers.

use deltagate_proto::v1::{ClassifyRequest, Question, ScoreCriteria, question};
use deltagate_tests::requests::{text, yes_no};
use prost::Message;
use serde_json::json;

use crate::{
    faces::{Faces, MARK, framed},
    requests::{about, asking, choosing, names, options, state, with},
};

pub(crate) async fn shapes(faces: &mut Faces) {
    let none = ClassifyRequest {
        questions: Vec::new(),
        ..state(text(MARK))
    };
    faces
        .grpc("no questions", &none, "InvalidArgument questions QUESTION_COUNT")
        .await;
    for (case, questions) in [
        ("no questions", "{}"),
        ("questions a list", "[]"),
        ("questions null", "null"),
    ] {
        let body = format!(r#"{{"state":"{MARK}","questions":{questions}}}"#);
        faces.http(case, body, "400 body.questions wrong_type").await;
    }
    let many = |n: usize| (0..n).map(|i| yes_no(&format!("q{i}"), MARK)).collect::<Vec<_>>();
    let request = ClassifyRequest {
        questions: many(65),
        ..state(text(MARK))
    };
    faces
        .grpc(
            "65 questions",
            &request,
            "InvalidArgument questions QUESTION_COUNT",
        )
        .await;
    let all: Vec<_> = (0..65).map(|i| format!(r#""q{i}":{{"type":"noul"}}"#)).collect();
    let body = format!(r#"{{"state":"{MARK}","questions":{{{}}}}}"#, all.join(","));
    faces
        .http("65 questions", body, "422 body.questions question_count")
        .await;
    let untyped = Question {
        criteria: None,
        ..yes_no("q", MARK)
    };
    faces
        .grpc("no type", &with(untyped), "InvalidArgument questions[0] MISSING")
        .await;
    faces
        .http(
            "unknown type",
            asking(&format!(r#"{{"type":"{MARK}"}}"#)),
            "422 body.questions.0.type unsupported_type",
        )
        .await;
    faces
        .http(
            "type a number",
            asking(r#"{"type":5}"#),
            "422 body.questions.0.type wrong_type",
        )
        .await;
    faces
        .http(
            "a question that is none",
            asking("7"),
            "422 body.questions.0 wrong_type",
        )
        .await;
    let twice = ClassifyRequest {
        questions: vec![yes_no("q", MARK), yes_no("q", MARK)],
        ..state(text(MARK))
    };
    faces
        .grpc(
            "an id twice",
            &twice,
            "InvalidArgument questions[1].id DUPLICATE_ID",
        )
        .await;
    let body = format!(r#"{{"state":"{MARK}","questions":{{"q":7,"q":{{"type":"noul"}}}}}}"#);
    faces.http("an id twice", body, "200").await;
    let levels = |n: usize| Question {
        criteria: Some(question::Criteria::Score(ScoreCriteria {
            levels: vec![text(MARK); n],
        })),
        ..yes_no("q", MARK)
    };
    for n in [0, 1, 2, 10, 11] {
        let fine = (2..=10).contains(&n);
        let grpc = if fine {
            "OK"
        } else {
            "InvalidArgument questions[0].score.levels LEVEL_COUNT"
        };
        let http = if fine {
            "200"
        } else {
            "422 body.questions.0.criteria level_count"
        };
        faces.grpc(&format!("{n} levels"), &with(levels(n)), grpc).await;
        let question = json!({"type": "score", "instructions": MARK, "criteria": vec![MARK; n]});
        faces
            .http(&format!("{n} levels"), asking(&question.to_string()), http)
            .await;
    }
    // A field that this version does not know, of each wire type: proto3 ignores it.
    let mut message = state(text(MARK)).encode_to_vec();
    message.extend(b"\xc0\x3e\x01\xca\x3e\x06zqxjkv\xd1\x3e\0\0\0\0\0\0\0\0\xdd\x3e\0\0\0\0");
    faces.bytes("unknown fields", &framed(&message), "OK").await;
    let body = about("1").replacen('{', &format!(r#"{{"{MARK}":{{"a":[{MARK:?}]}},"#), 1);
    faces.http("unknown fields", body, "200").await;
}

pub(crate) async fn choices(faces: &mut Faces) {
    for n in [0, 1, 26, 27, 255, 256] {
        let case = format!("{n} options");
        let fine = (1..=255).contains(&n);
        let grpc = if fine {
            "OK"
        } else {
            "InvalidArgument questions[0].choice.options OPTION_COUNT"
        };
        let http = if fine {
            "200"
        } else {
            "422 body.questions.0.criteria option_count"
        };
        faces.grpc(&case, &with(options(&names(n))), grpc).await;
        faces.http(&case, choosing(&names(n)), http).await;
    }
    let listed = |names: &[String]| asking(&json!({"instructions": MARK, "criteria": names}).to_string());
    for (n, http) in [(1, false), (2, true), (26, true), (27, false)] {
        let expected = if http {
            "200"
        } else {
            "422 body.questions.0.criteria option_count"
        };
        faces
            .http(&format!("a list of {n} names"), listed(&names(n)), expected)
            .await;
    }
    let same = vec![MARK.to_owned(), MARK.to_owned()];
    let twice = "InvalidArgument questions[0].choice.options[1].name DUPLICATE_OPTION";
    faces.grpc("identical names", &with(options(&same)), twice).await;
    faces
        .http(
            "identical names in a list",
            listed(&same),
            "422 body.questions.0.criteria option_count",
        )
        .await;
    let body = asking(&format!(
        r#"{{"instructions":"{MARK}","criteria":{{"a":7,"a":null,"b":null}}}}"#
    ));
    faces.http("identical names", body, "200").await;
    for (case, name, fine) in [
        ("a line feed", "a\nb", false),
        ("a carriage return", "a\rb", false),
        ("NUL and escape", "a\0\u{1b}[31mb", true),
        ("U+2028", "a\u{2028}b", true),
        ("nothing but a space", "\u{3000}", false),
        ("201 characters", &"é".repeat(201), false),
        ("200 characters", &"é".repeat(200), true),
    ] {
        let names = [name.to_owned(), MARK.to_owned()];
        let grpc = if fine {
            "OK"
        } else {
            "InvalidArgument questions[0].choice.options[0].name INVALID_OPTION_NAME"
        };
        let http = if fine {
            "200"
        } else {
            "422 body.questions.0.criteria.0 invalid_option_name"
        };
        faces
            .grpc(&format!("a name with {case}"), &with(options(&names)), grpc)
            .await;
        faces
            .http(&format!("a name with {case}"), choosing(&names), http)
            .await;
    }
}
