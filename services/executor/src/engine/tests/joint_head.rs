//! The joint head: on the rows of the backbone, loaded with it, and probed with it.
#![allow(clippy::single_range_in_vec_init)] // one option, one span

use deltagate_checkpoint::{JointHeadConfig, joint_head_tensors};
use deltagate_kernels_api::{JointQuestion, KernelFamily};
use deltagate_kernels_reference as reference;

use super::{
    support::{JOINT_HEAD, Memory, Watcher, config, load, plan, rows, sequence, settings},
    *,
};

const SIZES: JointHeadConfig = JointHeadConfig {
    hidden_size: 48,
    width: 24,
    routing_layers: 2,
    layers: 2,
    heads: 3,
    feedforward: 40,
};

fn source() -> Memory {
    Memory::new(config()).with_joint_head(SIZES)
}

fn question(kind: usize, span: Range<usize>, options: Vec<Range<usize>>) -> JointQuestion {
    JointQuestion { kind, span, options }
}

fn asked(tokens: usize) -> Vec<JointQuestion> {
    vec![
        question(1, 0..3, vec![2..3, 4..9, tokens - 1..tokens]),
        question(0, 5..6, vec![0..1]),
        question(2, 1..tokens, vec![3..7, 3..8]),
    ]
}

fn joint(tokens: usize, questions: Vec<JointQuestion>) -> SequencePlan {
    SequencePlan {
        projection: Projection::JointHead(questions),
        ..sequence(tokens, RowSelection::All)
    }
}

/// What the f64 model of the head makes of the rows that the engine gives.
fn expected(source: &Memory, engine: &mut Engine, tokens: usize) -> Vec<f64> {
    let f64s = |name: &str| -> Vec<f64> {
        let values = source.tensor(name).unwrap().to_f32();
        values.into_iter().map(f64::from).collect()
    };
    let hidden: Vec<f64> = rows(engine, sequence(tokens, RowSelection::All))
        .concat()
        .into_iter()
        .map(f64::from)
        .collect();
    let tensors = joint_head_tensors(&SIZES).into_iter().map(|(name, _)| {
        let values = f64s(&format!("{JOINT_HEAD}{name}"));
        (name, values)
    });
    let shape = reference::JointHeadShape {
        hidden: SIZES.hidden_size,
        width: SIZES.width,
        routing_layers: SIZES.routing_layers,
        layers: SIZES.layers,
        heads: SIZES.heads,
        feedforward: SIZES.feedforward,
    };
    let questions: Vec<_> = asked(tokens)
        .into_iter()
        .map(|question| reference::JointQuestion {
            kind: question.kind,
            span: question.span,
            options: question.options,
        })
        .collect();
    reference::joint_head(
        &shape,
        &tensors.collect(),
        &hidden,
        &f64s("embed_tokens.weight"),
        &sequence(tokens, RowSelection::All).token_ids,
        &questions,
    )
    .logits
}

#[test]
fn logits_of_the_joint_head_are_those_of_the_f64_model_on_the_same_rows() {
    let source = source();
    let mut engine = load(&source, &settings());
    for tokens in [10, 64, 150, 290] {
        let expected = expected(&source, &mut engine, tokens);
        let output = engine
            .forward(&plan(vec![joint(tokens, asked(tokens))]), &mut Watcher::default())
            .unwrap();
        let [row] = &output.sequences[0][..] else {
            panic!("{} rows", output.sequences[0].len())
        };
        assert_eq!(row.position as usize, tokens - 1);
        assert_eq!(row.values.len(), 6);
        for (got, want) in row.values.iter().zip(&expected) {
            assert!((f64::from(*got) - want).abs() < 2e-5, "{tokens}: {got} {want}");
        }
    }
}

#[test]
fn bf16_weights_of_the_joint_head_stay_near_f32() {
    let source = source();
    let bf16 = EngineSettings {
        dtype: Dtype::Bf16,
        ..settings()
    };
    let mut narrow = load(&source, &bf16);
    narrow.is_bound().unwrap();
    let expected = expected(&source, &mut load(&source, &settings()), 70);
    let logits = rows(&mut narrow, joint(70, asked(70))).remove(0);
    let differences = logits
        .iter()
        .zip(&expected)
        .map(|(a, b)| (f64::from(*a) - b).abs());
    let worst = differences.fold(0.0, f64::max);
    assert!(worst > 1e-6 && worst < 0.1, "{worst}");
}

#[test]
fn loading_counts_the_joint_head_and_names_what_is_wrong_in_it() {
    let mut last = None;
    Engine::from_source(&source(), &settings(), &mut |progress| last = Some(progress)).unwrap();
    let progress: LoadProgress = last.unwrap();
    assert_eq!(progress.done_bytes, progress.total_bytes);
    let without = {
        let mut last = None;
        Engine::from_source(&Memory::new(config()), &settings(), &mut |p| last = Some(p)).unwrap();
        last.unwrap().total_bytes
    };
    let values = joint_head_tensors(&SIZES)
        .into_iter()
        .map(|(_, shape)| shape.iter().product::<usize>() as u64);
    assert_eq!(progress.total_bytes - without, 4 * values.sum::<u64>());

    for name in [
        "layers.1.self_attn.in_proj_weight",
        "residual_gate",
        "type_embedding.weight",
        "memory_projection.weight",
    ] {
        let mut broken = source();
        broken.set_first(&format!("{JOINT_HEAD}{name}"), f32::NAN);
        let refused = Engine::from_source(&broken, &settings(), &mut |_| {})
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(&refused, EngineError::Tensor { name: at, .. } if at == name),
            "{name}: {refused}"
        );
        assert!(
            refused.to_string().contains("holds NaN at element 0"),
            "{refused}"
        );
        let mut broken = source();
        broken.tensors.remove(&format!("{JOINT_HEAD}{name}")).unwrap();
        assert!(Engine::from_source(&broken, &settings(), &mut |_| {}).is_err());
    }
}

#[test]
fn questions_that_the_joint_head_cannot_be_asked_are_refused() {
    let mut engine = load(&source(), &settings());
    let last = SequencePlan {
        rows: RowSelection::Last,
        ..joint(10, asked(10))
    };
    for (what, sequence) in [
        ("no question", joint(10, vec![])),
        ("no option", joint(10, vec![question(0, 0..1, vec![])])),
        ("a type", joint(10, vec![question(3, 0..1, vec![0..1])])),
        ("an empty span", joint(10, vec![question(0, 4..4, vec![0..1])])),
        ("beyond the end", joint(10, vec![question(0, 0..1, vec![0..11])])),
        ("one row", last),
    ] {
        match engine.forward(&plan(vec![sequence]), &mut Watcher::default()) {
            Err(EngineError::InvalidPlan { field, .. }) => {
                assert_eq!(field, "sequences[0].projection", "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let mut without = load(&Memory::new(config()), &settings());
    let refused = without.forward(&plan(vec![joint(10, asked(10))]), &mut Watcher::default());
    assert!(
        matches!(refused, Err(EngineError::InvalidPlan { .. })),
        "{refused:?}"
    );
    assert_eq!(engine.report().bindings.len(), KernelFamily::ALL.len());
}

#[test]
fn a_joint_head_that_overflows_gives_no_answer() {
    let mut source = source();
    source.set_first(&format!("{JOINT_HEAD}residual_scorer.0.bias"), 1e30);
    source.set_first(&format!("{JOINT_HEAD}residual_scorer.3.weight"), 1e30);
    let mut engine = load(&source, &settings());
    let result = engine.forward(&plan(vec![joint(9, asked(9))]), &mut Watcher::default());
    assert_eq!(
        result.unwrap_err(),
        EngineError::NotFinite {
            sequence: 0,
            position: 8
        }
    );
}
