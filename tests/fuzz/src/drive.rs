//! Runs a request through the family with a tokenizer of bytes and an executor that makes up its logits.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use deltagate_decider::{
    Answer, Answers, Criteria, DeciderError, DecisionRequest, Family, FamilyContext, MAX_SEQUENCES_PER_PLAN,
    PlannedSequence, Projection, RequestError, SequenceOutput, Step, TokenizeError, Tokenizer, family,
};
use serde_json::json;

/// One token a byte; letters as the published tokenizers have them.
struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let token = |byte: u8| match byte {
            b'A'..=b'Z' => u32::from(byte - b'A') + 32,
            other => 1000 + u32::from(other),
        };
        Ok(text.bytes().map(token).collect())
    }

    fn added_text(&self, _: &str) -> Vec<Range<usize>> {
        Vec::new()
    }
}

/// The family with three temperatures and its default rules.
pub(crate) fn startlux() -> &'static dyn Family {
    static FAMILY: OnceLock<Arc<dyn Family>> = OnceLock::new();
    let family = FAMILY.get_or_init(|| {
        let letters: Vec<u32> = (32..58).collect();
        let temperatures = json!({"choice": 1.5, "noul": 0.25, "score": 3});
        let config = json!({"letter_token_ids": letters, "temperature_by_type": temperatures});
        family("startlux", &config).expect("a valid configuration")
    });
    &**family
}

/// To the answers, which are checked, or to the refusal. Every other error is a bug: the executor makes none.
pub(crate) fn run(
    request: &DecisionRequest,
    max_tokens: usize,
    logit: &mut dyn FnMut(usize) -> f32,
) -> Result<Answers, RequestError> {
    let cx = FamilyContext {
        tokenizer: Arc::new(Bytes),
        max_tokens,
    };
    let mut decider = startlux().start(request, &cx).map_err(only_refusals)?;
    let (mut outputs, mut tokens) = (None::<Vec<SequenceOutput>>, 0);
    loop {
        match decider.step(outputs.as_deref()).map_err(only_refusals)? {
            Step::Done(answers) => {
                assert_eq!(answers.usage.input_tokens, tokens);
                check(request, &answers);
                return Ok(answers);
            }
            Step::Run(plan) => {
                assert!((1..=MAX_SEQUENCES_PER_PLAN).contains(&plan.sequences.len()));
                for sequence in &plan.sequences {
                    assert!(!sequence.token_ids.is_empty());
                    assert!(plan.length(sequence) <= max_tokens as u64);
                    tokens += plan.length(sequence);
                }
                outputs = Some(
                    plan.sequences
                        .iter()
                        .map(|sequence| output(sequence, logit))
                        .collect(),
                );
            }
        }
    }
}

fn only_refusals(error: DeciderError) -> RequestError {
    match error {
        DeciderError::Request(error) => error,
        other => panic!("{other}"),
    }
}

fn output(sequence: &PlannedSequence, logit: &mut dyn FnMut(usize) -> f32) -> SequenceOutput {
    let Projection::OutputEmbedding(ids) = &sequence.projection else {
        panic!("a projection that no executor of this test has");
    };
    assert!((2..=26).contains(&ids.len()));
    SequenceOutput {
        rows: vec![(0..ids.len()).map(&mut *logit).collect()],
    }
}

fn check(request: &DecisionRequest, answers: &Answers) {
    assert_eq!(answers.answers.len(), request.questions.len());
    for (question, (id, answer)) in request.questions.iter().zip(&answers.answers) {
        assert_eq!(&question.id, id);
        match (&question.criteria, answer) {
            (
                Criteria::Choice(options),
                Answer::Choice {
                    choice,
                    confidence,
                    probabilities,
                    ..
                },
            ) => {
                let names = probabilities.iter().map(|(name, _)| name);
                assert!(names.eq(options.iter().map(|option| &option.name)));
                assert!(options.iter().any(|option| option.name == *choice));
                assert!((0.0..=1.0).contains(confidence));
                sums_to_one(probabilities.iter().map(|(_, p)| *p));
            }
            (
                Criteria::Score(levels),
                Answer::Score {
                    score,
                    confidence,
                    probabilities,
                    legend,
                    ..
                },
            ) => {
                assert_eq!((legend, probabilities.len()), (levels, levels.len()));
                assert!((0.0..=levels.len() as f64 - 1.0 + 1e-9).contains(score));
                assert!((0.0..=1.0).contains(confidence));
                sums_to_one(probabilities.iter().copied());
            }
            (Criteria::Noul { .. }, Answer::Noul { noul }) => assert!((0.0..=1.0).contains(noul)),
            _ => panic!("an answer of another type"),
        }
    }
}

fn sums_to_one(p: impl Iterator<Item = f64>) {
    let mut sum = 0.0;
    for p in p {
        assert!((0.0..=1.0).contains(&p), "a probability of {p}");
        sum += p;
    }
    assert!((sum - 1.0).abs() < 1e-9, "probabilities sum to {sum}");
}
