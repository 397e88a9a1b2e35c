//! Bytes, documents and lengths.

use deltagate_proto::v1::ClassifyRequest;
use deltagate_tests::{
    calls, http,
    requests::{text, yes_no},
};
use prost::Message;
use ureq::http::Method;

use crate::{
    faces::{Faces, MARK, framed, plain},
    requests::{about, document, state, with},
};

pub(crate) async fn unreadable(faces: &mut Faces) {
    let nothing = "InvalidArgument state MISSING questions QUESTION_COUNT";
    faces.bytes("empty message", &framed(b""), nothing).await;
    faces
        .bytes("no message", b"", "InvalidArgument MALFORMED_MESSAGE")
        .await;
    faces.http("empty body", "", "400 body invalid_json").await;
    faces
        .bytes(
            "bad UTF-8",
            &framed(b"\x12\x03\x0a\x01\xff"),
            "InvalidArgument state.kind MALFORMED_MESSAGE",
        )
        .await;
    faces
        .http(
            "bad UTF-8",
            [about("\"").as_bytes(), b"\xff\""].concat(),
            "400 body invalid_utf8",
        )
        .await;
    faces
        .bytes(
            "not a message",
            &framed(b"\xff\xff\xff"),
            "InvalidArgument MALFORMED_MESSAGE",
        )
        .await;
    let unreadable = "InvalidArgument MALFORMED_MESSAGE";
    faces
        .bytes("a frame that is cut", &framed(&[0; 9])[..7], unreadable)
        .await;
    faces
        .bytes("compression that was not told", b"\x01\0\0\0\x01\0", unreadable)
        .await;
    faces
        .bytes("a frame that is none", b"\x07\0\0\0\x01\0", unreadable)
        .await;
    faces
        .http("not JSON", format!("{MARK}{{"), "400 body invalid_json")
        .await;
    faces
        .http("not an object", format!("[\"{MARK}\"]"), "400 body wrong_type")
        .await;
    let large = MARK.repeat(800_000);
    let too_large = framed(&state(text(&large)).encode_to_vec());
    let said = faces.frame(&too_large, "application/grpc").await;
    faces.row("4.8 MB", "gRPC", said.split(' ').next().unwrap(), "OutOfRange");
    faces
        .http(
            "4.8 MB",
            about(&format!("\"{large}\"")),
            "413 body body_too_large",
        )
        .await;
    for kind in ["application/json", "text/plain"] {
        let said = faces
            .frame(&framed(&state(text(MARK)).encode_to_vec()), kind)
            .await;
        faces.row(&format!("content type {kind}"), "gRPC", &said, "HTTP 415");
    }
    faces
        .http_as(
            "content type text/plain",
            "text/plain",
            about("1"),
            "415 body unsupported_content_type",
        )
        .await;
    faces
        .http_as(
            "content type application/grpc",
            "application/grpc",
            about("1"),
            "415 body unsupported_content_type",
        )
        .await;
}

pub(crate) async fn documents(faces: &mut Faces) {
    let deep = |n: usize| format!("{}\"{MARK}\"{}", "[".repeat(n), "]".repeat(n));
    let digits = "7".repeat(400);
    for (case, json, grpc, http) in [
        ("nested 63 deep", deep(63), "OK", "200"),
        // The body of HTTP is one level more.
        ("nested 64 deep", deep(64), "OK", "400 body json_too_deep"),
        (
            "nested 65 deep",
            deep(65),
            "InvalidArgument state.json JSON_TOO_DEEP",
            "400 body json_too_deep",
        ),
        (
            "nested 100,000 deep",
            deep(100_000),
            "InvalidArgument state.json JSON_TOO_DEEP",
            "400 body json_too_deep",
        ),
        (
            "duplicate keys",
            r#"{"a":1,"a":2}"#.into(),
            "InvalidArgument state.json DUPLICATE_KEY",
            "200",
        ),
        (
            "NaN",
            "NaN".into(),
            "InvalidArgument state.json INVALID_JSON",
            "400 body invalid_json",
        ),
        (
            "-Infinity",
            "[-Infinity]".into(),
            "InvalidArgument state.json INVALID_JSON",
            "400 body invalid_json",
        ),
        (
            "1e400",
            "1e400".into(),
            "InvalidArgument state.json INVALID_JSON",
            "400 body invalid_json",
        ),
        ("an integer of 400 digits", digits, "OK", "200"),
        ("1e-400", "1e-400".into(), "OK", "200"),
        (
            "a lone surrogate",
            r#""\ud800""#.into(),
            "InvalidArgument state.json INVALID_JSON",
            "400 body invalid_json",
        ),
        (
            "a control character in a string",
            "\"\u{1}\"".into(),
            "InvalidArgument state.json INVALID_JSON",
            "400 body invalid_json",
        ),
        (
            "a number that serde_json marks",
            r#"{"$serde_json::private::Number":"1"}"#.into(),
            "OK",
            "200",
        ),
        (
            "state null",
            "null".into(),
            "InvalidArgument state EMPTY_STATE",
            "200",
        ),
        ("state true", "true".into(), "OK", "200"),
        ("state 12.5", "12.5".into(), "OK", "200"),
        ("state a string", format!("\"{MARK}\""), "OK", "200"),
        (
            "state a blank string",
            "\" \"".into(),
            "InvalidArgument state EMPTY_STATE",
            "200",
        ),
        ("state []", "[]".into(), "OK", "200"),
        ("state {}", "{}".into(), "OK", "200"),
        ("state an array", "[1,[2,{\"a\":null}]]".into(), "OK", "200"),
        ("state an object", format!("{{\"{MARK}\":[]}}"), "OK", "200"),
    ] {
        faces.grpc(case, &state(document(&json)), grpc).await;
        faces.http(case, about(&json), http).await;
    }
    faces
        .grpc(
            "no state",
            &ClassifyRequest {
                state: None,
                ..state(text(""))
            },
            "InvalidArgument state MISSING",
        )
        .await;
    faces
        .http(
            "no state",
            about("1").replacen("\"state\":1,", "", 1),
            "422 body.state missing",
        )
        .await;
}

pub(crate) async fn lengths(faces: &mut Faces) {
    let long = format!("{MARK} ").repeat(20_000);
    faces
        .grpc(
            "a prompt that is too long",
            &state(text(&long)),
            "InvalidArgument questions[0] PROMPT_TOO_LONG",
        )
        .await;
    let body = about(&format!("\"{long}\""));
    faces
        .http(
            "a prompt that is too long",
            body.clone(),
            "422 body.questions.0 prompt_too_long",
        )
        .await;
    // Both numbers are in the message.
    let answer = http::send(
        Method::POST,
        &faces.http,
        &[("content-type", "application/json")],
        body.clone().into_bytes(),
    );
    let message = plain(&answer.await.unwrap().body["error"]);
    let numbers: Vec<u64> = message
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .collect();
    assert!(
        numbers.contains(&4096) && numbers.iter().any(|n| *n > 20_000),
        "{message}"
    );
    // By opt-in the state is cut, and the answer says by how much.
    let cut = ClassifyRequest {
        truncate_state: true,
        ..state(text(&long))
    };
    faces.grpc("too long, may be cut", &cut, "OK").await;
    let usage = calls::classify(faces.grpc, cut).await.unwrap().usage.unwrap();
    assert!((4000..=4096).contains(&usage.input_tokens), "{usage:?}");
    assert_eq!(
        usage.input_tokens + usage.truncated_tokens,
        *numbers.iter().max().unwrap(),
        "{usage:?}"
    );
    let allowed = body.replacen('{', r#"{"x_truncate_state":true,"#, 1);
    faces.http("too long, may be cut", allowed.clone(), "200").await;
    let answer = http::send(
        Method::POST,
        &faces.http,
        &[("content-type", "application/json")],
        allowed.into_bytes(),
    );
    assert_eq!(
        answer.await.unwrap().body["usage"]["truncated_tokens"],
        usage.truncated_tokens
    );
    let unclear = about("1").replacen('{', r#"{"x_truncate_state":"zqxjkv","#, 1);
    faces
        .http(
            "x_truncate_state a string",
            unclear,
            "422 body.x_truncate_state wrong_type",
        )
        .await;
    // What is not the state is never cut.
    let wordy = ClassifyRequest {
        truncate_state: true,
        ..with(yes_no("q", &long))
    };
    faces
        .grpc(
            "too long without the state",
            &wordy,
            "InvalidArgument questions[0] PROMPT_TOO_LONG",
        )
        .await;
}
