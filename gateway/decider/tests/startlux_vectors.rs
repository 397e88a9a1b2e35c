//! StartLux against vectors made by an independent implementation (tests/fixtures/startlux/make.py).
//! Token counts need the real tokenizer and are compared elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_decider::families::startlux::prompt::{Record, state_text, user_text};
use deltagate_decider::probability::{choice_confidence, score_confidence};
use deltagate_decider::systemone::{parse_body, render_response};
use deltagate_decider::{ChoiceOption, Content, Criteria, DecisionRequest, PathSegment, Question};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use support::{assert_near, context, drive, fixture, plain_startlux, startlux};

fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

fn strings(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap())
        .collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_f64().unwrap())
        .collect()
}

/// Logits of the vectors, which are exact in f32.
fn logits(value: &Value) -> Vec<f32> {
    let exact = |z: f64| {
        assert_eq!(f64::from(z as f32), z);
        z as f32
    };
    floats(value).into_iter().map(exact).collect()
}

#[test]
fn requests() {
    let vectors = fixture("startlux/vectors.json");
    let family = plain_startlux();
    let cases = vectors["requests"].as_array().unwrap();
    assert!(cases.len() >= 50);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let body = case["request"].as_str().unwrap();
        let parsed =
            parse_body(body.as_bytes(), &family.systemone_rules()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let request = parsed.request;
        let state = state_text(request.state.as_ref());
        assert_eq!(state, case["state_text"].as_str().unwrap(), "{name}");

        let (_, cx) = context();
        let mut explained = family.explain(&request, &cx).unwrap().into_iter();
        let (answers, plans) = drive(&*family, &request, &cx, |_, n| {
            (0..n).map(|i| i as f32 / 4.0).collect()
        })
        .unwrap();
        let rendered = render_response("m", &answers, Map::new());
        let wanted = case["questions"].as_object().unwrap();
        assert!(
            rendered["answers"].as_object().unwrap().keys().eq(wanted.keys()),
            "{name}"
        );
        let mut tokens = 0;
        for (index, (id, want)) in wanted.iter().enumerate() {
            let question = &request.questions[index];
            assert_eq!(&question.id, id, "{name}");
            let answer = &rendered["answers"][id];
            assert_eq!(answer["type"], want["type"], "{name}");
            if let Some(legend) = want.get("legend") {
                assert_near(&answer["legend"], legend, name);
            }
            if let Some(known) = want.get("answer") {
                assert_near(answer, known, name);
            }
            for pass in want["passes"].as_array().unwrap() {
                let options = strings(&pass["options"]);
                let record = Record::new(index, question).unwrap();
                let order: Vec<usize> = (0..options.len()).collect();
                let user = user_text(&state, &record, &order);
                assert_eq!(user, pass["user"].as_str().unwrap(), "{name}.{id}");
                assert_eq!(sha256(&user), pass["user_sha256"], "{name}.{id}");
                let sequence = explained.next().unwrap();
                assert_eq!(&sequence.question, id);
                assert_eq!(sequence.text, pass["prompt"].as_str().unwrap(), "{name}.{id}");
                assert_eq!(sha256(&sequence.text), pass["prompt_sha256"], "{name}.{id}");
                assert_eq!(sequence.read, [sequence.ids.len() - 1]);
                let letters = sequence.spans["letters"].as_object().unwrap();
                assert!(
                    letters
                        .values()
                        .map(|v| v.as_str().unwrap())
                        .eq(options.iter().copied()),
                    "{name}.{id}"
                );
                assert_eq!(letters.keys().next().unwrap(), "A");
                tokens += sequence.ids.len() as u64;
            }
        }
        assert_eq!(explained.next(), None, "{name}");
        assert_eq!(answers.usage.input_tokens, tokens, "{name}");
        assert!(
            plans.len() <= 1,
            "{name}: all sequences of a step travel in one plan"
        );
        assert_eq!(
            plans.iter().map(|plan| plan.input_tokens()).sum::<u64>(),
            tokens,
            "{name}"
        );
    }
}

#[test]
fn documented_prompts() {
    let vectors = fixture("startlux/vectors.json");
    let body = vectors["requests"][0]["request"].as_str().unwrap();
    let family = plain_startlux();
    let request = parse_body(body.as_bytes(), &family.systemone_rules())
        .unwrap()
        .request;
    let explained = family.explain(&request, &context().1).unwrap();
    let heads: Vec<String> = explained
        .iter()
        .map(|sequence| sha256(&sequence.text)[..16].to_owned())
        .collect();
    assert_eq!(
        heads,
        ["674258b26a8541fb", "0839895fb1f07199", "589636c756dad410"]
    );
}

#[test]
fn refusals() {
    let vectors = fixture("startlux/vectors.json");
    let family = plain_startlux();
    let cases = vectors["refusals"].as_array().unwrap();
    assert!(cases.len() >= 30);
    for case in cases {
        let (name, body) = (case["name"].as_str().unwrap(), case["request"].as_str().unwrap());
        if case.get("max_length").is_some() {
            continue; // needs the real tokenizer; the refusal itself is tested in startlux_steps.rs
        }
        let refused = parse_body(body.as_bytes(), &family.systemone_rules())
            .map_err(Into::into)
            .and_then(|parsed| {
                let started = family.start(&parsed.request, &context().1);
                started.map(|_| ())
            });
        let error = match refused {
            Err(deltagate_decider::DeciderError::Request(error)) => error,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(
            u64::from(error.http_status()),
            case["status"].as_u64().unwrap(),
            "{name}: {error}"
        );
        // `questions.q.type` -> questions, position of q, type
        let field = case["field"].as_str().unwrap();
        let questions = serde_json::from_str(body)
            .ok()
            .map(|body: Value| body["questions"].clone());
        let mut want: Vec<String> = Vec::new();
        for (depth, part) in field.split('.').filter(|part| *part != "body").enumerate() {
            let position = || {
                questions
                    .as_ref()
                    .unwrap()
                    .as_object()
                    .unwrap()
                    .keys()
                    .position(|key| key == part)
            };
            want.push(if depth == 1 {
                position().unwrap().to_string()
            } else {
                part.to_owned()
            });
        }
        let path: Vec<String> = error.violations[0]
            .http_path()
            .into_iter()
            .map(|segment| match segment {
                PathSegment::Key(key) => key.to_owned(),
                PathSegment::Index(index) => index.to_string(),
            })
            .collect();
        assert!(path.starts_with(&want), "{name}: {path:?} is not in {want:?}");
        assert_eq!(path.is_empty(), want.is_empty(), "{name}: {path:?}");
    }
}

#[test]
fn tournaments() {
    let vectors = fixture("startlux/vectors.json");
    let cases = vectors["tournaments"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let family = startlux(
            json!({"choice": case["temperature"]}),
            case["wide_choice"].clone(),
        );
        let body = case["request"].as_str().unwrap();
        let request = parse_body(body.as_bytes(), &family.systemone_rules())
            .unwrap()
            .request;
        let passes = case["passes"].as_array().unwrap();
        let (tokenizer, cx) = context();
        let (answers, plans) = drive(&*family, &request, &cx, |pass, n| {
            let row = logits(&passes[pass]["logits"]);
            assert_eq!(row.len(), n, "{name}, pass {pass}");
            row
        })
        .unwrap();
        let texts = tokenizer.texts.lock().unwrap();
        assert_eq!(texts.len(), passes.len(), "{name}");
        for (text, pass) in texts.iter().zip(passes) {
            if let Some(prompt) = pass.get("prompt") {
                assert_eq!(text, prompt.as_str().unwrap(), "{name}");
            }
            assert_eq!(sha256(text), pass["prompt_sha256"], "{name}");
        }
        assert_eq!(
            answers.usage.input_tokens,
            plans.iter().map(|plan| plan.input_tokens()).sum::<u64>()
        );
        let rendered = render_response("m", &answers, Map::new());
        assert_near(&rendered["answers"]["q"], &case["answer"], name);
    }
}

#[test]
fn answers() {
    let vectors = fixture("startlux/vectors.json");
    let cases = vectors["answers"].as_array().unwrap();
    assert!(cases.len() >= 15);
    for (index, case) in cases.iter().enumerate() {
        let row = logits(&case["logits"]);
        for kind in ["choice", "score", "noul"] {
            let Some(want) = case.get(kind) else { continue };
            let criteria = match kind {
                "choice" => {
                    let option = |name: &String| ChoiceOption {
                        name: name.clone(),
                        description: None,
                    };
                    Criteria::Choice(
                        want["probabilities"]
                            .as_object()
                            .unwrap()
                            .keys()
                            .map(option)
                            .collect(),
                    )
                }
                "score" => Criteria::Score(
                    want["legend"]
                        .as_object()
                        .unwrap()
                        .values()
                        .cloned()
                        .map(Content::from)
                        .collect(),
                ),
                _ => Criteria::Noul {
                    when_true: None,
                    when_false: None,
                },
            };
            let question = Question {
                id: "q".into(),
                instructions: Some(Content::Text("?".into())),
                criteria,
            };
            let request = DecisionRequest {
                state: Some(Content::Text("x".into())),
                questions: vec![question],
                truncate_state: false,
            };
            // The other types have a temperature that would be noticed.
            let mut temperatures = json!({"choice": 7.0, "score": 7.0, "noul": 7.0});
            temperatures[kind] = case["temperature"].clone();
            let family = startlux(temperatures, json!({}));
            let (answers, plans) = drive(&*family, &request, &context().1, |_, _| row.clone()).unwrap();
            assert_eq!(
                support::letters(&plans[0].sequences[0]),
                (32..32 + row.len() as u32).collect::<Vec<_>>()
            );
            let rendered = render_response("m", &answers, Map::new());
            assert_near(
                &rendered["answers"]["q"],
                want,
                &format!("answer {index}, {kind}"),
            );
        }
    }
}

#[test]
fn confidences() {
    let vectors = fixture("startlux/vectors.json");
    let cases = vectors["confidences"].as_array().unwrap();
    assert!(cases.len() >= 9);
    for case in cases {
        let p = floats(&case["p"]);
        assert!(
            (choice_confidence(&p) - case["choice"].as_f64().unwrap()).abs() < 1e-12,
            "{p:?}"
        );
        assert!(
            (score_confidence(&p) - case["score"].as_f64().unwrap()).abs() < 1e-12,
            "{p:?}"
        );
    }
}
