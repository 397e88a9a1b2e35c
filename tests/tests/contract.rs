//! The gRPC contract as a client sees it: health, reflection, error details, deadlines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use deltagate_mesh::ServiceError;
use deltagate_proto::v1::{
    ClassifyRequest, ClassifyStreamRequest, Content, KernelFamily, Question, answer,
    classifier_service_client::ClassifierServiceClient, content,
};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, Service},
    requests::{as_systemone, choice, json_content, small, text, ticket, yes_no},
};
use serde_json::json;
use tonic::Code;
use tonic_types::StatusExt;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

#[tokio::test(flavor = "multi_thread")]
async fn every_service_has_health_and_reflection() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    for service in Service::ALL {
        let port = service.port(&cluster.ports);
        assert!(
            calls::service_serving(port, service).await.unwrap(),
            "{}",
            service.name()
        );
        let unknown = calls::serving(port, "deltagate.v1.Nothing").await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound, "{}", service.name());
        let wanted = [service.entry(), "grpc.health.v1.Health"];
        for (version, list) in [("v1", list_v1(port).await), ("v1alpha", list_v1alpha(port).await)] {
            for name in wanted {
                assert!(
                    list.iter().any(|l| l == name),
                    "{} {version} does not list {name}: {list:?}",
                    service.name()
                );
            }
        }
        assert!(
            describes(port, service.entry()).await,
            "{}: reflection cannot describe itself",
            service.name()
        );
    }
    for family in (1..=10).map(|i| KernelFamily::try_from(i).unwrap()) {
        let name = family
            .as_str_name()
            .trim_start_matches("KERNEL_FAMILY_")
            .to_lowercase();
        assert!(
            calls::serving(cluster.ports.executor, &format!("deltagate.kernel.{name}"))
                .await
                .unwrap(),
            "{name}"
        );
    }
}

/// Services by reflection v1.
async fn list_v1(port: u16) -> Vec<String> {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(calls::channel(port).unwrap());
    let mut answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    match answers.message().await.unwrap().unwrap().message_response {
        Some(MessageResponse::ListServicesResponse(list)) => {
            list.service.into_iter().map(|s| s.name).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Whether reflection v1 gives the file of a symbol.
async fn describes(port: u16, symbol: &str) -> bool {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
    };
    let mut client = ServerReflectionClient::new(calls::channel(port).unwrap());
    let mut answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    matches!(
        answers.message().await.unwrap().unwrap().message_response,
        Some(MessageResponse::FileDescriptorResponse(files)) if !files.file_descriptor_proto.is_empty()
    )
}

/// Services by reflection v1alpha.
async fn list_v1alpha(port: u16) -> Vec<String> {
    use tonic_reflection::pb::v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(calls::channel(port).unwrap());
    let mut answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    match answers.message().await.unwrap().unwrap().message_response {
        Some(MessageResponse::ListServicesResponse(list)) => {
            list.service.into_iter().map(|s| s.name).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A name of a broken request, the request, and the field that must be named.
type Broken = (&'static str, ClassifyRequest, &'static str);

fn broken_requests() -> Vec<Broken> {
    let with = |change: &dyn Fn(&mut ClassifyRequest)| {
        let mut request = ticket();
        change(&mut request);
        request
    };
    let state = |kind: Option<content::Kind>| with(&|r| r.state = Some(Content { kind: kind.clone() }));
    let json = |text: &str| state(Some(content::Kind::Json(text.to_owned())));
    vec![
        ("no state", with(&|r| r.state = None), "state"),
        ("a state of no kind", state(None), "state"),
        (
            "a blank state",
            state(Some(content::Kind::Text(" \n\t".to_owned()))),
            "state",
        ),
        ("a state that is no JSON", json("{\"a\":"), "state"),
        ("NaN", json("{\"a\": NaN}"), "state"),
        ("a lone surrogate", json("{\"a\": \"\\ud800\"}"), "state"),
        ("a duplicate key", json("{\"a\": 1, \"a\": 2}"), "state"),
        (
            "65 levels",
            json(&format!("{}1{}", "[".repeat(65), "]".repeat(65))),
            "state",
        ),
        ("no question", with(&|r| r.questions.clear()), "questions"),
        (
            "65 questions",
            with(&|r| r.questions = (0..65).map(|i| yes_no(&format!("q{i}"), "?")).collect()),
            "questions",
        ),
        (
            "the same id again",
            with(&|r| r.questions[1].id = "team".to_owned()),
            "questions[1].id",
        ),
        ("no id", with(&|r| r.questions[2].id.clear()), "questions[2].id"),
        (
            "a long id",
            with(&|r| r.questions[0].id = "i".repeat(201)),
            "questions[0].id",
        ),
        (
            "no criteria",
            with(&|r| r.questions[0].criteria = None),
            "questions[0]",
        ),
        (
            "no option",
            with(&|r| r.questions[0] = choice("team", "?", &[])),
            "questions[0].choice.options",
        ),
        (
            "256 options",
            with(&|r| {
                let names: Vec<_> = (0..256).map(|i| format!("o{i}")).collect();
                let options: Vec<_> = names.iter().map(|n| (n.as_str(), None)).collect();
                r.questions[0] = choice("team", "?", &options);
            }),
            "questions[0].choice.options",
        ),
        (
            "the same option again",
            with(&|r| r.questions[0] = choice("team", "?", &[("a", None), ("b", None), ("a", None)])),
            "questions[0].choice.options[2].name",
        ),
        (
            "a blank option",
            with(&|r| r.questions[0] = choice("team", "?", &[("a", None), ("  ", None)])),
            "questions[0].choice.options[1].name",
        ),
        (
            "an option of two lines",
            with(&|r| r.questions[0] = choice("team", "?", &[("a\nb", None), ("c", None)])),
            "questions[0].choice.options[0].name",
        ),
        (
            "one level",
            with(&|r| r.questions[1] = levels(1)),
            "questions[1].score.levels",
        ),
        (
            "11 levels",
            with(&|r| r.questions[1] = levels(11)),
            "questions[1].score.levels",
        ),
        (
            "instructions of no kind",
            with(&|r| r.questions[1].instructions = Some(Content { kind: None })),
            "questions[1].instructions",
        ),
    ]
}

fn levels(count: usize) -> Question {
    use deltagate_proto::v1::{ScoreCriteria, question};
    let levels = (0..count).map(|i| text(&format!("level {i}"))).collect();
    Question {
        id: "severity".to_owned(),
        instructions: Some(text("How severe?")),
        criteria: Some(question::Criteria::Score(ScoreCriteria { levels })),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_where_and_why_and_quote_nothing() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let gateway = cluster.ports.gateway;

    for (name, request, field) in broken_requests() {
        let status = calls::classify(gateway, request.clone()).await.expect_err(name);
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status:?}");
        let info = status
            .get_details_error_info()
            .unwrap_or_else(|| panic!("{name}: no ErrorInfo"));
        assert_eq!(
            (info.domain.as_str(), info.reason.as_str()),
            ("deltagate.dev", "INVALID_REQUEST"),
            "{name}"
        );
        let bad = status
            .get_details_bad_request()
            .unwrap_or_else(|| panic!("{name}: no BadRequest"));
        let fields: Vec<_> = bad.field_violations.iter().map(|v| v.field.as_str()).collect();
        assert!(
            fields.iter().any(|f| f.starts_with(field)),
            "{name}: {fields:?} do not name {field}"
        );
        assert!(
            bad.field_violations.iter().all(|v| !v.description.is_empty()),
            "{name}: {bad:?}"
        );
        assert!(
            !format!("{status:?}").contains("charged twice"),
            "{name} is quoted: {status:?}"
        );

        // The stream refuses the same, one level deeper.
        let mut client = ClassifierServiceClient::new(calls::channel(gateway).unwrap());
        let refused = match client
            .classify_stream(ClassifyStreamRequest {
                request: Some(request),
            })
            .await
        {
            Err(status) => status,
            Ok(stream) => stream.into_inner().message().await.expect_err(name),
        };
        assert_eq!(refused.code(), Code::InvalidArgument, "{name}: {refused:?}");
        let deeper = ServiceError::from(&refused).fields;
        assert!(
            deeper
                .iter()
                .any(|f| f.field.starts_with(&format!("request.{field}"))),
            "{name}: {deeper:?}"
        );
    }
    let mut client = ClassifierServiceClient::new(calls::channel(gateway).unwrap());
    let status = client
        .classify_stream(ClassifyStreamRequest { request: None })
        .await
        .err()
        .unwrap();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");

    // A model that is not served.
    let mut foreign = ticket();
    foreign.model = "gpt-19".to_owned();
    let status = calls::classify(gateway, foreign).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::NotFound, "MODEL_NOT_FOUND"),
        "{status:?}"
    );
    assert!(!format!("{status:?}").contains("gpt-19"), "{status:?}");

    // A prompt that is longer than the model: refused, never cut.
    let mut long = small("x");
    long.state = Some(json_content(
        &json!({"words": "one two three four ".repeat(5_000)}),
    ));
    let status = calls::classify(gateway, long).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "PROMPT_TOO_LONG"),
        "{status:?}"
    );

    // Deadlines, as the server itself says them.
    let mut slow = small(&"The customer writes again about the same invoice. ".repeat(100));
    slow.questions = (0..6)
        .map(|i| yes_no(&format!("q{i}"), "Is it about an invoice?"))
        .collect();
    let timed = |timeout: &'static str, request: &ClassifyRequest| {
        let request = request.clone();
        async move {
            calls::with_timeout(
                gateway,
                "deltagate.v1.ClassifierService/Classify",
                &request,
                timeout,
            )
            .await
        }
    };
    for timeout in ["0n", "1n", "1m", "20m"] {
        let asked = Instant::now();
        let status = timed(timeout, &slow).await.unwrap();
        let said = (status.code(), reason(&status));
        assert_eq!(
            said,
            (Code::DeadlineExceeded, "DEADLINE_EXCEEDED".to_owned()),
            "{timeout}: {status:?}"
        );
        let stage = ServiceError::from(&status).fact("stage").map(str::to_owned);
        assert!(stage.is_some_and(|s| !s.is_empty()), "{timeout}: {status:?}");
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{timeout}: {:?}",
            asked.elapsed()
        );
    }
    assert_eq!(timed("soon", &slow).await.unwrap().code(), Code::InvalidArgument);
    // The same with time enough: nothing was left busy, or in a bad state.
    assert_eq!(timed("30S", &slow).await.unwrap().code(), Code::Ok);

    // And after all this it still answers the ordinary request.
    let answers = calls::classify(gateway, ticket()).await.unwrap();
    assert_eq!(answers.answers.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_options_are_a_tournament_and_names_come_back_byte_for_byte() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let gateway = cluster.ports.gateway;

    let names: Vec<_> = (0..60).map(|i| format!("département {i} ☂")).collect();
    let options: Vec<_> = names.iter().map(|n| (n.as_str(), None)).collect();
    let mut request = small("I was charged twice for order #4411.");
    request.questions = vec![choice("q\u{0}ü", "Which department?", &options)];
    let response = calls::classify(gateway, request.clone()).await.unwrap();
    assert_eq!(response.answers[0].question_id, "q\u{0}ü");
    let Some(answer::Answer::Choice(chosen)) = &response.answers[0].answer else {
        panic!("{response:?}")
    };
    let returned: Vec<_> = chosen.probabilities.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(returned, names);
    let sum: f64 = chosen.probabilities.iter().map(|p| p.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let best = chosen
        .probabilities
        .iter()
        .rev()
        .max_by(|a, b| a.probability.total_cmp(&b.probability))
        .unwrap();
    assert_eq!(chosen.choice, best.name);
    assert!((0.0..=1.0).contains(&chosen.confidence));

    // Two rounds: the stream shows the steps.
    let mut client = ClassifierServiceClient::new(calls::channel(gateway).unwrap());
    let mut events = client
        .classify_stream(ClassifyStreamRequest {
            request: Some(request),
        })
        .await
        .unwrap()
        .into_inner();
    let (mut steps, mut accepted) = (std::collections::BTreeSet::new(), 0);
    while let Some(event) = events.message().await.unwrap() {
        use deltagate_proto::v1::classify_stream_response::Event;
        match event.event.unwrap() {
            Event::Accepted(_) => accepted += 1,
            Event::Segment(s) => drop(steps.insert(s.step)),
            Event::Answers(again) => {
                assert_eq!(as_systemone(&again.answers), as_systemone(&response.answers))
            }
        }
    }
    assert_eq!((accepted, steps.into_iter().collect::<Vec<_>>()), (1, vec![0, 1]));

    // One option needs no pass.
    let mut request = small("x");
    request.questions = vec![choice("only", "Which?", &[("this", None)])];
    let response = calls::classify(gateway, request).await.unwrap();
    let answers = as_systemone(&response.answers);
    assert_eq!(
        answers["only"],
        json!({"type": "choice", "choice": "this", "confidence": 1.0, "probabilities": {"this": 1.0}})
    );
    assert_eq!(response.usage.unwrap().input_tokens, 0);
}
