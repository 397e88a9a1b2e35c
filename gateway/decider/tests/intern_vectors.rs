//! Intern against its published example, and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{
    Answer, Content, DeciderError, Family, FamilyContext, Projection, RowSelection, SequenceOutput, Served,
    Step, TokenizeError, Tokenizer, family, family_defaults,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{EXAMPLE, Odd, assert_near, choice, context, fixture, request};

const MARKER: u32 = 248_077;

/// Bytes, and one token for the marker.
struct Marked;

impl Tokenizer for Marked {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut ids = Vec::new();
        for (index, part) in text.split("<decision>").enumerate() {
            ids.extend((index > 0).then_some(MARKER));
            ids.extend(part.bytes().map(u32::from));
        }
        Ok(ids)
    }

    fn added_text(&self, _: &str) -> Vec<Range<usize>> {
        Vec::new()
    }
}

fn marked() -> FamilyContext {
    FamilyContext {
        tokenizer: Arc::new(Marked),
        max_tokens: 262_144,
    }
}

/// The same with one token for four bytes: a prompt of the limit's length has more of them than the limit.
fn coarse() -> FamilyContext {
    let encode = |text: &str| {
        let bytes = Marked.encode(text)?;
        let parts = bytes.split_inclusive(|id| *id == MARKER);
        let parts = parts.flat_map(|part| match part {
            [text @ .., MARKER] => [text, &[MARKER][..]],
            text => [text, &[][..]],
        });
        let word = |word: &[u32]| word.iter().fold(0, |id, byte| id << 8 | byte);
        Ok(parts.flat_map(|part| part.chunks(4).map(word)).collect())
    };
    FamilyContext {
        tokenizer: Arc::new(Odd(encode)),
        max_tokens: 262_144,
    }
}

fn intern(temperature: f64) -> Arc<dyn Family> {
    family("intern", &json!({"temperature": temperature})).unwrap()
}

fn body() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

fn parsed(body: &Value) -> deltagate_decider::DecisionRequest {
    parse_body(body.to_string().as_bytes(), &intern(1.0).systemone_rules())
        .unwrap()
        .request
}

fn text(body: &Value) -> String {
    intern(1.0).explain(&parsed(body), &marked()).unwrap()[0]
        .text
        .clone()
}

#[test]
fn published_example() {
    let request = parsed(&body());
    let family = intern(2.0);
    let explained = family.explain(&request, &marked()).unwrap();
    assert_eq!(explained.len(), 1);
    let hash = hex::encode(Sha256::digest(explained[0].text.as_bytes()));
    assert_eq!(&hash[..16], "e8fc80106e9b4dc4");
    let mut decider = family.start(&request, &marked()).unwrap();
    let Step::Run(plan) = decider.step(None).unwrap() else {
        panic!()
    };
    let sequence = &plan.sequences[0];
    assert_eq!(sequence.projection, Projection::OutputEmbedding(vec![65, 66, 67]));
    let RowSelection::Positions(read) = &sequence.read else {
        panic!()
    };
    assert_eq!(read.len(), 3);
    for at in read {
        assert_eq!(sequence.token_ids[*at as usize], u32::from(b'"'));
        assert_eq!(sequence.token_ids[*at as usize + 1], MARKER);
    }
    let rows = vec![vec![4.0, 2.0, -1.0], vec![4.0, 2.0, -1.0], vec![0.0, 2.0, 90.0]];
    let Step::Done(answers) = decider.step(Some(&[SequenceOutput { rows }])).unwrap() else {
        panic!()
    };
    let Answer::Choice {
        choice, confidence, ..
    } = &answers.answers[0].1
    else {
        panic!()
    };
    assert_eq!(choice, "shipping");
    assert!((confidence - 0.534508129).abs() < 1e-9);
    let Answer::Score { score, .. } = &answers.answers[1].1 else {
        panic!()
    };
    assert!((score - 0.366939646).abs() < 1e-9);
    let Answer::Noul { noul } = answers.answers[2].1 else {
        panic!()
    };
    assert!((noul - 1.0 / (1.0 + (-1.0f64).exp())).abs() < 1e-12);
}

#[test]
fn intern_vectors_of_the_publishers_code() {
    let vectors = fixture("intern/vectors.json");
    let family = intern(vectors["temperature"].as_f64().unwrap());
    for vector in vectors["requests"].as_array().unwrap() {
        let body = vector["request"].as_str().unwrap();
        let parsed = parse_body(body.as_bytes(), &family.systemone_rules());
        let request = parsed.unwrap_or_else(|error| panic!("{error}: {body}")).request;
        let explained = family.explain(&request, &coarse()).unwrap();
        if let Some(prompt) = vector["prompt"].as_str() {
            assert_eq!(explained[0].text, prompt);
        }
        let hash = hex::encode(Sha256::digest(explained[0].text.as_bytes()));
        assert_eq!(json!(hash), vector["prompt_sha256"], "{}", explained[0].text);
        let mut decider = family.start(&request, &coarse()).unwrap();
        let Step::Run(plan) = decider.step(None).unwrap() else {
            panic!()
        };
        let Projection::OutputEmbedding(symbols) = &plan.sequences[0].projection else {
            panic!()
        };
        let row = |question: &deltagate_decider::Question| -> Vec<f32> {
            let mut row: Vec<f32> = serde_json::from_value(vector["logits"][&question.id].clone()).unwrap();
            // What other questions ask for must not count.
            row.resize(symbols.len(), 50.0);
            row
        };
        let rows = request.questions.iter().map(row).collect();
        let Step::Done(answers) = decider.step(Some(&[SequenceOutput { rows }])).unwrap() else {
            panic!()
        };
        let own = family.own_response(&Served {
            model: "served",
            asked_model: None,
            request: &request,
            answers: &answers,
            latency: Duration::ZERO,
        });
        for (name, want) in vector["answers"].as_object().unwrap() {
            let got = own["answers"][name].as_object().unwrap();
            assert_eq!(got.len(), want.as_object().unwrap().len(), "{got:?}");
            for (key, want) in want.as_object().unwrap() {
                assert_near(&got[key], want, &format!("{name}.{key}"));
            }
        }
        assert_eq!(own["answers"].as_object().unwrap().len(), request.questions.len());
        assert_eq!(own["calibration"], vector["calibration"]);
        assert_eq!(own["usage"]["output_tokens"], json!(request.questions.len()));
        assert_eq!(own["usage"]["input_tokens"], json!(explained[0].ids.len()));
    }
}

#[test]
fn values_are_pythons() {
    let mut body = body();
    body["state"] = json!("a \"b\"");
    body["questions"]["team"]["criteria"] =
        json!({"x": true, "y": {"k": [1, 2.0, null, "it's", "a\"'\n\u{e9}\u{200b}"]}});
    let text = text(&body);
    assert!(text.contains("## State\n\"a \\\"b\\\"\"\n## Decision"));
    assert!(text.contains("A = x: True\n"));
    assert!(text.contains("B = y: {'k': [1, 2.0, None, \"it's\", 'a\"\\'\\n\u{e9}\\u200b']}\n"));
}

#[test]
fn ties_go_to_the_smallest_name() {
    let mut decider = intern(1.0).start(&parsed(&body()), &marked()).unwrap();
    decider.step(None).unwrap();
    let rows = vec![vec![0.0; 3]; 3];
    let Step::Done(answers) = decider.step(Some(&[SequenceOutput { rows }])).unwrap() else {
        panic!()
    };
    let Answer::Choice { choice, .. } = &answers.answers[0].1 else {
        panic!()
    };
    assert_eq!(choice, "billing");
    assert_eq!(decider.step(None).unwrap_err(), DeciderError::OutOfTurn);
}

#[test]
fn refusals() {
    let refused = |request, max_tokens| match intern(1.0).start(
        &request,
        &FamilyContext {
            max_tokens,
            ..marked()
        },
    ) {
        Err(DeciderError::Request(error)) => error.to_string(),
        _ => panic!(),
    };
    let many = (0..17).map(|i| choice(&i.to_string(), 2)).collect();
    assert_eq!(
        refused(request(many), 9000),
        "questions: 1 to 16 questions are allowed, got 17"
    );
    let wide = refused(request(vec![choice("q", 63)]), 9000);
    assert!(wide.contains("1 to 62 options, got 63"), "{wide}");
    let mut long = request(vec![choice("q", 2)]);
    long.state = Some(Content::Text("x".repeat(9000)));
    assert!(refused(long, 262_144).ends_with("the limit is 8192"));
    assert!(refused(request(vec![choice("q", 2)]), 10).ends_with("the limit is 10"));
    let mut marked = request(vec![choice("<decision>", 2)]);
    marked.state = Some(Content::Text("a <decision>".into()));
    assert_eq!(
        refused(marked, 9000),
        "state: the text holds the reserved decision marker; questions[0]: the text holds the reserved decision marker"
    );
}

#[test]
fn config_and_load_check() {
    for config in [
        json!({}),
        json!({"temperature": 0}),
        json!({"temperature": 1, "x": 1}),
        json!(null),
    ] {
        assert!(family("intern", &config).is_err(), "{config}");
    }
    let family = family_defaults("intern").unwrap();
    assert_eq!(family.check(&marked()), Ok(()));
    assert!(family.check(&context().1).is_err());
}
