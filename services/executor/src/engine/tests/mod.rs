#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod binding;
mod joint_head;
pub(super) mod support;
mod timing;

use deltagate_kernels_api::{KernelFamily, Preference, Preferences};
use support::{Memory, Watcher, config, engine, load, plan, rows, sequence, settings};

use super::*;

fn near(a: &[f32], b: &[f32], limit: f32) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= limit * b.abs().max(1.0))
}

#[test]
fn selected_rows_are_those_of_the_whole() {
    let mut engine = engine();
    for tokens in [1, 5, 64, 65, 150] {
        let all = rows(&mut engine, sequence(tokens, RowSelection::All));
        assert_eq!((all.len(), all[0].len()), (tokens, 48));
        let last = rows(&mut engine, sequence(tokens, RowSelection::Last));
        assert_eq!(last.len(), 1);
        assert!(near(&last[0], &all[tokens - 1], 1e-5));
        let asked = [tokens - 1, 0, tokens / 2, 0];
        let positions = RowSelection::Positions(asked.iter().map(|p| *p as u32).collect());
        let chosen = rows(&mut engine, sequence(tokens, positions));
        assert_eq!(chosen.len(), asked.len());
        assert!(
            chosen
                .iter()
                .zip(asked)
                .all(|(row, at)| near(row, &all[at], 1e-5))
        );
    }
}

/// `rows` of a table, each times the hidden row.
fn products(table: &[f32], rows: &[u32], hidden: &[f32]) -> Vec<f32> {
    let dot = |row: &u32| {
        let values = table[*row as usize * hidden.len()..].iter().zip(hidden);
        values.map(|(a, b)| a * b).sum()
    };
    rows.iter().map(dot).collect()
}

#[test]
fn logits_are_products_with_the_output_embedding_or_the_decision_head() {
    let source = Memory::new(config()).with_decision_head(5);
    let mut engine = load(&source, &settings());
    let hidden = rows(&mut engine, sequence(20, RowSelection::Last)).remove(0);
    let asked = [
        (vec![100, 0, 7, 7], "embed_tokens.weight"),
        (vec![4, 0, 4], "decision head"),
    ];
    for (ids, table) in asked {
        let projection = match table {
            "decision head" => Projection::DecisionHead(ids.clone()),
            _ => Projection::OutputEmbedding(ids.clone()),
        };
        let asked = SequencePlan {
            projection,
            ..sequence(20, RowSelection::Last)
        };
        let logits = rows(&mut engine, asked).remove(0);
        let table = source.tensor(table).unwrap().to_f32();
        assert!(near(&logits, &products(&table, &ids, &hidden), 1e-4));
    }
}

#[test]
fn segments_tell_what_ran_and_change_no_bit() {
    // Named, because the fastest of two that are nearly as fast differs from engine to engine, and so do the last bits.
    let mut preferences = Preferences::default();
    let name = vec!["cpu.chunked".to_owned()];
    preferences.set(KernelFamily::DeltaRule, Preference::Ordered(name));
    let with = |segment_tokens| {
        let settings = EngineSettings {
            segment_tokens,
            preferences: preferences.clone(),
            ..settings()
        };
        load(&Memory::new(config()), &settings)
    };
    let mut cut = with(settings().segment_tokens);
    let mut whole = with(1000);
    let asked = || {
        plan(vec![
            sequence(100, RowSelection::Last),
            sequence(10, RowSelection::All),
        ])
    };
    let (mut few, mut many) = (Watcher::default(), Watcher::default());
    let a = whole.forward(&asked(), &mut few).unwrap();
    let b = cut.forward(&asked(), &mut many).unwrap();
    assert_eq!(a.sequences, b.sequences);
    assert_eq!((few.events.len(), many.events.len()), (2, 5));
    let order: Vec<_> = many
        .events
        .iter()
        .map(|e| (e.sequence, e.segment, e.segments, e.layers.clone()))
        .collect();
    assert_eq!(
        order,
        [
            (0, 0, 4, 0..2),
            (0, 1, 4, 2..4),
            (0, 2, 4, 4..6),
            (0, 3, 4, 6..8),
            (1, 0, 1, 0..8)
        ]
    );
    let families = |event: &SegmentDone| event.kernels.iter().map(|k| k.family).collect::<Vec<_>>();
    assert_eq!(families(&many.events[4]), KernelFamily::ALL);
    assert!(families(&many.events[0]).contains(&KernelFamily::Embed));
    assert!(!families(&many.events[0]).contains(&KernelFamily::Readout));
    assert!(
        !families(&many.events[0]).contains(&KernelFamily::Attention),
        "layers 0 and 1 have none"
    );
    for event in &many.events {
        let busy: Duration = event.kernels.iter().map(|k| k.busy).sum();
        assert!(busy <= event.end - event.start);
        assert!(
            event
                .kernels
                .iter()
                .all(|k| k.first_start >= event.start && k.last_end <= event.end && k.launches > 0)
        );
    }
    let launches = |family| {
        b.kernels
            .iter()
            .find(|k| k.family == family)
            .map(|k| (k.launches, k.backend.to_string()))
    };
    assert_eq!(launches(KernelFamily::Launch), Some((5, "cpu.eager".to_owned())));
    assert_eq!(launches(KernelFamily::Attention), Some((4, "cpu".to_owned())));
    assert_eq!(
        launches(KernelFamily::Conv1d),
        Some((12, "cpu.conv1d".to_owned()))
    );
}

#[test]
fn a_break_cancels_at_the_boundary() {
    let mut engine = engine();
    let mut watcher = Watcher {
        cancel_after: Some(2),
        ..Watcher::default()
    };
    let asked = plan(vec![
        sequence(100, RowSelection::Last),
        sequence(10, RowSelection::Last),
    ]);
    assert_eq!(
        engine.forward(&asked, &mut watcher).unwrap_err(),
        EngineError::Cancelled
    );
    assert_eq!(watcher.events.len(), 2);
    assert!(engine.forward(&asked, &mut Watcher::default()).is_ok());
}

#[test]
fn noncausal_attention_sees_the_future_and_the_delta_rule_does_not() {
    let mut engine = engine();
    let mut first_row = |noncausal, last_token| {
        let mut sequence = sequence(9, RowSelection::Positions(vec![0]));
        sequence.token_ids[8] = last_token;
        let asked = ForwardPlan {
            sequences: vec![sequence],
            noncausal_full_attention: noncausal,
        };
        engine.forward(&asked, &mut Watcher::default()).unwrap().sequences[0][0]
            .values
            .clone()
    };
    assert_eq!(first_row(false, 1), first_row(false, 2));
    assert!(!near(&first_row(true, 1), &first_row(true, 2), 1e-4));
}

#[test]
fn what_cannot_be_run_is_refused_by_field() {
    let mut engine = load(
        &Memory {
            head: None,
            ..Memory::new(config())
        },
        &settings(),
    );
    let ok = || sequence(4, RowSelection::Last);
    let ids = |token_ids| SequencePlan { token_ids, ..ok() };
    let at = |positions| SequencePlan {
        rows: RowSelection::Positions(positions),
        ..ok()
    };
    let head = |ids| SequencePlan {
        projection: Projection::OutputEmbedding(ids),
        ..ok()
    };
    let decision = |rows| SequencePlan {
        projection: Projection::DecisionHead(rows),
        ..ok()
    };
    for (sequences, field) in [
        (vec![], "sequences"),
        (vec![ids(vec![])], "sequences[0].token_ids"),
        (vec![ok(), ids(vec![5; 301])], "sequences[1].token_ids"),
        (vec![ids(vec![100, 101])], "sequences[0].token_ids"),
        (vec![ids(vec![u32::MAX])], "sequences[0].token_ids"),
        (vec![at(vec![])], "sequences[0].rows"),
        (vec![at(vec![3, 4])], "sequences[0].rows"),
        (vec![head(vec![1])], "sequences[0].projection"),
        (vec![decision(vec![0])], "sequences[0].projection"),
    ] {
        match engine.forward(&plan(sequences), &mut Watcher::default()) {
            Err(EngineError::InvalidPlan { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert!(
        engine
            .forward(&plan(vec![ids(vec![100; 300])]), &mut Watcher::default())
            .is_ok()
    );
}

#[test]
fn numbers_that_are_not_finite_never_become_an_answer() {
    // Every weight is finite, and what comes of them is not: logits that overflow, and scores that do.
    let overflows = [
        (
            ["norm.weight", "embed_tokens.weight"],
            Projection::OutputEmbedding(vec![0]),
        ),
        (
            [
                "layers.3.self_attn.q_norm.weight",
                "layers.3.self_attn.k_norm.weight",
            ],
            Projection::Hidden,
        ),
    ];
    for (names, projection) in overflows {
        let mut source = Memory::new(config());
        for name in names {
            source.set_first(name, 1e30);
        }
        let mut engine = load(&source, &settings());
        let asked = SequencePlan {
            token_ids: vec![1, 2, 1, 2],
            projection,
            ..sequence(4, RowSelection::Last)
        };
        let result = engine.forward(&plan(vec![asked]), &mut Watcher::default());
        let refused = EngineError::NotFinite {
            sequence: 0,
            position: 3,
        };
        assert_eq!(result.unwrap_err(), refused, "{names:?}");
    }
}

#[test]
fn weights_that_are_not_finite_are_not_loaded() {
    for name in [
        "embed_tokens.weight",
        "layers.4.linear_attn.A_log",
        "layers.3.self_attn.k_norm.weight",
        "norm.weight",
    ] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut source = Memory::new(config());
            source.set_first(name, value);
            let refused = Engine::from_source(&source, &settings(), &mut |_| {})
                .map(drop)
                .unwrap_err();
            assert!(
                matches!(&refused, EngineError::Tensor { name: at, .. } if at == name),
                "{name} {value}: {refused}"
            );
        }
    }
}

#[test]
fn bf16_stays_near_f32() {
    let source = Memory::new(config());
    let mut narrow = load(
        &source,
        &EngineSettings {
            dtype: Dtype::Bf16,
            ..settings()
        },
    );
    narrow.is_bound().unwrap();
    let mut wide = load(&source, &settings());
    for tokens in [1, 70] {
        let (a, b) = (
            rows(&mut narrow, sequence(tokens, RowSelection::Last)),
            rows(&mut wide, sequence(tokens, RowSelection::Last)),
        );
        let (mut difference, mut norm) = (0.0, 0.0);
        for (a, b) in a[0].iter().zip(&b[0]) {
            difference += (a - b) * (a - b);
            norm += b * b;
        }
        let relative = (difference / norm).sqrt();
        assert!(
            relative > 1e-5 && relative < 3e-2,
            "{tokens} tokens: relative L2 {relative}"
        );
    }
}
