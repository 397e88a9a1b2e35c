//! Open-Jev against published prompts and numbers. Token counts need the real tokenizer, which this crate has not: those
//! of the prompts whose hashes stand below are noted beside them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use deltagate_decider::systemone::{parse_body, render_response};
use deltagate_decider::{
    Answer, Answers, Content, Criteria, DeciderError, DecisionRequest, Family, FamilyContext, FamilyError,
    MAX_SEQUENCES_PER_PLAN, Plan, Projection, Question, RowSelection, SequenceOutput, Step, TokenizeError,
    family, family_defaults,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use support::{EXAMPLE, Odd, assert_near, choice, context, drive_rows, fixture, request};

const T_27B: f64 = 2.5343690298472983;
const T_9B: f64 = 1.8969118766347646;

fn export(temperature: f64, weight: &[f64], bias: f64) -> Value {
    json!({
        "format": "open-jev-text-merged/1", "model_id": "org/model", "base_revision": "a", "checkpoint_revision": "b",
        "temperature": temperature, "chat_prefix": "<|im_start|>user\n",
        "chat_suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "head_weight": weight, "head_bias": bias
    })
}

/// With a head that passes a single hidden value on as the logit.
fn plain(temperature: f64) -> Arc<dyn Family> {
    family("open_jev", &export(temperature, &[1.0], 0.0)).unwrap()
}

fn parse(body: &str) -> DecisionRequest {
    parse_body(body.as_bytes(), &plain(1.0).systemone_rules())
        .unwrap()
        .request
}

/// Runs a request; `hidden` gives the row of candidate number `i`, counted over all plans.
fn drive(
    family: &dyn Family,
    request: &DecisionRequest,
    hidden: impl Fn(usize) -> Vec<f32>,
) -> Result<(Answers, Vec<Plan>), DeciderError> {
    drive_rows(family, request, &context().1, |i, _| hidden(i))
}

fn answer_of(temperature: f64, criteria: Criteria, logits: &[f32]) -> Answer {
    let question = Question {
        criteria,
        ..choice("q", 1)
    };
    let (answers, _) = drive(&*plain(temperature), &request(vec![question]), |i| {
        vec![logits[i]]
    })
    .unwrap();
    answers.answers[0].1.clone()
}

#[test]
fn documented_prompts() {
    let (_, cx) = context();
    let model = plain(1.0).explain(&parse(EXAMPLE), &cx).unwrap();
    let defaults = family_defaults("open_jev")
        .unwrap()
        .explain(&parse(EXAMPLE), &cx)
        .unwrap();
    assert_eq!(model, defaults);
    let heads: Vec<(&str, Option<&str>, String)> = model
        .iter()
        .map(|sequence| {
            let head = hex::encode(Sha256::digest(sequence.text.as_bytes()))[..16].to_owned();
            (sequence.question.as_str(), sequence.option.as_deref(), head)
        })
        .collect();
    let want = [
        ("team", Some("shipping"), "56a332147351e8d5"), // 82 tokens
        ("team", Some("billing"), "4386d580281db616"),  // 84
        ("team", Some("other"), "767f6c134f0c5962"),    // 78
        ("severity", Some("0"), "365f4a7a590bdbbc"),    // 77
        ("severity", Some("1"), "f158e59008946e0f"),    // 77
        ("severity", Some("2"), "b965394a9cc031e9"),    // 79
        ("urgent", None, "ceb98779e7d9af61"),           // 74
    ];
    let want: Vec<_> = want.into_iter().map(|(q, o, h)| (q, o, h.to_owned())).collect();
    assert_eq!(heads, want);
    assert!(
        model
            .iter()
            .all(|s| s.read == [s.ids.len() - 1] && s.spans.is_empty())
    );
    let text = "<|im_start|>user\nContext:\n{\"amount\": 12.5, \"tags\": [\"billing\", \"app\"], \"ticket\": \"I was charged twice \
        for order #4411.\"}\n\nQuestion: Which team should handle this ticket?\nProposed answer: shipping: Delivery and \
        tracking\nIs this proposed answer correct? Answer Yes or No.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(model[0].text, text);
}

#[test]
fn values_that_are_no_text_are_json_with_sorted_keys() {
    let body = r#"{"state":" raw ","questions":{
        "c":{"type":"choice","instructions":{"b":1,"a":[true]},"criteria":{"x":{"z":1,"y":2},"w":[]}},
        "s":{"type":"score","instructions":"?","criteria":[{"b":0,"a":1e5},7]},
        "n":{"type":"noul","instructions":"?","criteria":{"true":"late","false":{"k":"v"}}}}}"#;
    let explained = plain(1.0).explain(&parse(body), &context().1).unwrap();
    let users: Vec<&str> = explained
        .iter()
        .map(|s| {
            let text = s
                .text
                .strip_prefix("<|im_start|>user\nContext:\n raw \n\nQuestion: ")
                .unwrap();
            text.split_once("<|im_end|>").unwrap().0
        })
        .collect();
    let proposed = |question, option| {
        format!("{question}\nProposed answer: {option}\nIs this proposed answer correct? Answer Yes or No.")
    };
    assert_eq!(
        users,
        [
            proposed(r#"{"a": [true], "b": 1}"#, r#"x: {"y": 2, "z": 1}"#),
            proposed(r#"{"a": [true], "b": 1}"#, "w: []"),
            proposed("?", r#"{"a": 100000.0, "b": 0}"#),
            proposed("?", "7"),
            "?\nYes means: late\nNo means: {\"k\": \"v\"}\nIs the answer to this question yes? Answer Yes or No.".into(),
        ]
    );
}

#[test]
fn yes_is_weighed_against_a_logit_of_zero() {
    for (temperature, want) in [(T_27B, 0.6208645494902287), (T_9B, 0.6590280253195682)] {
        let noul = Criteria::Noul {
            when_true: None,
            when_false: None,
        };
        let Answer::Noul { noul } = answer_of(temperature, noul, &[1.25]) else {
            panic!()
        };
        assert!((noul - want).abs() < 1e-15, "{noul}");
    }
}

#[test]
fn published_confidences() {
    let table = fixture("confidence.json");
    let logits: Vec<f32> = serde_json::from_value(table["logits"].clone()).unwrap();
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        let (t, of_choice) = (of("temperature"), of("choice_confidence"));
        let (level, of_score) = (of("score"), of("score_confidence"));
        let p: Vec<f64> = serde_json::from_value(row["p"].clone()).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{t}: {a} is not {b}");
        let Answer::Choice {
            choice: name,
            confidence,
            probabilities,
            ..
        } = answer_of(t, choice("q", 3).criteria, &logits)
        else {
            panic!()
        };
        assert_eq!(name, "option 0 of many");
        near(confidence, of_choice);
        assert_eq!(probabilities.len(), p.len());
        probabilities.iter().zip(&p).for_each(|((_, a), b)| near(*a, *b));
        let levels = vec![
            Content::Text("a".into()),
            Content::Json(json!({"b": 1})),
            Content::Json(json!(3)),
        ];
        let Answer::Score {
            score,
            confidence,
            probabilities,
            legend,
            ..
        } = answer_of(t, Criteria::Score(levels.clone()), &logits)
        else {
            panic!()
        };
        near(score, level);
        near(confidence, of_score);
        assert_eq!(probabilities.len(), p.len());
        probabilities.iter().zip(&p).for_each(|(a, b)| near(*a, *b));
        assert_eq!(legend, levels);
    }
}

/// Sums that are exact in any order, so that the answers are those of any implementation.
#[test]
fn hidden_rows_become_answers() {
    let weight: Vec<f64> = (0..8).map(|j| f64::from((j * 7) % 11 - 5) / 8.0).collect();
    let model = family("open_jev", &export(T_27B, &weight, 0.125)).unwrap();
    let row = |c: usize| {
        (0..8)
            .map(|j| ((c * 5 + j * 3) % 13) as f32 / 4.0 - 1.5)
            .collect()
    };
    let (answers, plans) = drive(&*model, &parse(EXAMPLE), row).unwrap();
    let [plan] = &plans[..] else { panic!() };
    assert!(!plan.noncausal_full_attention && plan.sequences.len() == 7);
    assert!(
        plan.sequences
            .iter()
            .all(|s| s.read == RowSelection::Last && s.projection == Projection::Hidden)
    );
    assert_eq!(answers.usage.input_tokens, plan.input_tokens());
    let rendered = render_response("m", &answers, Map::new());
    let want = json!({
        "team": {"choice": "shipping", "confidence": 0.38759041410665485, "probabilities": {
            "shipping": 0.5917269427377699, "billing": 0.25584512591385167, "other": 0.15242793134837837}},
        "severity": {"score": 0.7665541411590875, "confidence": 0.0, "probabilities": {
            "0": 0.45693945130702507, "1": 0.3195669562268623, "2": 0.22349359246611258}},
        "urgent": {"noul": 0.460011511255011}
    });
    for (id, fields) in want.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            assert_near(&rendered["answers"][id][key], value, &format!("{id}.{key}"));
        }
    }
}

#[test]
fn the_sum_is_rounded_once() {
    // In f32 the small value would be lost between the two large ones.
    let model = family("open_jev", &export(1.0, &[1.0, 1.0, 1.0], 0.0)).unwrap();
    let noul = Criteria::Noul {
        when_true: None,
        when_false: None,
    };
    let one = request(vec![Question {
        criteria: noul,
        ..choice("q", 1)
    }]);
    let (answers, _) = drive(&*model, &one, |_| vec![3e7, 1.0, -3e7]).unwrap();
    let want = 1.0 / (1.0 + (-1.0f64).exp());
    assert!(matches!(answers.answers[0].1, Answer::Noul { noul } if (noul - want).abs() < 1e-15));
}

#[test]
fn plans_hold_as_many_candidates_as_they_may() {
    let many = request(vec![choice("a", 255), choice("b", 255), choice("one", 1)]);
    let (answers, plans) = drive(&*plain(1.0), &many, |i| vec![if i == 300 { 9.0 } else { 0.0 }]).unwrap();
    let sizes: Vec<usize> = plans.iter().map(|plan| plan.sequences.len()).collect();
    assert_eq!(sizes, [MAX_SEQUENCES_PER_PLAN, 255]);
    assert_eq!(
        answers.usage.input_tokens,
        plans.iter().map(Plan::input_tokens).sum::<u64>()
    );
    let chosen: Vec<&str> = answers
        .answers
        .iter()
        .map(|(_, answer)| match answer {
            Answer::Choice { choice, .. } => choice.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        chosen,
        ["option 0 of many", "option 45 of many", "option 0 of many"]
    );
}

#[test]
fn candidates_beyond_what_is_kept_are_encoded_again() {
    // 510 prompts of more than 10,000 bytes, one token each, are more than what is kept.
    let mut config = export(1.0, &[1.0], 0.0);
    config["max_length"] = json!(16_384);
    let family = family("open_jev", &config).unwrap();
    let mut long = request(vec![choice("a", 255), choice("b", 255)]);
    long.state = Some(Content::Text("x".repeat(10_000)));
    let (tokenizer, cx) = context();
    let mut decider = family.start(&long, &cx).unwrap();
    assert_eq!(tokenizer.texts.lock().unwrap().len(), 510);
    let Step::Run(first) = decider.step(None).unwrap() else {
        panic!()
    };
    let zeros = |n| {
        vec![
            SequenceOutput {
                rows: vec![vec![0.0]]
            };
            n
        ]
    };
    let Step::Run(second) = decider.step(Some(&zeros(256))).unwrap() else {
        panic!()
    };
    assert!(tokenizer.texts.lock().unwrap().len() > 510);
    let explained = family.explain(&long, &cx).unwrap();
    assert!(!first.prefix.is_empty(), "candidates share the state");
    let planned = [first, second].map(deltagate_decider::Plan::unshared);
    let planned = planned
        .iter()
        .flat_map(|plan| &plan.sequences)
        .map(|s| &s.token_ids);
    assert!(planned.eq(explained.iter().map(|s| &s.ids)));
    assert!(matches!(decider.step(Some(&zeros(254))).unwrap(), Step::Done(_)));
}

#[test]
fn the_limit_is_the_lower_of_the_two() {
    let (_, cx) = context();
    let one = request(vec![choice("a", 12)]);
    let longest = plain(1.0).explain(&one, &cx).unwrap()[11].ids.len();
    let refused = |max_length: usize, max_tokens: usize, truncate_state: bool| {
        let mut config = export(1.0, &[1.0], 0.0);
        config["max_length"] = json!(max_length);
        let one = DecisionRequest {
            truncate_state,
            ..one.clone()
        };
        let cx = FamilyContext {
            max_tokens,
            ..cx.clone()
        };
        match family("open_jev", &config).unwrap().start(&one, &cx) {
            Ok(_) => None,
            Err(DeciderError::Request(error)) => {
                Some((error.reason(), error.http_status(), error.to_string()))
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(refused(longest, 100_000, false), None);
    for (max_length, max_tokens) in [(longest - 1, 100_000), (4_096, longest - 1)] {
        let limit = longest - 1;
        let message = format!("questions[0]: the prompt has {longest} tokens, the limit is {limit}");
        assert_eq!(
            refused(max_length, max_tokens, false),
            Some(("PROMPT_TOO_LONG", 422, message))
        );
        // There is only one character of state, and all of it would have to go.
        assert_eq!(
            refused(max_length, max_tokens, true).unwrap().0,
            "PROMPT_TOO_LONG"
        );
    }
}

#[test]
fn a_state_is_cut_where_the_request_allows_it() {
    let mut long = request(vec![choice("a", 2)]);
    long.state = Some(Content::Text("y".repeat(6_000)));
    long.truncate_state = true;
    let explained = plain(1.0).explain(&long, &context().1).unwrap();
    assert!(explained.iter().all(|s| (4_092..=4_096).contains(&s.ids.len())));
    assert!(
        explained
            .iter()
            .all(|s| s.spans["truncated_tokens"].as_u64().unwrap() > 1_900)
    );
    let (answers, plans) = drive(&*plain(1.0), &long, |_| vec![0.0]).unwrap();
    assert_eq!(answers.usage.input_tokens, plans[0].input_tokens());
    assert!(answers.usage.truncated_tokens > 3_800);
}

#[test]
fn requests_that_are_refused() {
    for (body, reason, field) in [
        (
            r#"{"state":null,"questions":{"q":{"type":"noul","instructions":"?"}}}"#,
            "WRONG_TYPE",
            "state",
        ),
        (
            r#"{"state":1,"questions":{"q":{"type":"noul","instructions":"?"}}}"#,
            "WRONG_TYPE",
            "state",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul"}}}"#,
            "MISSING",
            "questions[0].instructions",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul","instructions":null}}}"#,
            "WRONG_TYPE",
            "questions[0].instructions",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul","instructions":3}}}"#,
            "WRONG_TYPE",
            "questions[0].instructions",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"choice","instructions":"?","criteria":{"a":null,"b":true}}}}"#,
            "WRONG_TYPE",
            "questions[0].choice.options[1].description",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"?","criteria":{"true":"y"}}}}"#,
            "MISSING",
            "questions[0].noul.false_description",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"?","criteria":{"true":1,"false":"n"}}}}"#,
            "WRONG_TYPE",
            "questions[0].noul.true_description",
        ),
    ] {
        match plain(1.0).start(&parse(body), &context().1) {
            Err(DeciderError::Request(error)) => {
                assert_eq!((error.http_status(), error.reason()), (422, reason), "{body}");
                assert_eq!(error.violations[0].field(), field, "{body}");
            }
            Err(other) => panic!("{body}: {other}"),
            Ok(_) => panic!("{body} is answered"),
        }
    }
}

#[test]
fn without_a_head_nothing_is_answered() {
    let family = family_defaults("open_jev").unwrap();
    match family.start(&parse(EXAMPLE), &context().1) {
        Err(DeciderError::Request(error)) => assert_eq!(error.reason(), "NO_DECISION_HEAD"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it starts"),
    }
}

#[test]
fn outputs_must_fit_the_plan() {
    let shape = |what, expected, got| DeciderError::OutputShape { what, expected, got };
    let rows = |rows: Vec<Vec<f32>>| SequenceOutput { rows };
    for (outputs, want) in [
        (vec![rows(vec![vec![0.0]])], shape("sequences", 2, 1)),
        (vec![rows(vec![vec![0.0]]), rows(vec![])], shape("rows", 1, 0)),
        (
            vec![rows(vec![vec![0.0, 1.0]]), rows(vec![vec![0.0]])],
            shape("values", 1, 2),
        ),
        (
            vec![rows(vec![vec![0.0]]), rows(vec![vec![f32::NAN]])],
            DeciderError::NotFinite { sequence: 1 },
        ),
    ] {
        let mut decider = plain(1.0)
            .start(&request(vec![choice("q", 2)]), &context().1)
            .unwrap();
        decider.step(None).unwrap();
        assert_eq!(decider.step(Some(&outputs)), Err(want));
        assert_eq!(decider.step(None), Err(DeciderError::OutOfTurn));
    }
}

#[test]
fn an_export_is_checked_key_by_key() {
    let refused = |config: &Value| match family("open_jev", config) {
        Err(FamilyError::Config { key, .. }) => key,
        other => panic!("{config}: {other:?}"),
    };
    for (key, value) in [
        ("format", json!("open-jev-text-merged/2")),
        ("format", json!(1)),
        ("model_id", json!("")),
        ("base_revision", json!(null)),
        ("checkpoint_revision", json!(7)),
        ("temperature", json!(0)),
        ("temperature", json!("1")),
        ("max_length", json!(0)),
        ("max_length", json!(16_385)),
        ("max_length", json!(1.5)),
        ("chat_prefix", json!(["a"])),
        ("chat_suffix", json!(null)),
        ("head_weight", json!([])),
        ("head_weight", json!([0.5, "1"])),
        ("head_weight", json!(0.5)),
        ("head_weight", json!([1e39])),
        ("head_bias", json!([0.5])),
        ("head_bias", json!(-1e39)),
        ("pooling", json!("last")),
    ] {
        let mut config = export(1.0, &[1.0], 0.0);
        config[key] = value;
        assert_eq!(refused(&config), key);
    }
    let whole = export(1.0, &[1.0], 0.0);
    for key in whole.as_object().unwrap().keys() {
        let mut config = whole.clone();
        config.as_object_mut().unwrap().shift_remove(key);
        assert_eq!(&refused(&config), key);
    }
    assert_eq!(refused(&json!([])), "");
}

#[test]
fn the_load_check_wants_the_special_tokens() {
    let check = |encode| {
        plain(1.0).check(&FamilyContext {
            tokenizer: Arc::new(Odd(encode)),
            max_tokens: 1000,
        })
    };
    let fault = |reason: &str| {
        Err(FamilyError::Tokenizer {
            reason: reason.into(),
        })
    };
    assert_eq!(check(|_| Ok(vec![7])), Ok(()));
    let spelled = |text: &str| Ok(vec![1; if text == "<think>" { 3 } else { 1 }]);
    assert_eq!(check(spelled), fault("<think> is 3 tokens, not one"));
    assert_eq!(check(|_| Err(TokenizeError)), fault("it cannot encode a prompt"));
}
