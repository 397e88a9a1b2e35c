//! What is wrong with a request, each with its code, reason and field, on both faces.

use deltagate_mesh::error::{Code, ServiceError};
use deltagate_proto::v1::{
    ChoiceCriteria, ClassifyRequest, ClassifyStreamRequest, Content, Question, ScoreCriteria,
    question::Criteria,
};
use serde_json::json;

use crate::support::{
    mesh::{Mesh, ready, ready_with},
    requests::{SMALL_BODY, ask, choice, json as json_content, small, text, wide},
};

fn fields(error: &ServiceError) -> Vec<(&str, &str)> {
    error
        .fields
        .iter()
        .map(|field| (field.field.as_str(), field.reason.as_ref()))
        .collect()
}

async fn refused(mesh: &Mesh, request: ClassifyRequest) -> ServiceError {
    let error = mesh.classify(request).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error:?}");
    error
}

#[tokio::test]
async fn every_field_of_a_grpc_request_is_checked() {
    let mesh = ready().await;
    let with = |change: &dyn Fn(&mut ClassifyRequest)| {
        let mut request = ask(vec![choice("q0", &["a", "b"]), choice("q1", &["a", "b"])]);
        change(&mut request);
        request
    };
    let options = |request: &mut ClassifyRequest, names: &[&str]| {
        request.questions[1].criteria = choice("x", names).criteria;
    };
    let score = |levels: Vec<Content>| Some(Criteria::Score(ScoreCriteria { levels }));
    let long_name = "x".repeat(201);
    let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    type Change<'a> = &'a dyn Fn(&mut ClassifyRequest);
    let cases: &[(Change<'_>, &str, &str)] = &[
        (&|r| r.state = None, "state", "MISSING"),
        (&|r| r.state = Some(Content::default()), "state", "MISSING"),
        (&|r| r.state = Some(text(" \n")), "state", "EMPTY_STATE"),
        (&|r| r.state = Some(json_content("null")), "state", "EMPTY_STATE"),
        (
            &|r| r.state = Some(json_content(r#"{"a":1,"a":2}"#)),
            "state.json",
            "DUPLICATE_KEY",
        ),
        (
            &|r| r.state = Some(json_content("NaN")),
            "state.json",
            "INVALID_JSON",
        ),
        (
            &|r| r.state = Some(json_content(r#""\ud800""#)),
            "state.json",
            "INVALID_JSON",
        ),
        (
            &|r| r.state = Some(json_content(&deep)),
            "state.json",
            "JSON_TOO_DEEP",
        ),
        (
            &|r| r.state = Some(json_content("1 2")),
            "state.json",
            "INVALID_JSON",
        ),
        (&|r| r.questions.clear(), "questions", "QUESTION_COUNT"),
        (
            &|r| r.questions = vec![choice("q", &["a", "b"]); 65],
            "questions",
            "QUESTION_COUNT",
        ),
        (
            &|r| r.questions[1].id = "q0".into(),
            "questions[1].id",
            "DUPLICATE_ID",
        ),
        (
            &|r| r.questions[1].id = String::new(),
            "questions[1].id",
            "INVALID_ID",
        ),
        (
            &|r| r.questions[1].id = "i".repeat(201),
            "questions[1].id",
            "INVALID_ID",
        ),
        (&|r| r.questions[1].criteria = None, "questions[1]", "MISSING"),
        (
            &|r| r.questions[1].instructions = None,
            "questions[1].instructions",
            "MISSING",
        ),
        (
            &|r| r.questions[1].instructions = Some(Content::default()),
            "questions[1].instructions",
            "MISSING",
        ),
        (
            &|r| r.questions[1].criteria = Some(Criteria::Choice(ChoiceCriteria::default())),
            "questions[1].choice.options",
            "OPTION_COUNT",
        ),
        (
            &|r| r.questions[1].criteria = wide(256).questions[0].criteria.clone(),
            "questions[1].choice.options",
            "OPTION_COUNT",
        ),
        (
            &|r| options(r, &["a", "a"]),
            "questions[1].choice.options[1].name",
            "DUPLICATE_OPTION",
        ),
        (
            &|r| options(r, &[" ", "a"]),
            "questions[1].choice.options[0].name",
            "INVALID_OPTION_NAME",
        ),
        (
            &|r| options(r, &["a\nb", "a"]),
            "questions[1].choice.options[0].name",
            "INVALID_OPTION_NAME",
        ),
        (
            &|r| options(r, &["a", &long_name]),
            "questions[1].choice.options[1].name",
            "INVALID_OPTION_NAME",
        ),
        (
            &|r| r.questions[1].criteria = score(vec![text("one")]),
            "questions[1].score.levels",
            "LEVEL_COUNT",
        ),
        (
            &|r| r.questions[1].criteria = score(vec![text("l"); 11]),
            "questions[1].score.levels",
            "LEVEL_COUNT",
        ),
        (
            &|r| r.questions[1].criteria = score(vec![text("l"), json_content("{")]),
            "questions[1].score.levels[1].json",
            "INVALID_JSON",
        ),
    ];
    for (change, field, reason) in cases {
        let error = refused(&mesh, with(change)).await;
        assert_eq!(fields(&error), [(*field, *reason)], "{error:?}");
        assert_eq!(error.reason, "INVALID_REQUEST");
    }
    assert!(
        mesh.executor.calls().is_empty(),
        "nothing of that reached the executor"
    );
}

#[tokio::test]
async fn several_faults_are_all_named() {
    let mesh = ready().await;
    let mut request = ask(vec![
        choice("q", &["a", "b"]),
        Question {
            id: "z".into(),
            ..Default::default()
        },
    ]);
    request.state = None;
    request.questions[0].instructions = Some(json_content("]"));
    let error = refused(&mesh, request).await;
    assert_eq!(
        fields(&error),
        [
            ("questions[0].instructions.json", "INVALID_JSON"),
            ("questions[1]", "MISSING")
        ]
    );
}

#[tokio::test]
async fn fields_of_a_stream_lie_under_request() {
    let mesh = ready().await;
    for (request, field) in [
        (None, "request"),
        (
            Some(ClassifyRequest {
                state: None,
                ..small()
            }),
            "request.state",
        ),
    ] {
        let status = mesh
            .client()
            .classify_stream(ClassifyStreamRequest { request })
            .await
            .unwrap_err();
        let error = ServiceError::from(&status);
        assert_eq!(
            (error.code, error.fields[0].field.as_str()),
            (Code::InvalidArgument, field)
        );
    }
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let mesh = ready().await;
    let error = mesh
        .classify(ClassifyRequest {
            model: "other".into(),
            ..small()
        })
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::NotFound, "MODEL_NOT_FOUND")
    );
    assert_eq!(fields(&error), [("model", "MODEL_NOT_FOUND")]);
    let http = mesh
        .post(&SMALL_BODY.replacen('{', r#"{"model":"other","#, 1))
        .await;
    assert_eq!(http.status, 404);
    assert_eq!(http.json()["detail"][0]["loc"], json!(["body", "model"]));
}

#[tokio::test]
async fn a_model_must_be_named_when_there_are_two() {
    let mesh = ready().await;
    mesh.capability.shown.send_modify(|shown| {
        let mut second = shown.snapshots[0].clone();
        second.instance_id = "executor-2".into();
        second.model.as_mut().unwrap().name = "maxi".into();
        shown.snapshots.push(second);
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let error = refused(&mesh, small()).await;
    assert_eq!(fields(&error), [("model", "MODEL_REQUIRED")]);
    assert!(error.message.contains("maxi, mini"), "{}", error.message);
    assert!(
        mesh.classify(ClassifyRequest {
            model: "mini".into(),
            ..small()
        })
        .await
        .is_ok()
    );
}

#[tokio::test]
async fn a_prompt_beyond_the_model_is_refused_and_never_cut() {
    let mesh = ready().await;
    let request = ClassifyRequest {
        state: Some(text(&"x".repeat(5000))),
        ..small()
    };
    let error = refused(&mesh, request).await;
    assert_eq!(error.reason, "PROMPT_TOO_LONG");
    let http = mesh
        .post(&SMALL_BODY.replace("some state", &"x".repeat(5000)))
        .await;
    assert_eq!(
        (http.status, http.json()["detail"][0]["type"].as_str()),
        (422, Some("prompt_too_long"))
    );
    assert!(mesh.executor.calls().is_empty());
}

#[tokio::test]
async fn limits_of_permit_and_gateway_are_refusals() {
    let mesh = ready_with(|config| config.limits.max_step_tokens = 400).await;
    let error = refused(
        &mesh,
        ask(vec![
            choice("a", &["x", "y"]),
            choice("b", &["x", "y"]),
            choice("c", &["x", "y"]),
        ]),
    )
    .await;
    assert_eq!(
        (error.reason.as_ref(), error.fields[0].field.as_str()),
        ("PROMPT_TOO_LONG", "questions")
    );
    assert!(mesh.classify(small()).await.is_ok());
    mesh.policy.change(|said| said.max_plan_tokens = 100);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(refused(&mesh, small()).await.reason, "PROMPT_TOO_LONG");
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused() {
    let mesh = ready_with(|config| config.limits.max_body_bytes = 10_000).await;
    let request = ClassifyRequest {
        state: Some(text(&"x".repeat(20_000))),
        ..small()
    };
    let error = mesh.classify(request).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfRange);
    let http = mesh
        .post(&SMALL_BODY.replace("some state", &"x".repeat(20_000)))
        .await;
    assert_eq!(http.status, 413);
}

#[tokio::test]
async fn http_follows_the_rules_of_the_family() {
    let mesh = ready().await;
    let body = |state: &str, question: &str| format!(r#"{{"state":{state},"questions":{{"q":{question}}}}}"#);
    let fine = r#"{"type":"choice","instructions":"?","criteria":{"a":null,"b":null}}"#;
    // Duplicate keys: the last wins. An empty state is allowed. One option needs no run.
    for ok in [
        body(r#"{"a":1,"a":2}"#, fine),
        body(r#""""#, fine),
        body("[]", r#"{"criteria":{"a":null},"instructions":"?"}"#),
        body("{}", r#"{"type":"bool","question":"?"}"#),
        body(
            "{}",
            r#"{"type":"score","criteria":{"1":"x","0":"y"},"instructions":"?"}"#,
        ),
    ] {
        let response = mesh.post(&ok).await;
        assert_eq!(response.status, 200, "{ok}: {}", response.body);
    }
    for (bad, status, loc, kind) in [
        ("{".to_owned(), 400, json!(["body"]), "invalid_json"),
        ("[]".to_owned(), 400, json!(["body"]), "wrong_type"),
        (
            r#"{"state":"x","questions":{}}"#.to_owned(),
            400,
            json!(["body", "questions"]),
            "wrong_type",
        ),
        (
            r#"{"state":"x","questions":[1]}"#.to_owned(),
            400,
            json!(["body", "questions"]),
            "wrong_type",
        ),
        (
            format!(r#"{{"questions":{{"q":{fine}}}}}"#),
            422,
            json!(["body", "state"]),
            "missing",
        ),
        (body("1e999", fine), 400, json!(["body"]), "invalid_json"),
        (
            body("1", r#"{"type":"box"}"#),
            422,
            json!(["body", "questions", 0, "type"]),
            "unsupported_type",
        ),
        (
            body("1", r#"{"criteria":{"a":null,"b":null}}"#),
            422,
            json!(["body", "questions", 0, "instructions"]),
            "missing",
        ),
        (
            body("1", r#"{"criteria":{},"instructions":"?"}"#),
            422,
            json!(["body", "questions", 0, "criteria"]),
            "option_count",
        ),
        (
            body("1", r#"{"criteria":{"a":1," ":2},"instructions":"?"}"#),
            422,
            json!(["body", "questions", 0, "criteria", 1]),
            "invalid_option_name",
        ),
        (
            SMALL_BODY.replacen('{', r#"{"thinking":true,"#, 1),
            422,
            json!(["body", "thinking"]),
            "unsupported_thinking",
        ),
        (
            SMALL_BODY.replacen('{', r#"{"images":["x"],"#, 1),
            422,
            json!(["body", "images"]),
            "unsupported_media",
        ),
        (
            SMALL_BODY.replacen('{', r#"{"model":5,"#, 1),
            422,
            json!(["body", "model"]),
            "wrong_type",
        ),
    ] {
        let response = mesh.post(&bad).await;
        assert_eq!(response.status, status, "{bad}: {}", response.body);
        let detail = &response.json()["detail"][0];
        assert_eq!(
            (&detail["loc"], detail["type"].as_str()),
            (&loc, Some(kind)),
            "{bad}"
        );
        assert!(response.json()["error"].is_string());
    }
}
