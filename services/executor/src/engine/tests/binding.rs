//! Loading, binding, swapping, and the fingerprint of what is bound.

use deltagate_kernels_api::{BindingState, KernelFamily, Preference, Preferences};

use super::{
    near,
    support::{Memory, Watcher, config, engine, load, plan, rows, sequence, settings},
};
use crate::engine::*;

fn delta_rule(names: &[&str]) -> Preferences {
    let mut preferences = Preferences::default();
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    preferences.set(KernelFamily::DeltaRule, Preference::Ordered(names));
    preferences
}

#[test]
fn rebinding_swaps_or_leaves_everything_as_it_is() {
    let mut engine = load(
        &Memory::new(config()),
        &EngineSettings {
            preferences: delta_rule(&["cpu.chunked"]),
            ..settings()
        },
    );
    let bound = |engine: &Engine| {
        engine
            .report()
            .binding(KernelFamily::DeltaRule)
            .unwrap()
            .backend
            .clone()
    };
    let print = |engine: &Engine| fingerprint(engine.report(), &engine.device(), Dtype::F32, "d");
    let asked = || sequence(130, RowSelection::Last);
    let (chunked, first) = (rows(&mut engine, asked()), print(&engine));
    assert_eq!(bound(&engine), "cpu.chunked");

    engine.rebind(&delta_rule(&["cpu.recurrent"])).unwrap();
    assert_eq!(bound(&engine), "cpu.recurrent");
    let (recurrent, second) = (rows(&mut engine, asked()), print(&engine));
    assert!(
        near(&chunked[0], &recurrent[0], 1e-4) && chunked != recurrent,
        "another way to nearly the same numbers"
    );
    assert_ne!(first, second);

    match engine.rebind(&delta_rule(&["cpu.missing"])) {
        Err(EngineError::NotBound { reasons }) => {
            assert_eq!(reasons, ["delta_rule: no candidate for cpu.missing"])
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bound(&engine), print(&engine)),
        ("cpu.recurrent".to_owned(), second)
    );
    assert!(engine.is_bound().is_ok());
    let binding = engine.report().binding(KernelFamily::DeltaRule).unwrap();
    let refused = binding
        .candidates
        .iter()
        .find(|c| c.backend == "cpu.missing")
        .unwrap();
    assert!(!refused.passed && refused.reason.contains("no such candidate"));
    assert_eq!(rows(&mut engine, asked()), recurrent);

    engine
        .rebind(&delta_rule(&["cpu.missing", "cpu.chunked"]))
        .unwrap();
    assert_eq!((rows(&mut engine, asked()), print(&engine)), (chunked, first));
    assert!(
        engine
            .report()
            .binding(KernelFamily::DeltaRule)
            .unwrap()
            .candidates
            .iter()
            .all(|c| c.backend != "cpu.missing")
    );
}

#[test]
fn an_engine_that_is_not_bound_says_why_and_runs_nothing() {
    let mut engine = load(
        &Memory::new(config()),
        &EngineSettings {
            preferences: delta_rule(&["flashinfer"]),
            ..settings()
        },
    );
    let reasons = engine.is_bound().unwrap_err();
    assert_eq!(reasons, ["delta_rule: no candidate for flashinfer"]);
    let states: Vec<_> = engine.report().bindings.iter().map(|b| b.state).collect();
    assert_eq!(
        states.iter().filter(|s| **s == BindingState::Bound).count(),
        KernelFamily::ALL.len() - 1
    );
    let mut watcher = Watcher::default();
    let result = engine.forward(&plan(vec![sequence(4, RowSelection::Last)]), &mut watcher);
    assert_eq!(result.unwrap_err(), EngineError::NotBound { reasons });
    assert!(watcher.events.is_empty());
    engine.rebind(&Preferences::default()).unwrap();
    assert_eq!(rows(&mut engine, sequence(4, RowSelection::Last)).len(), 1);
}

#[test]
fn a_probe_without_time_does_not_bind() {
    let settings = EngineSettings {
        probe_timeout: Duration::ZERO,
        ..settings()
    };
    let engine = load(&Memory::new(config()), &settings);
    assert_eq!(engine.is_bound().unwrap_err().len(), KernelFamily::ALL.len());
    assert!(
        engine
            .report()
            .bindings
            .iter()
            .all(|b| b.state == BindingState::ProbeFailed)
    );
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
    assert_eq!(
        seen.first().copied(),
        Some(LoadProgress {
            done_bytes: 0,
            total_bytes: bytes
        })
    );
    assert_eq!(
        seen.last().copied(),
        Some(LoadProgress {
            done_bytes: bytes,
            total_bytes: bytes
        })
    );
    assert!(seen.is_sorted_by_key(|p| p.done_bytes));

    let own = source.tensors["embed_tokens.weight"].clone();
    source.tensors.insert("lm_head.weight".to_owned(), own.clone());
    source.head = Some("lm_head.weight");
    assert_eq!(
        progress(&source).unwrap().last().unwrap().done_bytes,
        bytes + own.1.len() as u64
    );

    let removed = source.tensors.remove("layers.2.mlp.up_proj.weight");
    let error = progress(&source).unwrap_err().to_string();
    assert_eq!(
        error,
        "tensor `layers.2.mlp.up_proj.weight` did not load: there is no such tensor"
    );
    source
        .tensors
        .insert("layers.2.mlp.up_proj.weight".to_owned(), removed.unwrap());
    source.tensors.get_mut("norm.weight").unwrap().0 = vec![2, 24];
    assert!(
        progress(&source)
            .unwrap_err()
            .to_string()
            .contains("has shape [2, 24], expected [48]")
    );
}

#[test]
fn fingerprints_tell_models_dtypes_and_devices_apart() {
    let engine = engine();
    let (report, device) = (engine.report().clone(), engine.device());
    let base = fingerprint(&report, &device, Dtype::F32, "digest");
    assert_eq!(
        (base.len(), base.clone()),
        (64, fingerprint(&report, &device, Dtype::F32, "digest"))
    );
    assert_ne!(base, fingerprint(&report, &device, Dtype::Bf16, "digest"));
    assert_ne!(base, fingerprint(&report, &device, Dtype::F32, "other"));
    let other = DeviceIdentity {
        compute_capability: "9.0".to_owned(),
        ..device.clone()
    };
    assert_ne!(base, fingerprint(&report, &other, Dtype::F32, "digest"));
    let mut changed = report.clone();
    changed.bindings[3].source_digest = "0".repeat(64);
    assert_ne!(base, fingerprint(&changed, &device, Dtype::F32, "digest"));
    let mut losers = report;
    losers.bindings.iter_mut().for_each(|b| b.candidates.clear());
    assert_eq!(base, fingerprint(&losers, &device, Dtype::F32, "digest"));
}
