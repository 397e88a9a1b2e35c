//! A tokenizer for tests, and a loop that runs a decider to its end.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use deltagate_decider::{
    Answers, ChoiceOption, Content, Criteria, DeciderError, DecisionRequest, Family, FamilyContext, Plan,
    PlannedSequence, Question, SequenceOutput, Step, TokenizeError, Tokenizer, family,
};
use serde_json::{Value, json};

/// The request of the documentation, one question of each kind.
pub const EXAMPLE: &str = r#"{"state": {"ticket":"I was charged twice for order #4411.","amount":12.5,"tags":["billing","app"]},
"questions": {
  "team": {"type":"choice","instructions":"Which team should handle this ticket?",
    "criteria":{"shipping":"Delivery and tracking","billing":"Payments, refunds and invoices","other":null}},
  "severity": {"type":"score","instructions":"How severe is the impact?","criteria":["cosmetic","annoying","blocks the customer"]},
  "urgent": {"type":"noul","instructions":"Should this ticket be answered today?"}}}"#;

/// A tokenizer that is this function.
pub struct Odd(pub fn(&str) -> Result<Vec<u32>, TokenizeError>);

impl Tokenizer for Odd {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        (self.0)(text)
    }

    fn added_text(&self, _: &str) -> Vec<Range<usize>> {
        Vec::new()
    }
}

/// One token per byte: 32..57 for `A`..`Z`, 1000 + byte for all else. Remembers every text.
#[derive(Default)]
pub struct Bytes {
    pub texts: Mutex<Vec<String>>,
}

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.texts.lock().unwrap().push(text.to_owned());
        Ok(text
            .bytes()
            .map(|b| {
                if b.is_ascii_uppercase() {
                    u32::from(b - b'A') + 32
                } else {
                    1000 + u32::from(b)
                }
            })
            .collect())
    }

    fn added_text(&self, _: &str) -> Vec<Range<usize>> {
        Vec::new()
    }
}

/// A context with that tokenizer and the default limit of the published models.
pub fn context() -> (Arc<Bytes>, FamilyContext) {
    let tokenizer = Arc::new(Bytes::default());
    (
        tokenizer.clone(),
        FamilyContext {
            tokenizer,
            max_tokens: 262_144,
        },
    )
}

/// StartLux with the ids of the published tokenizers.
pub fn startlux(temperatures: Value, wide_choice: Value) -> Arc<dyn Family> {
    let letters: Vec<u32> = (32..58).collect();
    let config =
        json!({"letter_token_ids": letters, "temperature_by_type": temperatures, "wide_choice": wide_choice});
    family("startlux", &config).unwrap()
}

/// StartLux with temperature 1.
pub fn plain_startlux() -> Arc<dyn Family> {
    startlux(json!({}), json!({}))
}

/// Runs a request to its answers; `row` gives what is read of pass number `i`, counted over all steps.
pub fn drive_rows(
    family: &dyn Family,
    request: &DecisionRequest,
    cx: &FamilyContext,
    mut row: impl FnMut(usize, &PlannedSequence) -> Vec<f32>,
) -> Result<(Answers, Vec<Plan>), DeciderError> {
    let mut decider = family.start(request, cx)?;
    let (mut plans, mut passes) = (Vec::new(), 0);
    let mut outputs: Option<Vec<SequenceOutput>> = None;
    loop {
        match decider.step(outputs.as_deref())? {
            Step::Done(answers) => return Ok((answers, plans)),
            Step::Run(plan) => {
                let of = |sequence: &PlannedSequence| {
                    let row = row(passes, sequence);
                    passes += 1;
                    SequenceOutput { rows: vec![row] }
                };
                outputs = Some(plan.sequences.iter().map(of).collect());
                plans.push(plan.unshared());
            }
        }
    }
}

/// The same for a family that reads letters; `logits` gives those of pass number `i` with `n` options.
pub fn drive(
    family: &dyn Family,
    request: &DecisionRequest,
    cx: &FamilyContext,
    mut logits: impl FnMut(usize, usize) -> Vec<f32>,
) -> Result<(Answers, Vec<Plan>), DeciderError> {
    drive_rows(family, request, cx, |i, sequence| {
        logits(i, letters(sequence).len())
    })
}

/// Token ids whose rows a sequence reads.
pub fn letters(sequence: &PlannedSequence) -> Vec<u32> {
    match &sequence.projection {
        deltagate_decider::Projection::OutputEmbedding(ids) => ids.clone(),
        other => panic!("{other:?}"),
    }
}

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> Value {
    let path = format!("{}/../../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
        .unwrap()
}

/// Equal, with numbers to 1e-12. Order of keys counts.
pub fn assert_near(got: &Value, want: &Value, context: &str) {
    match (got, want) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= 1e-12, "{context}: {a} is not {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{context}");
            a.iter().zip(b).for_each(|(a, b)| assert_near(a, b, context));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(
                a.keys().eq(b.keys()),
                "{context}: {:?} is not {:?}",
                a.keys(),
                b.keys()
            );
            a.iter()
                .for_each(|(key, value)| assert_near(value, &b[key], &format!("{context}.{key}")));
        }
        _ => assert_eq!(got, want, "{context}"),
    }
}

/// A choice of `options` options without descriptions.
pub fn choice(id: &str, options: usize) -> Question {
    let option = |i| ChoiceOption {
        name: format!("option {i} of many"),
        description: None,
    };
    let criteria = Criteria::Choice((0..options).map(option).collect());
    Question {
        id: id.into(),
        instructions: Some(Content::Text("Which?".into())),
        criteria,
    }
}

/// A request about the state `x`.
pub fn request(questions: Vec<Question>) -> DecisionRequest {
    DecisionRequest {
        state: Some(Content::Text("x".into())),
        questions,
        truncate_state: false,
    }
}
