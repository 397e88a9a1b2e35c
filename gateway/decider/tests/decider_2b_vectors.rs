//! Decider-2B against vectors that its publisher's own package made, and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{sync::Arc, time::Duration};

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{
    Answer, Content, DeciderError, DecisionRequest, Family, FamilyContext, Served, TokenizeError, Tokenizer,
    family, family_defaults,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{EXAMPLE, assert_near, choice, drive_rows, fixture, letters, request};

/// A label is one token, anything else one token a byte.
struct Toy(Vec<String>);

impl Tokenizer for Toy {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        match self.0.iter().position(|label| label == text) {
            Some(label) => Ok(vec![label as u32]),
            None => Ok(text.bytes().map(|byte| 1000 + u32::from(byte)).collect()),
        }
    }

    fn added_text(&self, _: &str) -> Vec<std::ops::Range<usize>> {
        Vec::new()
    }
}

fn vectors() -> Value {
    fixture("decider_2b/vectors.json")
}

fn toy() -> FamilyContext {
    let labels = serde_json::from_value(vectors()["labels"].clone()).unwrap();
    FamilyContext {
        tokenizer: Arc::new(Toy(labels)),
        max_tokens: 262_144,
    }
}

fn decider() -> Arc<dyn Family> {
    family("decider_2b", &vectors()["config"]).unwrap()
}

fn parsed(body: &str) -> DecisionRequest {
    parse_body(body.as_bytes(), &decider().systemone_rules())
        .unwrap_or_else(|error| panic!("{error}: {body}"))
        .request
}

#[test]
fn labels_are_those_of_the_publisher() {
    let labels: Vec<String> = serde_json::from_value(vectors()["labels"].clone()).unwrap();
    assert_eq!(labels, deltagate_decider::families::decider_2b::labels::LABELS);
    assert_eq!(decider().check(&toy()), Ok(()));
    let twice = FamilyContext {
        tokenizer: Arc::new(support::Odd(|text| Ok(vec![text.len() as u32]))),
        max_tokens: 1,
    };
    assert!(
        decider()
            .check(&twice)
            .unwrap_err()
            .to_string()
            .contains("share a token")
    );
    let error = decider().check(&support::context().1).unwrap_err();
    assert!(error.to_string().contains("label AA is 2 tokens"), "{error}");
}

#[test]
fn decider_vectors_of_the_publishers_package() {
    let (vectors, cx) = (vectors(), toy());
    let (mut rows_seen, mut shared) = (0, 0);
    for vector in vectors["requests"].as_array().unwrap() {
        let request = parsed(vector["request"].as_str().unwrap());
        let rows = vector["rows"].as_array().unwrap();
        let logits =
            |pass: usize| -> Vec<f32> { serde_json::from_value(rows[pass]["logits"].clone()).unwrap() };
        let (answers, plans) = drive_rows(&*decider(), &request, &cx, |pass, sequence| {
            let labels: Vec<u32> = (0..).take(logits(pass).len()).collect();
            assert_eq!(letters(sequence), labels);
            logits(pass)
        })
        .unwrap();
        let sequences: Vec<_> = plans.iter().flat_map(|plan| &plan.sequences).collect();
        assert_eq!(sequences.len(), rows.len());
        let explained = decider().explain(&request, &cx).unwrap();
        for ((sequence, row), explained) in sequences.iter().zip(rows).zip(&explained) {
            let hash = hex::encode(Sha256::digest(
                serde_json::to_string(&sequence.token_ids)
                    .unwrap()
                    .replace(',', ", "),
            ));
            assert_eq!(
                json!(sequence.token_ids.len()),
                row["tokens"],
                "{}",
                explained.text
            );
            assert_eq!(json!(hash), row["ids_sha256"], "{}", explained.text);
            assert_eq!(explained.ids, sequence.token_ids);
            rows_seen += 1;
        }
        assert_eq!(json!(answers.usage.input_tokens), vector["input_tokens"]);
        shared += usize::from(rows.len() > 1);
        let own = decider().own_response(&Served {
            model: "served",
            asked_model: None,
            request: &request,
            answers: &answers,
            latency: Duration::ZERO,
        });
        assert_eq!(own["model"], "decider-2b-v11");
        assert_near(
            &own["answers"],
            &vector["answers"],
            vector["request"].as_str().unwrap(),
        );
        for (_, answer) in &answers.answers {
            if let Answer::Score {
                probabilities,
                level_fit,
                score,
                ..
            } = answer
            {
                let fit = level_fit.as_ref().unwrap();
                let mass: f64 = fit.iter().sum();
                assert!(
                    fit.iter()
                        .zip(probabilities)
                        .all(|(fit, p)| (fit / mass - p).abs() < 1e-12)
                );
                let expected: f64 = probabilities.iter().enumerate().map(|(i, p)| i as f64 * p).sum();
                assert!((score - expected).abs() < 1e-12);
            }
        }
    }
    assert!(rows_seen > 100 && shared > 10);
}

#[test]
fn published_examples() {
    let explained = decider().explain(&parsed(EXAMPLE), &toy()).unwrap();
    let state =
        r#"{"ticket": "I was charged twice for order #4411.", "amount": 12.5, "tags": ["billing", "app"]}"#;
    let text = |rest: &str| format!("Context:\n{state}\n\nQuestion: {rest}\nAnswer: (");
    assert_eq!(
        explained[0].text,
        text(
            "Which team should handle this ticket?\nOptions:\n(A) shipping: Delivery and tracking\n(B) billing: Payments, refunds and invoices\n(C) other"
        )
    );
    assert_eq!(
        explained[1].text,
        text(
            "How severe is the impact?\nProposed answer: cosmetic\nDoes the proposed answer fit?\nOptions:\n(A) no\n(B) yes"
        )
    );
    assert_eq!(
        explained[4].text,
        text("Should this ticket be answered today?\nOptions:\n(A) no\n(B) yes")
    );
    let options: Vec<Option<&str>> = explained.iter().map(|row| row.option.as_deref()).collect();
    assert_eq!(options, [None, Some("0"), Some("1"), Some("2"), None]);
    assert_eq!(
        explained[0].spans["labels"],
        json!({"A": "shipping", "B": "billing", "C": "other"})
    );
    assert_eq!(explained[0].spans["context"], json!([0, 9 + state.len()]));
}

#[test]
fn a_score_without_a_level_that_fits_is_undecided() {
    let mut only_score = parsed(EXAMPLE);
    only_score.questions.retain(|question| question.id == "severity");
    let (answers, _) = drive_rows(&*decider(), &only_score, &toy(), |_, _| vec![f32::MAX, f32::MIN]).unwrap();
    let Answer::Score {
        probabilities,
        level_fit,
        ..
    } = &answers.answers[0].1
    else {
        panic!()
    };
    assert_eq!(level_fit.as_deref(), Some(&[0.0; 3][..]));
    assert_eq!(probabilities[..], [1.0 / 3.0; 3]);
}

#[test]
fn the_context_is_cut_only_where_the_request_allows_it() {
    let mut long = request(vec![choice("q", 2), choice("r", 12)]);
    long.state = Some(Content::Text("x".repeat(40_000)));
    let refused = |request: &DecisionRequest, max_tokens| match decider()
        .start(request, &FamilyContext { max_tokens, ..toy() })
    {
        Err(DeciderError::Request(error)) => error.to_string(),
        _ => panic!(),
    };
    let error = refused(&long, 262_144);
    assert!(
        error.starts_with("questions[1]: the prompt has 40") && error.ends_with("the limit is 36864"),
        "{error}"
    );
    assert!(refused(&long, 512).ends_with("the limit is 512"));
    let mut wide = long.clone();
    wide.state = Some(Content::Text("x".repeat(33_000)));
    assert_eq!(
        refused(&wide, 262_144),
        "the context has 33009 tokens, the limit is 32768"
    );
    // Cut to 32,768 tokens, or to what the model takes, and counted once.
    wide.truncate_state = true;
    let (answers, plans) = drive_rows(&*decider(), &wide, &toy(), |_, sequence| {
        vec![0.0; letters(sequence).len()]
    })
    .unwrap();
    assert_eq!(answers.usage.truncated_tokens, 33_009 - 32_768);
    assert!(
        plans[0]
            .sequences
            .iter()
            .all(|sequence| sequence.token_ids.len() > 32_768)
    );
    let narrow = FamilyContext {
        max_tokens: 600,
        ..toy()
    };
    let explained = decider().explain(&wide, &narrow).unwrap();
    assert_eq!(explained.iter().map(|row| row.ids.len()).max(), Some(600));
    let context = explained[0].spans["context"][1].as_u64().unwrap();
    assert_eq!(explained[0].spans["truncated_tokens"], json!(33_009 - context));
    // Nothing of the state would be left.
    assert!(refused(&wide, 300).ends_with("the limit is 300"));
    let many = request((0..40).map(|i| choice(&i.to_string(), 2)).collect());
    let many = DecisionRequest {
        state: Some(Content::Text("x".repeat(32_000))),
        ..many
    };
    let error = refused(&many, 262_144);
    assert!(
        error.starts_with("the prompts of all questions have 128") && error.ends_with("1048576"),
        "{error}"
    );
}

#[test]
fn refusals() {
    for (question, message) in [
        (
            json!({"criteria": {"a": null, "b": null}}),
            "questions[0].instructions: instructions are required",
        ),
        (
            json!({"instructions": "", "criteria": {"a": null, "b": null}}),
            "questions[0].instructions",
        ),
        (
            json!({"instructions": "?", "criteria": {"a": null}}),
            "questions[0].criteria: a choice has 2 to 255 options, got 1",
        ),
        (
            json!({"instructions": "?", "criteria": ["a"]}),
            "questions[0].criteria: a list of names has 2 to 255",
        ),
        (
            json!({"type": "noul"}),
            "questions[0].instructions: instructions, or a description",
        ),
        (
            json!({"type": "noul", "instructions": null, "criteria": {"true": "", "false": null}}),
            "questions[0].instructions",
        ),
        (
            json!({"type": "score", "instructions": "?", "criteria": ["a"]}),
            "questions[0].criteria: a score has 2 to 10 levels",
        ),
        (
            json!({"type": "score", "instructions": "?", "criteria": {"a": "x", "1": "y"}}),
            "questions[0].criteria[0]: a level's key",
        ),
    ] {
        let body = json!({"state": "s", "questions": {"q": question}}).to_string();
        let error = match parse_body(body.as_bytes(), &decider().systemone_rules()) {
            Err(error) => error,
            Ok(parsed) => match decider().start(&parsed.request, &toy()) {
                Err(DeciderError::Request(error)) => error,
                _ => panic!("{body} is answered"),
            },
        };
        assert_eq!(error.http_status(), 422);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[test]
fn other_modes_of_the_publishers_server_are_refused() {
    let parse = |body: &str| parse_body(body.as_bytes(), &decider().systemone_rules());
    let q = r#""instructions":"?","criteria":["a","b"]"#;
    for value in ["false", "null", "0"] {
        let error = parse(&format!(
            r#"{{"state":"s","independent":{value},"questions":{{"q":{{{q}}}}}}}"#
        ))
        .unwrap_err();
        assert_eq!(error.to_string(), "independent: only true is supported");
        let error = parse(&format!(
            r#"{{"state":"s","questions":{{"q":{{{q},"isolated":{value}}}}}}}"#
        ))
        .unwrap_err();
        assert_eq!(
            (error.http_status(), error.to_string().as_str()),
            (422, "questions[0].isolated: only true is supported")
        );
    }
    assert!(
        parse(&format!(
            r#"{{"state":"s","independent":true,"questions":{{"q":{{{q},"isolated":true}}}}}}"#
        ))
        .is_ok()
    );
}

#[test]
fn config() {
    assert_eq!(family_defaults("decider_2b").unwrap().id(), "decider_2b");
    let good = vectors()["config"].clone();
    for (key, value) in [
        ("layout", json!("chat")),
        ("isolated_levels", json!(false)),
        ("neutralize_none", Value::Null),
        ("version", json!("")),
        ("temperature", json!(0)),
        ("temperature_by_type", json!({"noul": 1e-60})),
        ("temperature_by_options", json!({"a": 1.0, "b": 1.0})),
        ("schema_first", json!(true)),
        ("max_state_tokens", json!(0)),
    ] {
        let mut config = good.clone();
        config[key] = value;
        let error = family("decider_2b", &config).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let mut short = good;
    short.as_object_mut().unwrap().shift_remove("temperature");
    assert!(
        family("decider_2b", &short).is_err(),
        "scores have no temperature of their own"
    );
}
