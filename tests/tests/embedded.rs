//! The embedded model, through the ordinary loader, tokenizer, family and engine: held-out accuracy and golden logits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, fs, ops::ControlFlow, sync::Arc, time::Duration};

use deltagate_checkpoint::Checkpoint;
use deltagate_decider::{Answer, FamilyContext, SequenceOutput, Step, systemone};
use deltagate_executor::engine::{
    Dtype, Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone,
    SequencePlan,
};
use deltagate_gateway::HfTokenizer;
use deltagate_kernels_api::Preferences;
use deltagate_tests::tree::root;
use serde_json::Value;

struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn engine(checkpoint: &Checkpoint) -> Engine {
    let settings = EngineSettings {
        dtype: Dtype::F32,
        threads: None,
        preferences: Preferences::default(),
        segment_tokens: 512,
        max_segments: 8,
        probe_timeout: Duration::from_secs(60),
    };
    Engine::load(checkpoint, &settings, &mut |_| {}).unwrap()
}

fn tokenizer(checkpoint: &Checkpoint) -> HfTokenizer {
    let asset = checkpoint
        .card()
        .assets
        .iter()
        .find(|a| a.name == "tokenizer.json")
        .unwrap();
    HfTokenizer::from_bytes(&fs::read(checkpoint.asset_path(&asset.sha256).unwrap()).unwrap()).unwrap()
}

fn plan(plan: deltagate_decider::Plan) -> ForwardPlan {
    use deltagate_decider::{Projection as P, RowSelection as R};
    let plan = plan.unshared();
    ForwardPlan {
        sequences: plan
            .sequences
            .iter()
            .map(|s| SequencePlan {
                token_ids: s.token_ids.clone(),
                rows: match &s.read {
                    R::Last => RowSelection::Last,
                    R::Positions(at) => RowSelection::Positions(at.clone()),
                    R::All => RowSelection::All,
                },
                projection: match &s.projection {
                    P::Hidden => Projection::Hidden,
                    P::OutputEmbedding(ids) => Projection::OutputEmbedding(ids.clone()),
                    P::DecisionHead(rows) => Projection::DecisionHead(rows.clone()),
                    P::JointHead(_) => panic!("the embedded model has no joint head"),
                },
            })
            .collect(),
        noncausal_full_attention: plan.noncausal_full_attention,
    }
}

#[test]
fn the_embedded_model_is_right_on_held_out_wordings() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let (mut engine, tokenizer) = (engine(&checkpoint), tokenizer(&checkpoint));
    let card = checkpoint.card();
    let family = deltagate_decider::family(card.family.as_deref().unwrap(), &card.family_config).unwrap();
    let context = FamilyContext {
        tokenizer: Arc::new(tokenizer),
        max_tokens: card.max_tokens as usize,
    };

    let text = fs::read_to_string(root().join("tests/fixtures/heldout/decisions.jsonl")).unwrap();
    let mut by_kind: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let body =
            systemone::parse_body(case["request"].to_string().as_bytes(), &family.systemone_rules()).unwrap();
        let mut decider = family.start(&body.request, &context).unwrap();
        let mut outputs: Option<Vec<SequenceOutput>> = None;
        let answers = loop {
            match decider.step(outputs.as_deref()).unwrap() {
                Step::Done(answers) => break answers,
                Step::Run(next) => {
                    let output = engine.forward(&plan(next), &mut Unwatched).unwrap();
                    outputs = Some(
                        output
                            .sequences
                            .into_iter()
                            .map(|rows| SequenceOutput {
                                rows: rows.into_iter().map(|r| r.values).collect(),
                            })
                            .collect(),
                    );
                }
            }
        };
        let (_, answer) = &answers.answers[0];
        let expected = &case["expected"];
        let right = match answer {
            Answer::Choice { choice, .. } => expected.as_str() == Some(choice),
            Answer::Noul { noul } => expected.as_bool() == Some(*noul >= 0.5),
            Answer::Score { probabilities, .. } => {
                let best = (0..probabilities.len())
                    .rev()
                    .max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
                expected.as_u64() == best.map(|b| b as u64)
            }
        };
        let entry = by_kind
            .entry(case["kind"].as_str().unwrap().to_owned())
            .or_default();
        entry.0 += usize::from(right);
        entry.1 += 1;
    }
    let (right, all) = by_kind
        .values()
        .fold((0, 0), |(r, a), (right, all)| (r + right, a + all));
    println!("held-out: {right} of {all} right; by kind (right, all): {by_kind:?}");
    assert!(all >= 500, "only {all} held-out cases");
    assert!(
        right as f64 >= 0.9 * all as f64,
        "{right} of {all} right: {by_kind:?}"
    );
}

#[test]
fn the_embedded_model_gives_the_golden_logits() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let mut engine = engine(&checkpoint);
    let text = fs::read_to_string(root().join("tests/fixtures/heldout/golden_logits.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let cases = golden["items"].as_array().unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
        let expected: Vec<f32> = serde_json::from_value(case["letter_logits"].clone()).unwrap();
        let plan = ForwardPlan {
            sequences: vec![SequencePlan {
                token_ids: ids,
                rows: RowSelection::Last,
                projection: Projection::OutputEmbedding((32..58).collect()),
            }],
            noncausal_full_attention: false,
        };
        let output = engine.forward(&plan, &mut Unwatched).unwrap();
        let values = &output.sequences[0][0].values;
        assert_eq!(values.len(), 26);
        for (got, want) in values.iter().zip(&expected) {
            assert!((got - want).abs() <= 1e-3, "{}: {got} is not {want}", case["id"]);
        }
    }
}
