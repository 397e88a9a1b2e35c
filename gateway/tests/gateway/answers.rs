//! Answers of both faces, rounds of a tournament, and progress.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use deltagate_proto::v1::{self, ClassifyStreamRequest, answer::Answer, classify_stream_response::Event};
use serde_json::{Value, json};

use crate::support::{
    executor::logit,
    mesh::{ready, ready_with},
    requests::{ALL_TYPES_BODY, all_types, ask, choice, small, wide, wide_body},
};

/// A gRPC answer in the form of the HTTP body.
fn as_http(answer: v1::Answer) -> (String, Value) {
    let value = match answer.answer.unwrap() {
        Answer::Choice(choice) => {
            let probabilities: serde_json::Map<_, _> = choice
                .probabilities
                .iter()
                .map(|p| (p.name.clone(), json!(p.probability)))
                .collect();
            json!({"type": "choice", "choice": choice.choice, "confidence": choice.confidence, "probabilities": probabilities})
        }
        Answer::Score(score) => {
            let probabilities: serde_json::Map<_, _> = score
                .probabilities
                .iter()
                .map(|p| (p.level.to_string(), json!(p.probability)))
                .collect();
            let legend: serde_json::Map<_, _> = score
                .probabilities
                .iter()
                .map(|p| {
                    let value = match p.legend.clone().unwrap().kind.unwrap() {
                        v1::content::Kind::Text(text) => json!(text),
                        v1::content::Kind::Json(text) => serde_json::from_str(&text).unwrap(),
                    };
                    (p.level.to_string(), value)
                })
                .collect();
            json!({"type": "score", "score": score.score, "confidence": score.confidence, "legend": legend, "probabilities": probabilities})
        }
        Answer::Noul(noul) => json!({"type": "noul", "noul": noul.noul}),
    };
    (answer.question_id, value)
}

#[tokio::test]
async fn both_faces_give_the_same_answers() {
    let mesh = ready().await;
    let grpc = mesh.classify(all_types()).await.unwrap();
    let http = mesh.post(ALL_TYPES_BODY).await;
    assert_eq!(http.status, 200, "{}", http.body);
    let body = http.json();

    let answers: Vec<_> = grpc.answers.into_iter().map(as_http).collect();
    let ids: Vec<&str> = answers.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["team", "severity", "urgent"]);
    let from_grpc: serde_json::Map<String, Value> = answers.into_iter().collect();
    assert_eq!(Value::Object(from_grpc), body["answers"]);

    let usage = grpc.usage.unwrap();
    assert_eq!(
        body["usage"],
        json!({"input_tokens": usage.input_tokens, "output_tokens": 0})
    );
    assert_eq!((grpc.model.as_str(), &body["model"]), ("mini", &json!("mini")));
    assert_eq!(
        (
            grpc.capability_fingerprint.as_str(),
            &body["capability_fingerprint"]
        ),
        ("fp-1", &json!("fp-1"))
    );

    // Both made the same plan: the executor saw the same tokens twice.
    let calls = mesh.executor.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].request.sequences, calls[1].request.sequences);
    let tokens: usize = calls[0]
        .request
        .sequences
        .iter()
        .map(|sequence| sequence.token_ids.len())
        .sum();
    assert_eq!(tokens as u64, usage.input_tokens);
}

#[tokio::test]
async fn the_answer_is_the_softmax_of_the_executors_logits() {
    let mesh = ready().await;
    let response = mesh.classify(small()).await.unwrap();
    let sequence = &mesh.executor.calls()[0].request.sequences[0];
    // Temperature 1.5, as the model card says for choices.
    let weights: Vec<f64> = (0..3)
        .map(|i| (f64::from(logit(&sequence.token_ids, i)) / 1.5).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    let Some(Answer::Choice(choice)) = &response.answers[0].answer else {
        panic!("a choice")
    };
    for (probability, weight) in choice.probabilities.iter().zip(&weights) {
        assert!((probability.probability - weight / sum).abs() < 1e-12);
    }
    // The prompt ends with the suffix of the chat template: its special tokens are single ids.
    assert_eq!(sequence.token_ids[0], 256);
    assert_eq!(sequence.token_ids.iter().filter(|id| **id >= 256).count(), 7);
}

#[tokio::test]
async fn timings_say_where_the_time_went() {
    let mesh = ready().await;
    let response = mesh.classify(small()).await.unwrap();
    let timings = response.timings.unwrap();
    let seconds = |value: Option<prost_types::Duration>| Duration::try_from(value.unwrap()).unwrap();
    assert_eq!(seconds(timings.queue), Duration::from_micros(10));
    assert_eq!(seconds(timings.forward), Duration::from_micros(500));
    assert!(seconds(timings.tokenize) > Duration::ZERO && seconds(timings.policy) > Duration::ZERO);
    assert!(seconds(timings.total) > seconds(timings.tokenize) + seconds(timings.policy));
    assert_eq!(timings.kernels.len(), 1);
    assert_eq!(
        (timings.kernels[0].backend.as_str(), timings.kernels[0].launches),
        ("cpu.chunked", 6)
    );
    assert_eq!(
        uuid::Uuid::parse_str(&response.request_id)
            .unwrap()
            .get_version_num(),
        7
    );
}

#[tokio::test]
async fn a_tournament_takes_several_steps() {
    let mesh = ready().await;
    let grpc = mesh.classify(wide(255)).await.unwrap();
    let calls = mesh.executor.calls();
    // 255 options: 11 groups, 33 finalists in 2 groups, 6 finalists.
    let sizes: Vec<usize> = calls.iter().map(|call| call.request.sequences.len()).collect();
    assert_eq!(sizes, [11, 2, 1]);
    let kernels = &grpc.timings.as_ref().unwrap().kernels;
    assert_eq!(kernels[0].launches, 18, "kernels add up over steps");
    let tokens: usize = calls
        .iter()
        .flat_map(|call| &call.request.sequences)
        .map(|sequence| sequence.token_ids.len())
        .sum();
    assert_eq!(grpc.usage.as_ref().unwrap().input_tokens, tokens as u64);
    let Some(Answer::Choice(choice)) = &grpc.answers[0].answer else {
        panic!("a choice")
    };
    assert_eq!(choice.probabilities.len(), 255);
    let sum: f64 = choice.probabilities.iter().map(|p| p.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9);

    let http = mesh.post(&wide_body(255)).await.json();
    let (_, expected) = as_http(grpc.answers.into_iter().next().unwrap());
    assert_eq!(http["answers"]["q"], expected);
}

#[tokio::test]
async fn a_choice_of_one_needs_no_run() {
    let mesh = ready().await;
    let response = mesh.classify(ask(vec![choice("q", &["only"])])).await.unwrap();
    assert_eq!(response.usage.unwrap().input_tokens, 0);
    assert_eq!(response.capability_fingerprint, "fp-1");
    assert!(mesh.executor.calls().is_empty());
}

#[tokio::test]
async fn a_stream_tells_progress_and_then_the_answers() {
    let mesh = ready().await;
    let plain = mesh.classify(wide(30)).await.unwrap();
    let request = ClassifyStreamRequest {
        request: Some(wide(30)),
    };
    let mut stream = mesh.client().classify_stream(request).await.unwrap().into_inner();
    let mut accepted = Vec::new();
    let mut segments: BTreeMap<u32, usize> = BTreeMap::new();
    let mut last = None;
    while let Some(response) = stream.message().await.unwrap() {
        assert!(last.is_none(), "answers are the last event");
        match response.event.unwrap() {
            Event::Accepted(event) => {
                assert!(segments.is_empty(), "accepted comes first");
                accepted.push(event);
            }
            Event::Segment(event) => *segments.entry(event.step).or_default() += 1,
            Event::Answers(response) => last = Some(response),
        }
    }
    let last = last.unwrap();
    assert_eq!(last.answers, plain.answers);
    assert_eq!(accepted.len(), 1);
    assert_eq!(
        (accepted[0].sequences, &accepted[0].request_id),
        (2, &last.request_id)
    );
    // 30 options: two groups, then the final; two segments each.
    assert_eq!(segments, BTreeMap::from([(0, 4), (1, 2)]));
    // Without a stream the executor is not asked for events.
    let calls = mesh.executor.calls();
    assert!(!calls[0].request.segment_events && calls.last().unwrap().request.segment_events);
}

#[tokio::test]
async fn a_stream_without_a_run_is_accepted_too() {
    let mesh = ready().await;
    let request = ClassifyStreamRequest {
        request: Some(ask(vec![choice("q", &["only"])])),
    };
    let mut stream = mesh.client().classify_stream(request).await.unwrap().into_inner();
    let mut next = async || {
        stream
            .message()
            .await
            .unwrap()
            .and_then(|response| response.event)
    };
    assert!(matches!(next().await, Some(Event::Accepted(event)) if event.sequences == 0));
    assert!(matches!(next().await, Some(Event::Answers(_))));
    assert!(next().await.is_none());
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_the_executor_up() {
    let mesh = ready().await;
    mesh.executor.segments.store(20_000, Ordering::SeqCst);
    let request = ClassifyStreamRequest {
        request: Some(small()),
    };
    let mut stream = mesh.client().classify_stream(request).await.unwrap().into_inner();
    // Far more events than any socket buffers, and nobody reads: the executor must end all the same.
    let begun = std::time::Instant::now();
    crate::support::within(Duration::from_secs(10), "the executor ended", || async {
        mesh.executor.finished.load(Ordering::SeqCst) == 1
    })
    .await;
    println!("the executor ended after {:?}", begun.elapsed());
    let mut count = 0;
    while let Some(response) = stream.message().await.unwrap() {
        count += usize::from(matches!(response.event, Some(Event::Segment(_))));
    }
    assert_eq!(count, 20_000);
}

#[tokio::test]
async fn aliases_and_the_default_name_models() {
    let mesh = ready_with(|config| {
        config.aliases = [("small".to_owned(), "mini".to_owned())].into();
        config.default_model = Some("small".to_owned());
    })
    .await;
    for name in ["", "small", "mini"] {
        let mut request = small();
        request.model = name.into();
        assert_eq!(mesh.classify(request).await.unwrap().model, "mini", "{name}");
    }
}

#[tokio::test]
async fn a_plan_is_cut_to_what_the_permit_allows() {
    let mesh = ready().await;
    let whole = mesh.classify(wide(255)).await.unwrap();
    mesh.policy.change(|said| said.max_plan_sequences = 4);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = mesh.executor.calls().len();
    let cut = mesh.classify(wide(255)).await.unwrap();
    let request = ClassifyStreamRequest {
        request: Some(wide(255)),
    };
    let first = mesh
        .client()
        .classify_stream(request)
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap();
    assert!(
        matches!(first.unwrap().event, Some(Event::Accepted(event)) if event.sequences == 11),
        "the step counts, not its first part"
    );
    let sizes: Vec<usize> = mesh.executor.calls()[before..before + 5]
        .iter()
        .map(|call| call.request.sequences.len())
        .collect();
    assert_eq!(sizes, [4, 4, 3, 2, 1]);
    assert_eq!(cut.answers, whole.answers);
}
