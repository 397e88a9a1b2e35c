//! PPLX-decider against vectors made by an independent program (tests/fixtures/pplx/make.py). Token counts need the real
//! tokenizer and are compared elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use deltagate_decider::systemone::parse_body;
use deltagate_decider::{
    Answer, ChoiceOption, Criteria, DecisionRequest, Family, FamilyContext, Projection, RowSelection,
    TokenizeError, family, family_defaults,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{EXAMPLE, Odd, assert_near, context, drive_rows, fixture};

fn config(temperature: f64, attention_mode: &str) -> Value {
    let codes = fixture("codes.json");
    json!({
        "codes": codes["codes"], "token_ids": codes["token_ids"], "temperature": temperature,
        "attention_mode": attention_mode, "max_length": 8192
    })
}

fn v1(temperature: f64) -> Arc<dyn Family> {
    family("pplx_v1", &config(temperature, "causal")).unwrap()
}

fn request(body: &str) -> DecisionRequest {
    let rules = v1(1.0).systemone_rules();
    parse_body(body.as_bytes(), &rules)
        .unwrap_or_else(|error| panic!("{body}: {error}"))
        .request
}

#[test]
fn pplx_prompts_are_those_of_an_independent_program() {
    let vectors = fixture("pplx/vectors.json");
    let cases = vectors["requests"].as_array().unwrap();
    assert_eq!(cases.len(), 40);
    let cx = context().1;
    for case in cases {
        let request = request(case["body"].as_str().unwrap());
        let explained = v1(1.0).explain(&request, &cx).unwrap();
        let texts: Vec<&str> = explained.iter().map(|sequence| sequence.text.as_str()).collect();
        assert_eq!(json!(texts), case["prompts"]);
        // Without a model the prompts are the same.
        assert_eq!(
            family_defaults("pplx_v1_1")
                .unwrap()
                .explain(&request, &cx)
                .unwrap(),
            explained
        );
    }
}

#[test]
fn pplx_prompts_of_the_documentation_have_their_hashes() {
    let explained = v1(1.0).explain(&request(EXAMPLE), &context().1).unwrap();
    let hashes: Vec<String> = explained
        .iter()
        .map(|sequence| hex::encode(Sha256::digest(&sequence.text))[..16].to_owned())
        .collect();
    assert_eq!(
        hashes,
        ["99253d8ce052045d", "dfbdaaa5b4bde677", "4dbdaaaee0d8681d"]
    );
    assert_eq!(explained[0].spans["codes"]["C"], json!("other"));
}

#[test]
fn pplx_reads_a_row_of_the_head_for_each_option_and_v1_1_is_not_causal() {
    for (id, mode, noncausal) in [
        ("pplx_v1", "causal", false),
        ("pplx_v1_1", "noncausal_full_attention", true),
    ] {
        let family = family(id, &config(1.0, mode)).unwrap();
        assert_eq!(family.id(), id);
        let (answers, plans) = drive_rows(&*family, &request(EXAMPLE), &context().1, |_, sequence| {
            assert_eq!(sequence.read, RowSelection::Last);
            let Projection::DecisionHead(rows) = &sequence.projection else {
                panic!()
            };
            assert!(rows.iter().copied().eq(0..rows.len() as u32));
            (0u8..).map(f32::from).take(rows.len()).collect()
        })
        .unwrap();
        assert_eq!(plans.len(), 1);
        assert_eq!(plans[0].noncausal_full_attention, noncausal);
        let widths: Vec<usize> = plans[0]
            .sequences
            .iter()
            .map(|sequence| match &sequence.projection {
                Projection::DecisionHead(rows) => rows.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(widths, [3, 3, 2]);
        assert_eq!(answers.usage.input_tokens, plans[0].input_tokens());
        // The last code has the largest logit: other, the highest level, yes.
        assert!(matches!(&answers.answers[0].1, Answer::Choice { choice, .. } if choice == "other"));
        assert!(matches!(&answers.answers[2].1, Answer::Noul { noul } if *noul > 0.5));
    }
}

#[test]
fn pplx_answers_are_softmax_at_the_models_temperature() {
    let vectors = fixture("pplx/vectors.json");
    for case in vectors["answers"].as_array().unwrap() {
        let logits: Vec<f32> = serde_json::from_value(case["logits"].clone()).unwrap();
        let options = (0..logits.len()).map(|i| ChoiceOption {
            name: format!("o{i}"),
            description: None,
        });
        let mut asked = request(EXAMPLE);
        asked.questions.truncate(1);
        asked.questions[0].criteria = Criteria::Choice(options.collect());
        let family = v1(case["temperature"].as_f64().unwrap());
        let (answers, _) = drive_rows(&*family, &asked, &context().1, |_, _| logits.clone()).unwrap();
        let Answer::Choice { probabilities, .. } = &answers.answers[0].1 else {
            panic!()
        };
        let p: Vec<f64> = probabilities.iter().map(|(_, p)| *p).collect();
        assert_near(&json!(p), &case["p"], "p");
    }
}

#[test]
fn pplx_requests_that_are_refused() {
    for (body, reason, field) in [
        (
            r#"{"state":3,"questions":{"q":{"type":"noul"}}}"#,
            "WRONG_TYPE",
            "state",
        ),
        (
            r#"{"state":null,"questions":{"q":{"type":"noul"}}}"#,
            "WRONG_TYPE",
            "state",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"score","criteria":["a"]}}}"#,
            "LEVEL_COUNT",
            "questions[0].score.levels",
        ),
        (
            r#"{"state":"x","questions":{"q":{"type":"noul","criteria":{"true":"a","maybe":"b"}}}}"#,
            "UNKNOWN_KEY",
            "questions[0].criteria[1]",
        ),
    ] {
        let family = v1(1.0);
        let error = match parse_body(body.as_bytes(), &family.systemone_rules()) {
            Err(error) => error,
            Ok(parsed) => match family.start(&parsed.request, &context().1) {
                Err(deltagate_decider::DeciderError::Request(error)) => error,
                Err(other) => panic!("{body}: {other}"),
                Ok(_) => panic!("{body}"),
            },
        };
        let violation = &error.violations[0];
        assert_eq!(
            (violation.reason, violation.field().as_str()),
            (reason, field),
            "{body}"
        );
    }
    // The limit is the lower of the model's and the family's.
    let mut short = config(1.0, "causal");
    short["max_length"] = json!(300);
    let error = family("pplx_v1", &short)
        .unwrap()
        .explain(&request(EXAMPLE), &context().1)
        .unwrap_err();
    assert!(error.to_string().contains("300"), "{error}");
}

#[test]
fn pplx_configs_and_tokenizers_that_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 6] = [
        (
            |c| c["attention_mode"] = json!("noncausal_full_attention"),
            "pplx_v1",
        ),
        (|c| c["attention_mode"] = json!("both"), "unknown variant"),
        (|c| c["temperature"] = json!(0.0), "above 0"),
        (|c| c["codes"] = json!(["A"]), "as long as"),
        (|c| c["max_length"] = json!(0), "is 0"),
        (|c| c["pooling"] = json!("last"), "unknown field"),
    ];
    for (change, problem) in cases {
        let mut wrong = config(1.0, "causal");
        change(&mut wrong);
        let error = family("pplx_v1", &wrong).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    // One token per text: its number in a table.
    let of = |encode: fn(&str) -> Result<Vec<u32>, TokenizeError>| FamilyContext {
        tokenizer: Arc::new(Odd(encode)),
        max_tokens: 100,
    };
    let known = |text: &str| {
        let codes = fixture("codes.json");
        let at = codes["codes"]
            .as_array()
            .unwrap()
            .iter()
            .position(|code| code == text);
        at.map_or(9999, |at| codes["token_ids"][at].as_u64().unwrap() as u32)
    };
    static KNOWN: std::sync::OnceLock<std::collections::HashMap<String, u32>> = std::sync::OnceLock::new();
    KNOWN.get_or_init(|| {
        let codes = fixture("codes.json");
        let names = codes["codes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|code| code.as_str().unwrap().to_owned());
        names.map(|name| (name.clone(), known(&name))).collect()
    });
    let table = |text: &str| {
        Ok(vec![
            KNOWN
                .get()
                .and_then(|known| known.get(text))
                .copied()
                .unwrap_or(9999),
        ])
    };
    v1(1.0).check(&of(table)).unwrap();
    let error = v1(1.0).check(&of(|_| Ok(vec![1]))).unwrap_err().to_string();
    assert!(error.contains("code A is token 1, not 32"), "{error}");
    let error = v1(1.0).check(&of(|_| Ok(vec![1, 2]))).unwrap_err().to_string();
    assert!(error.contains("<|im_start|> is 2 tokens"), "{error}");
}
