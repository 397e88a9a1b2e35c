//! Clef against vectors that its genuine module made, its documented example's fragments, and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{ops::Range, sync::Arc, time::Duration};

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{
    Answer, Content, Criteria, DeciderError, DecisionRequest, Family, FamilyContext, JointQuestion, Plan,
    Projection, Question, RowSelection, SequenceOutput, Served, Step, TokenizeError, Tokenizer, family,
    family_defaults,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{EXAMPLE, Odd, choice, fixture, request};

/// Four bytes are a token: `fold(v * 131 + byte) mod 256`.
struct Fold;

impl Tokenizer for Fold {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let token = |piece: &[u8]| piece.iter().fold(0, |v, byte| (v * 131 + u32::from(*byte)) % 256);
        Ok(text.as_bytes().chunks(4).map(token).collect())
    }

    fn added_text(&self, _: &str) -> Vec<std::ops::Range<usize>> {
        Vec::new()
    }
}

fn cx(max_tokens: usize) -> FamilyContext {
    FamilyContext {
        tokenizer: Arc::new(Fold),
        max_tokens,
    }
}

fn sizes() -> Value {
    json!({"hidden_size": 5120, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096})
}

fn clef() -> Arc<dyn Family> {
    family("clef", &sizes()).unwrap()
}

fn parsed(body: &str) -> DecisionRequest {
    parse_body(body.as_bytes(), &clef().systemone_rules())
        .unwrap_or_else(|error| panic!("{error}: {body}"))
        .request
}

/// The one plan of a request.
fn plan(request: &DecisionRequest, max_tokens: usize) -> Plan {
    let mut decider = clef().start(request, &cx(max_tokens)).unwrap();
    match decider.step(None).unwrap() {
        Step::Run(plan) => plan,
        Step::Done(_) => panic!("there is nothing to ask"),
    }
}

/// Tokens and questions of a plan that must be a single sequence for the joint head.
fn asked(plan: &Plan) -> (&[u32], &[JointQuestion]) {
    assert!(plan.prefix.is_empty() && plan.sequences.len() == 1 && !plan.noncausal_full_attention);
    let sequence = &plan.sequences[0];
    assert_eq!(sequence.read, RowSelection::All);
    match &sequence.projection {
        Projection::JointHead(questions) => (&sequence.token_ids, questions),
        other => panic!("{other:?}"),
    }
}

fn span(range: &Range<u32>) -> Value {
    json!([range.start, range.end])
}

fn assert_encoded(plan: &Plan, want: &Value, context: &str) {
    let (ids, questions) = asked(plan);
    assert_eq!(json!(ids), want["ids"], "{context}");
    assert_eq!(questions.len(), want["questions"].as_array().unwrap().len());
    for (got, want) in questions.iter().zip(want["questions"].as_array().unwrap()) {
        assert_eq!(json!(got.kind), want["type"], "{context}");
        assert_eq!(span(&got.span), want["span"], "{context}");
        let options = want["options"].as_array().unwrap();
        let spans: Vec<&Value> = options.iter().map(|option| &option[1]).collect();
        assert_eq!(
            json!(got.options.iter().map(span).collect::<Vec<_>>()),
            json!(spans),
            "{context}"
        );
    }
}

fn run(request: &DecisionRequest, logits: Vec<f32>) -> deltagate_decider::Answers {
    let mut decider = clef().start(request, &cx(16_384)).unwrap();
    decider.step(None).unwrap();
    let rows = vec![logits];
    match decider.step(Some(&[SequenceOutput { rows }])).unwrap() {
        Step::Done(answers) => answers,
        Step::Run(_) => panic!("one step is enough"),
    }
}

#[test]
fn requests_are_encoded_and_answered_as_by_the_genuine_module() {
    let vectors = fixture("clef/vectors.json");
    let vectors = vectors["requests"].as_array().unwrap();
    assert_eq!(vectors.len(), 30);
    let mut cut = 0;
    for vector in vectors {
        let body = vector["body"].as_str().unwrap();
        let request = parsed(body);
        assert_encoded(&plan(&request, 16_384), vector, body);

        // Options come in the order of the prompt, by the names that the module gives them.
        let explained = &clef().explain(&request, &cx(16_384)).unwrap()[0];
        let fields = explained.spans["fields"].as_array().unwrap();
        for (field, want) in fields.iter().zip(vector["questions"].as_array().unwrap()) {
            let names = |options: &Value, key: &dyn Fn(&Value) -> Value| -> Vec<Value> {
                options.as_array().unwrap().iter().map(key).collect()
            };
            assert_eq!(
                names(&field["options"], &|option| option["option"].clone()),
                names(&want["options"], &|option| option[0].clone())
            );
        }

        if let Some(want) = vector.get("cut") {
            cut += 1;
            let max = usize::try_from(want["max_length"].as_u64().unwrap()).unwrap();
            let mut request = request.clone();
            let refused = clef().start(&request, &cx(max)).map(drop).unwrap_err();
            let whole = vector["ids"].as_array().unwrap().len();
            let says = format!("the prompt has {whole} tokens, the limit is {max}");
            assert!(refused.to_string().contains(&says), "{refused}");
            request.truncate_state = true;
            assert_encoded(&plan(&request, max), want, body);
        }

        let logits: Vec<f32> = vector["logits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|z| z.as_f64().unwrap() as f32)
            .collect();
        let answers = run(&request, logits);
        let own = clef().own_response(&Served {
            model: "served",
            asked_model: Some("some/name"),
            request: &request,
            answers: &answers,
            latency: Duration::ZERO,
        });
        let tokens = vector["ids"].as_array().unwrap().len();
        let want = json!({
            "model": "some/name",
            "answers": vector["answers"],
            "usage": {"input_tokens": tokens, "output_tokens": 0},
        });
        assert_eq!(own.to_string(), want.to_string(), "{body}");
    }
    assert!(cut > 10, "{cut} vectors have a state to cut");
}

#[test]
fn documented_fragments_have_the_documented_spans() {
    let begin = [216, 77, 204, 47, 108, 220, 179, 15];
    let end = [94, 225, 181, 140, 228, 70];
    type Case = (&'static str, usize, Range<u32>, &'static [Range<u32>]);
    let cases: [Case; 3] = [
        (
            r#"{"state":"Customer asks for a refund of $12.50.","questions":{"q":{"type":"noul","instructions":"Refund?"}}}"#,
            150,
            71..73,
            &[81..102, 106..127],
        ),
        (
            r#"{"state":{"mood":"calm","n":3},"questions":{"q":{"type":"choice","instructions":"Pick","criteria":{"red":"r","blue":null,"amber":"a"}}}}"#,
            133,
            68..69,
            &[77..87, 91..96, 100..110],
        ),
        (
            r#"{"state":"ok","questions":{"q":{"type":"score","instructions":"Risk 0-3","criteria":["none","low","mid","high"]}}}"#,
            147,
            62..64,
            &[72..82, 86..96, 100..110, 114..124],
        ),
    ];
    for (body, tokens, question, options) in cases {
        let plan = plan(&parsed(body), 16_384);
        let (ids, questions) = asked(&plan);
        assert_eq!(ids.len(), tokens);
        assert!(ids.starts_with(&begin) && ids.ends_with(&end));
        assert_eq!(questions[0].span, question);
        assert_eq!(questions[0].options, options);
    }
}

#[test]
fn the_documented_text_is_one_sequence_whose_every_position_is_read() {
    let explained = clef().explain(&parsed(EXAMPLE), &cx(16_384)).unwrap();
    assert_eq!(explained.len(), 1);
    let hash = hex::encode(Sha256::digest(explained[0].text.as_bytes()));
    assert_eq!(&hash[..16], "b38427e5db941050");
    assert!(explained[0].read.iter().copied().eq(0..explained[0].ids.len()));
    assert_eq!((&*explained[0].question, &explained[0].option), ("", &None));
}

#[test]
fn answers_are_in_request_order_with_typesafes_confidence_and_nothing_rounded() {
    // Logits in the order of the prompt: billing, other, shipping; three levels; true, false.
    let request = parsed(EXAMPLE);
    let answers = run(&request, vec![1.0, -0.5, 2.0, 2.0, 1.0, -0.5, 1.0, -1.0]);
    let Answer::Choice {
        choice,
        confidence,
        own_confidence,
        probabilities,
    } = &answers.answers[0].1
    else {
        panic!()
    };
    let names: Vec<&str> = probabilities.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        (choice.as_str(), &names[..]),
        ("shipping", &["shipping", "billing", "other"][..])
    );
    assert!((probabilities[0].1 - 0.689_672_086).abs() < 1e-9);
    assert!((probabilities[1].1 - 0.253_716_182).abs() < 1e-9);
    assert!((confidence - 0.534_508_129).abs() < 1e-9);
    assert_eq!(*own_confidence, Some(probabilities[0].1));
    let Answer::Score {
        score, confidence, ..
    } = &answers.answers[1].1
    else {
        panic!()
    };
    assert!((score - 0.366_939_646).abs() < 1e-9 && (confidence - 0.449_590_531).abs() < 1e-9);
    let Answer::Noul { noul } = answers.answers[2].1 else {
        panic!()
    };
    assert!((noul - 1.0 / (1.0 + (-2.0f64).exp())).abs() < 1e-12);

    // Of equals the first in the request, not in the prompt.
    let equal = run(&request, vec![0.0; 8]);
    assert!(matches!(&equal.answers[0].1, Answer::Choice { choice, .. } if choice == "shipping"));
}

#[test]
fn what_is_read_must_be_one_finite_logit_for_each_option() {
    let request = parsed(EXAMPLE);
    let step = |rows: Vec<Vec<f32>>| {
        let mut decider = clef().start(&request, &cx(16_384)).unwrap();
        decider.step(None).unwrap();
        let stepped = decider.step(Some(&[SequenceOutput { rows }])).map(drop);
        assert_eq!(decider.step(None).unwrap_err(), DeciderError::OutOfTurn);
        stepped
    };
    assert!(step(vec![vec![0.0; 8]]).is_ok());
    for rows in [
        vec![],
        vec![vec![0.0; 7]],
        vec![vec![0.0; 9]],
        vec![vec![0.0; 8]; 2],
        vec![vec![f32::NAN; 8]],
        vec![vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, f32::INFINITY]],
    ] {
        assert!(step(rows.clone()).is_err(), "{rows:?}");
    }
}

#[test]
fn a_state_is_cut_only_when_that_is_allowed_and_never_away() {
    let mut long = request(vec![choice("q", 2)]);
    long.state = Some(Content::Text("word ".repeat(100)));
    let whole = asked(&plan(&long, 16_384)).0.len();
    let fixed = whole - 125;
    let refused = |request: &DecisionRequest, max| match clef().start(request, &cx(max)) {
        Err(DeciderError::Request(error)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{max} tokens are enough"),
    };
    assert_eq!(
        refused(&long, whole - 1),
        format!("the prompt has {whole} tokens, the limit is {}", whole - 1)
    );
    long.truncate_state = true;
    let cut = plan(&long, fixed + 1);
    assert_eq!(asked(&cut).0.len(), fixed + 1);
    // The spans move with the cut.
    let first = |plan: &Plan| asked(plan).1[0].span.start as usize;
    assert_eq!(first(&plan(&long, 16_384)) - first(&cut), 124);
    let explained = &clef().explain(&long, &cx(fixed + 1)).unwrap()[0];
    assert_eq!(explained.spans["truncated_tokens"], json!(124));
    assert_eq!(explained.ids.len(), fixed + 1);
    assert!(refused(&long, fixed).contains(&format!("{whole} tokens")));
    assert_eq!(
        refused(&long, fixed - 1),
        format!(
            "without the state, the prompt has {fixed} tokens, the limit is {}",
            fixed - 1
        )
    );
    let mut decider = clef().start(&long, &cx(fixed + 1)).unwrap();
    decider.step(None).unwrap();
    let rows = vec![vec![0.0, 0.0]];
    let Step::Done(answers) = decider.step(Some(&[SequenceOutput { rows }])).unwrap() else {
        panic!()
    };
    assert_eq!(answers.usage.input_tokens as usize, fixed + 1);
    assert_eq!(answers.usage.truncated_tokens, 124);
}

#[test]
fn a_text_without_tokens_is_refused() {
    // A tokenizer that makes nothing of question marks.
    let deaf: fn(&str) -> Result<Vec<u32>, TokenizeError> =
        |text| Ok(text.bytes().filter(|b| *b != b'?').map(u32::from).collect());
    let cx = FamilyContext {
        tokenizer: Arc::new(Odd(deaf)),
        max_tokens: 9000,
    };
    let with = |instructions: &str| {
        let question = Question {
            id: "q".into(),
            instructions: Some(Content::Text(instructions.into())),
            criteria: Criteria::Noul {
                when_true: None,
                when_false: None,
            },
        };
        clef()
            .start(&request(vec![choice("first", 2), question]), &cx)
            .map(drop)
    };
    assert_eq!(with("a?"), Ok(()));
    assert_eq!(
        with("??").unwrap_err().to_string(),
        "questions[1]: a text of this question has no tokens"
    );
}

#[test]
fn limits_are_the_contracts_except_that_one_level_is_enough() {
    let levels = |count: usize| Question {
        id: "s".into(),
        instructions: None,
        criteria: Criteria::Score(vec![Content::Text("level".into()); count]),
    };
    let start = |questions| clef().start(&request(questions), &cx(1 << 20)).map(drop);
    assert!(start(vec![levels(1)]).is_ok() && start(vec![levels(10)]).is_ok());
    assert!(start(vec![choice("q", 1)]).is_ok() && start(vec![choice("q", 255)]).is_ok());
    for questions in [
        vec![],
        vec![levels(11)],
        vec![choice("q", 256)],
        vec![choice("q", 2), choice("q", 2)],
    ] {
        assert!(start(questions).is_err());
    }
}

#[test]
fn config_and_load_check() {
    for (key, value) in [
        ("width", Value::Null),
        ("width", json!(0)),
        ("heads", json!(1.5)),
        ("temperature", json!(1.0)),
    ] {
        let mut config = sizes();
        config[key] = value;
        let error = family("clef", &config).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let mut config = sizes();
    config.as_object_mut().unwrap().shift_remove("layers");
    assert!(
        family("clef", &config)
            .unwrap_err()
            .to_string()
            .contains("layers")
    );
    assert!(family("clef", &json!(null)).is_err());

    let family = family_defaults("clef").unwrap();
    assert_eq!(family.id(), "clef");
    assert!(family.check(&cx(9)).is_err(), "special tokens in pieces");
    let whole: fn(&str) -> Result<Vec<u32>, TokenizeError> = |_| Ok(vec![1]);
    let cx = FamilyContext {
        tokenizer: Arc::new(Odd(whole)),
        max_tokens: 9,
    };
    assert_eq!(family.check(&cx), Ok(()));
}
