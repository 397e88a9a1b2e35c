#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(super) mod support;
mod timing;

use deltagate_kernels_api::{BindingState, KernelFamily, Preference, Preferences};
use support::{Memory, Watcher, config, engine, load, plan, rows, sequence, settings};

use super::*;

fn near(a: &[f32], b: &[f32], limit: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= limit * b.abs().max(1.0))
}

fn delta_rule(names: &[&str]) -> Preferences {
    let mut preferences = Preferences::default();
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    preferences.set(KernelFamily::DeltaRule, Preference::Ordered(names));
    preferences
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
        assert!(chosen.iter().zip(asked).all(|(row, at)| near(row, &all[at], 1e-5)));
    }
}

#[test]
fn logits_are_products_with_the_output_embedding() {
    let source = Memory::new(config());
    let mut engine = load(&source, &settings());
    let hidden = rows(&mut engine, sequence(20, RowSelection::Last)).remove(0);
    let ids = vec![100, 0, 7, 7];
    let asked = SequencePlan { projection: Projection::OutputEmbedding(ids.clone()), ..sequence(20, RowSelection::Last) };
    let logits = rows(&mut engine, asked).remove(0);
    let table = source.tensor("embed_tokens.weight").unwrap().to_f32();
    let expected: Vec<f32> = ids
        .iter()
        .map(|id| table[*id as usize * 48..][..48].iter().zip(&hidden).map(|(a, b)| a * b).sum())
        .collect();
    assert!(near(&logits, &expected, 1e-5), "{logits:?} {expected:?}");
}

#[test]
fn segments_tell_what_ran_and_change_no_bit() {
    let mut cut = engine();
    let mut whole = load(&Memory::new(config()), &EngineSettings { segment_tokens: 1000, ..settings() });
    let asked = || plan(vec![sequence(100, RowSelection::Last), sequence(10, RowSelection::All)]);
    let (mut few, mut many) = (Watcher::default(), Watcher::default());
    let a = whole.forward(&asked(), &mut few).unwrap();
    let b = cut.forward(&asked(), &mut many).unwrap();
    assert_eq!(a.sequences, b.sequences);
    assert_eq!((few.events.len(), many.events.len()), (2, 5));
    let order: Vec<_> = many.events.iter().map(|e| (e.sequence, e.segment, e.segments, e.layers.clone())).collect();
    assert_eq!(order, [(0, 0, 4, 0..2), (0, 1, 4, 2..4), (0, 2, 4, 4..6), (0, 3, 4, 6..8), (1, 0, 1, 0..8)]);
    let families = |event: &SegmentDone| event.kernels.iter().map(|k| k.family).collect::<Vec<_>>();
    assert_eq!(families(&many.events[4]), KernelFamily::ALL);
    assert!(families(&many.events[0]).contains(&KernelFamily::Embed));
    assert!(!families(&many.events[0]).contains(&KernelFamily::Readout));
    assert!(!families(&many.events[0]).contains(&KernelFamily::Attention), "layers 0 and 1 have none");
    for event in &many.events {
        let busy: Duration = event.kernels.iter().map(|k| k.busy).sum();
        assert!(busy <= event.end - event.start);
        assert!(event.kernels.iter().all(|k| k.first_start >= event.start && k.last_end <= event.end && k.launches > 0));
    }
    let launches = |family| b.kernels.iter().find(|k| k.family == family).map(|k| (k.launches, k.backend.to_string()));
    assert_eq!(launches(KernelFamily::Launch), Some((5, "cpu.eager".to_owned())));
    assert_eq!(launches(KernelFamily::Attention), Some((4, "cpu".to_owned())));
    assert_eq!(launches(KernelFamily::Conv1d), Some((12, "cpu.conv1d".to_owned())));
}

#[test]
fn a_break_cancels_at_the_boundary() {
    let mut engine = engine();
    let mut watcher = Watcher { cancel_after: Some(2), ..Watcher::default() };
    let asked = plan(vec![sequence(100, RowSelection::Last), sequence(10, RowSelection::Last)]);
    assert_eq!(engine.forward(&asked, &mut watcher).unwrap_err(), EngineError::Cancelled);
    assert_eq!(watcher.events.len(), 2);
    assert!(engine.forward(&asked, &mut Watcher::default()).is_ok());
}

#[test]
fn noncausal_attention_sees_the_future_and_the_delta_rule_does_not() {
    let mut engine = engine();
    let mut first_row = |noncausal, last_token| {
        let mut sequence = sequence(9, RowSelection::Positions(vec![0]));
        sequence.token_ids[8] = last_token;
        let asked = ForwardPlan { sequences: vec![sequence], noncausal_full_attention: noncausal };
        engine.forward(&asked, &mut Watcher::default()).unwrap().sequences[0][0].values.clone()
    };
    assert_eq!(first_row(false, 1), first_row(false, 2));
    assert!(!near(&first_row(true, 1), &first_row(true, 2), 1e-4));
}

#[test]
fn what_cannot_be_run_is_refused_by_field() {
    let mut engine = load(&Memory { head: None, ..Memory::new(config()) }, &settings());
    let ok = || sequence(4, RowSelection::Last);
    let ids = |token_ids| SequencePlan { token_ids, ..ok() };
    let at = |positions| SequencePlan { rows: RowSelection::Positions(positions), ..ok() };
    let head = |ids| SequencePlan { projection: Projection::OutputEmbedding(ids), ..ok() };
    for (sequences, field) in [
        (vec![], "sequences"),
        (vec![ids(vec![])], "sequences[0].token_ids"),
        (vec![ok(), ids(vec![5; 301])], "sequences[1].token_ids"),
        (vec![ids(vec![100, 101])], "sequences[0].token_ids"),
        (vec![ids(vec![u32::MAX])], "sequences[0].token_ids"),
        (vec![at(vec![])], "sequences[0].rows"),
        (vec![at(vec![3, 4])], "sequences[0].rows"),
        (vec![head(vec![1])], "sequences[0].projection"),
    ] {
        match engine.forward(&plan(sequences), &mut Watcher::default()) {
            Err(EngineError::InvalidPlan { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert!(engine.forward(&plan(vec![ids(vec![100; 300])]), &mut Watcher::default()).is_ok());
}

#[test]
fn numbers_that_are_not_finite_never_become_an_answer() {
    // The first value of the embedding of token 3, of a weight of the delta rule, and of one of attention.
    for name in ["embed_tokens.weight", "layers.4.linear_attn.A_log", "layers.3.self_attn.k_norm.weight", "norm.weight"] {
        for value in [f32::NAN, f32::INFINITY] {
            if name.ends_with("A_log") && value.is_infinite() {
                // An infinite rate is a decay to nothing, which is finite.
                continue;
            }
            let mut source = Memory::new(config());
            source.set_first(name, value);
            let mut engine = load(&source, &settings());
            let asked = SequencePlan { token_ids: vec![0, 1, 2, 0], ..sequence(4, RowSelection::Last) };
            let result = engine.forward(&plan(vec![asked]), &mut Watcher::default());
            assert_eq!(result.unwrap_err(), EngineError::NotFinite { sequence: 0, position: 3 }, "{name} {value}");
        }
    }
}

#[test]
fn rebinding_swaps_or_leaves_everything_as_it_is() {
    let mut engine = load(&Memory::new(config()), &EngineSettings { preferences: delta_rule(&["cpu.chunked"]), ..settings() });
    let bound = |engine: &Engine| engine.report().binding(KernelFamily::DeltaRule).unwrap().backend.clone();
    let print = |engine: &Engine| fingerprint(engine.report(), &engine.device(), Dtype::F32, "d");
    let asked = || sequence(130, RowSelection::Last);
    let (chunked, first) = (rows(&mut engine, asked()), print(&engine));
    assert_eq!(bound(&engine), "cpu.chunked");

    engine.rebind(&delta_rule(&["cpu.recurrent"])).unwrap();
    assert_eq!(bound(&engine), "cpu.recurrent");
    let (recurrent, second) = (rows(&mut engine, asked()), print(&engine));
    assert!(near(&chunked[0], &recurrent[0], 1e-4) && chunked != recurrent, "another way to nearly the same numbers");
    assert_ne!(first, second);

    match engine.rebind(&delta_rule(&["cpu.missing"])) {
        Err(EngineError::NotBound { reasons }) => assert_eq!(reasons, ["delta_rule: no candidate for cpu.missing"]),
        other => panic!("{other:?}"),
    }
    assert_eq!((bound(&engine), print(&engine)), ("cpu.recurrent".to_owned(), second));
    assert!(engine.is_bound().is_ok());
    let binding = engine.report().binding(KernelFamily::DeltaRule).unwrap();
    let refused = binding.candidates.iter().find(|c| c.backend == "cpu.missing").unwrap();
    assert!(!refused.passed && refused.reason.contains("no such candidate"));
    assert_eq!(rows(&mut engine, asked()), recurrent);

    engine.rebind(&delta_rule(&["cpu.missing", "cpu.chunked"])).unwrap();
    assert_eq!((rows(&mut engine, asked()), print(&engine)), (chunked, first));
    assert!(engine.report().binding(KernelFamily::DeltaRule).unwrap().candidates.iter().all(|c| c.backend != "cpu.missing"));
}

#[test]
fn an_engine_that_is_not_bound_says_why_and_runs_nothing() {
    let mut engine = load(&Memory::new(config()), &EngineSettings { preferences: delta_rule(&["flashinfer"]), ..settings() });
    let reasons = engine.is_bound().unwrap_err();
    assert_eq!(reasons, ["delta_rule: no candidate for flashinfer"]);
    let states: Vec<_> = engine.report().bindings.iter().map(|b| b.state).collect();
    assert_eq!(states.iter().filter(|s| **s == BindingState::Bound).count(), KernelFamily::ALL.len() - 1);
    let mut watcher = Watcher::default();
    let result = engine.forward(&plan(vec![sequence(4, RowSelection::Last)]), &mut watcher);
    assert_eq!(result.unwrap_err(), EngineError::NotBound { reasons });
    assert!(watcher.events.is_empty());
    engine.rebind(&Preferences::default()).unwrap();
    assert_eq!(rows(&mut engine, sequence(4, RowSelection::Last)).len(), 1);
}

#[test]
fn a_probe_without_time_does_not_bind() {
    let settings = EngineSettings { probe_timeout: Duration::ZERO, ..settings() };
    let engine = load(&Memory::new(config()), &settings);
    assert_eq!(engine.is_bound().unwrap_err().len(), KernelFamily::ALL.len());
    assert!(engine.report().bindings.iter().all(|b| b.state == BindingState::ProbeFailed));
}

#[test]
fn loading_counts_every_byte_once_and_names_what_is_missing() {
    let mut source = Memory::new(config());
    let bytes: u64 = source.tensors.values().map(|(_, bytes)| bytes.len() as u64).sum();
    let progress = |source: &Memory| {
        let mut seen = Vec::new();
        Engine::from_source(source, &settings(), &mut |p| seen.push(p)).map(|_| seen)
    };
    let seen = progress(&source).unwrap();
    assert_eq!(seen.first().copied(), Some(LoadProgress { done_bytes: 0, total_bytes: bytes }));
    assert_eq!(seen.last().copied(), Some(LoadProgress { done_bytes: bytes, total_bytes: bytes }));
    assert!(seen.is_sorted_by_key(|p| p.done_bytes));

    let own = source.tensors["embed_tokens.weight"].clone();
    source.tensors.insert("lm_head.weight".to_owned(), own.clone());
    source.head = Some("lm_head.weight");
    assert_eq!(progress(&source).unwrap().last().unwrap().done_bytes, bytes + own.1.len() as u64);

    let removed = source.tensors.remove("layers.2.mlp.up_proj.weight");
    let error = progress(&source).unwrap_err().to_string();
    assert_eq!(error, "tensor `layers.2.mlp.up_proj.weight` did not load: there is no such tensor");
    source.tensors.insert("layers.2.mlp.up_proj.weight".to_owned(), removed.unwrap());
    source.tensors.get_mut("norm.weight").unwrap().0 = vec![2, 24];
    assert!(progress(&source).unwrap_err().to_string().contains("has shape [2, 24], expected [48]"));
}

#[test]
fn fingerprints_tell_models_dtypes_and_devices_apart() {
    let engine = engine();
    let (report, device) = (engine.report().clone(), engine.device());
    let base = fingerprint(&report, &device, Dtype::F32, "digest");
    assert_eq!((base.len(), base.clone()), (64, fingerprint(&report, &device, Dtype::F32, "digest")));
    assert_ne!(base, fingerprint(&report, &device, Dtype::Bf16, "digest"));
    assert_ne!(base, fingerprint(&report, &device, Dtype::F32, "other"));
    let other = DeviceIdentity { compute_capability: "9.0".to_owned(), ..device.clone() };
    assert_ne!(base, fingerprint(&report, &other, Dtype::F32, "digest"));
    let mut changed = report.clone();
    changed.bindings[3].source_digest = "0".repeat(64);
    assert_ne!(base, fingerprint(&changed, &device, Dtype::F32, "digest"));
    let mut losers = report;
    losers.bindings.iter_mut().for_each(|b| b.candidates.clear());
    assert_eq!(base, fingerprint(&losers, &device, Dtype::F32, "digest"));
}

#[test]
fn bf16_stays_near_f32() {
    let source = Memory::new(config());
    let mut narrow = load(&source, &EngineSettings { dtype: Dtype::Bf16, ..settings() });
    narrow.is_bound().unwrap();
    let mut wide = load(&source, &settings());
    for tokens in [1, 70] {
        let (a, b) = (rows(&mut narrow, sequence(tokens, RowSelection::Last)), rows(&mut wide, sequence(tokens, RowSelection::Last)));
        let (mut difference, mut norm) = (0.0, 0.0);
        for (a, b) in a[0].iter().zip(&b[0]) {
            difference += (a - b) * (a - b);
            norm += b * b;
        }
        let relative = (difference / norm).sqrt();
        assert!(relative > 1e-5 && relative < 3e-2, "{tokens} tokens: relative L2 {relative}");
    }
}
