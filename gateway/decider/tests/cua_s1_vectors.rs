//! Cua-S1 against vectors of an independent renderer, and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{sync::Arc, time::Duration};

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{
    Answer, Content, DeciderError, DecisionRequest, Family, FamilyContext, Served, Tokenizer, family,
    family_defaults,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{Bytes, EXAMPLE, Odd, assert_near, choice, context, drive_rows, fixture, letters, request};

fn cua() -> Arc<dyn Family> {
    family("cua_s1", &json!({"peft_type": "LORA", "r": 16})).unwrap()
}

fn parsed(body: &str) -> DecisionRequest {
    parse_body(body.as_bytes(), &cua().systemone_rules())
        .unwrap()
        .request
}

fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

#[test]
fn published_example() {
    let mut body: Value = serde_json::from_str(EXAMPLE).unwrap();
    let questions = body["questions"].as_object_mut().unwrap();
    questions.retain(|name, _| name == "team");
    let explained = cua().explain(&parsed(&body.to_string()), &context().1).unwrap();
    assert_eq!(&hash(&explained[0].text)[..16], "72a3ef47a26d40b7");
    assert!(explained[0].text.ends_with("<|im_start|>assistant\n<think>\n"));
    assert_eq!(
        explained[0].spans["letters"],
        json!({"A": "shipping", "B": "billing", "C": "other"})
    );
}

#[test]
fn cua_s1_vectors_of_an_independent_program() {
    let vectors = fixture("cua_s1/vectors.json");
    let mut questions = 0;
    for vector in vectors["requests"].as_array().unwrap() {
        let request = parsed(vector["request"].as_str().unwrap());
        let want: Vec<(&String, &Value)> = vector["questions"].as_object().unwrap().iter().collect();
        let explained = cua().explain(&request, &context().1).unwrap();
        assert_eq!(explained.len(), want.len());
        for (sequence, (name, want)) in explained.iter().zip(&want) {
            assert_eq!(&&sequence.question, name);
            if let Some(prompt) = want["prompt"].as_str() {
                assert_eq!(sequence.text, prompt);
            }
            assert_eq!(
                json!(hash(&sequence.text)),
                want["prompt_sha256"],
                "{}",
                sequence.text
            );
        }
        let logits =
            |pass: usize| -> Vec<f32> { serde_json::from_value(want[pass].1["logits"].clone()).unwrap() };
        let (answers, plans) = drive_rows(&*cua(), &request, &context().1, |pass, sequence| {
            let ids: Vec<u32> = (32..).take(logits(pass).len()).collect();
            assert_eq!(letters(sequence), ids);
            logits(pass)
        })
        .unwrap();
        assert_eq!(plans.len(), 1);
        assert_eq!(answers.usage.input_tokens, plans[0].input_tokens());
        let own = cua().own_response(&Served {
            model: "served",
            asked_model: None,
            request: &request,
            answers: &answers,
            latency: Duration::ZERO,
        });
        assert_eq!(
            own["model"],
            "cua-ai/cua-s1-4b-0.2@16818868b0cc7813808aae4e87b417657046ab79:text"
        );
        for ((name, answer), (_, want)) in answers.answers.iter().zip(&want) {
            let Answer::Choice {
                choice,
                confidence,
                own_confidence,
                probabilities,
            } = answer
            else {
                panic!()
            };
            let probabilities: serde_json::Map<_, _> = probabilities
                .iter()
                .map(|(name, p)| (name.clone(), json!(p)))
                .collect();
            let got = json!({"choice": choice, "confidence": confidence, "own_confidence": own_confidence, "probabilities": probabilities});
            assert_near(&got, &want["answer"], name);
            let confidence = &own["answers"][name]["confidence"];
            assert_near(confidence, &want["answer"]["own_confidence"], name);
            questions += 1;
        }
    }
    assert!(questions > 40);
}

#[test]
fn what_cua_s1_cannot_answer_is_refused_by_field() {
    let refused = |questions: Value, state: Value| {
        let body = json!({"model": "cua-s1-4b-0.2", "state": state, "questions": questions}).to_string();
        match parse_body(body.as_bytes(), &cua().systemone_rules()) {
            Err(error) => error,
            Ok(parsed) => match cua().start(&parsed.request, &context().1) {
                Err(DeciderError::Request(error)) => error,
                _ => panic!("{body} is answered"),
            },
        }
    };
    let q = |criteria: Value| json!({"q": {"type": "choice", "instructions": null, "criteria": criteria}});
    let wide: serde_json::Map<_, _> = (0..27).map(|i| (i.to_string(), Value::Null)).collect();
    for (questions, state, message) in [
        (
            json!({"q": {"type": "noul", "instructions": "?"}}),
            json!("s"),
            "questions[0].type: this model answers choice",
        ),
        (
            json!({"q": {"type": "score", "instructions": "?", "criteria": ["a", "b"]}}),
            json!("s"),
            "questions[0].type",
        ),
        (
            json!({"q": {"type": "choice", "criteria": {"a": null}}}),
            json!("s"),
            "questions[0].instructions: instructions are required",
        ),
        (
            json!({"q": {"type": "choice", "instructions": 1, "criteria": {"a": null}}}),
            json!("s"),
            "questions[0].instructions",
        ),
        (
            q(json!({"a": 1})),
            json!("s"),
            "questions[0].criteria[0]: a description must be",
        ),
        (
            q(json!({"a": null, "b": true})),
            json!("s"),
            "questions[0].criteria[1]: a description must be",
        ),
        (
            q(json!(["a", "b"])),
            json!("s"),
            "questions[0].criteria: criteria of a choice must be an object",
        ),
        (
            q(json!({})),
            json!("s"),
            "questions[0].criteria: a choice has 1 to 26 options, got 0",
        ),
        (
            q(Value::Object(wide)),
            json!("s"),
            "questions[0].criteria: a choice has 1 to 26 options, got 27",
        ),
        (q(json!({"a": null})), json!(""), "state: state is empty"),
        (q(json!({"a": null})), json!({}), "state: state is empty"),
        (q(json!({"a": null})), json!([]), "state: state is empty"),
        (q(json!({"a": null})), json!(1.5), "state: state must be"),
        (q(json!({"a": null})), Value::Null, "state: state must be"),
    ] {
        let error = refused(questions, state);
        assert_eq!(error.http_status(), 422);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let twice =
        r#"{"state":"s","questions":{"q":{"instructions":"?","instructions":"!","criteria":{"a":null}}}}"#;
    let error = parse_body(twice.as_bytes(), &cua().systemone_rules()).unwrap_err();
    assert_eq!((error.http_status(), error.reason()), (400, "DUPLICATE_KEY"));

    let mut long = request(vec![choice("q", 2)]);
    long.state = Some(Content::Text("x".repeat(17_000)));
    match cua().start(&long, &context().1) {
        Err(DeciderError::Request(error)) => assert!(error.to_string().ends_with("the limit is 16384")),
        _ => panic!(),
    }
    long.truncate_state = true;
    let explained = cua().explain(&long, &context().1).unwrap();
    assert!(
        explained[0].ids.len() <= 16_384 && explained[0].spans["truncated_tokens"].as_u64().unwrap() > 600
    );
}

#[test]
fn config_and_load_check() {
    for config in [json!({}), json!({"peft_type": "LOHA"}), Value::Null] {
        assert!(family("cua_s1", &config).is_err(), "{config}");
    }
    let with = |tokenizer: Odd| FamilyContext {
        tokenizer: Arc::new(tokenizer),
        max_tokens: 10,
    };
    let check = |cx: &FamilyContext| family_defaults("cua_s1").unwrap().check(cx);
    let good = with(Odd(|text| {
        if text.starts_with('<') {
            Ok(vec![7])
        } else {
            Bytes::default().encode(text)
        }
    }));
    assert_eq!(check(&good), Ok(()));
    // The chat format spelt out, and a letter twice.
    assert!(
        check(&context().1)
            .unwrap_err()
            .to_string()
            .contains("<|im_start|>")
    );
    let same = with(Odd(|_| Ok(vec![7])));
    assert!(
        check(&same)
            .unwrap_err()
            .to_string()
            .contains("letter B shares its token")
    );
}
