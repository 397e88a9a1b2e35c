#![allow(clippy::unwrap_used)]
use super::*;
use crate::{ProbeStage, ProbeTime};

/// `name+12` passed with a median of 12 µs at 136 tokens, `name-` failed its probe, `name~12@9` was timed at 9 tokens.
fn candidate(spec: &str) -> CandidateReport {
    let (name, passed, times) = if let Some(name) = spec.strip_suffix('-') {
        (name, false, Vec::new())
    } else if let Some((name, rest)) = spec.split_once('~') {
        let (micros, tokens) = rest.split_once('@').unwrap();
        (
            name,
            true,
            vec![time(tokens.parse().unwrap(), micros.parse().unwrap())],
        )
    } else {
        let (name, micros) = spec.split_once('+').unwrap();
        (name, true, vec![time(136, micros.parse().unwrap())])
    };
    CandidateReport {
        backend: name.to_owned(),
        version: "1".to_owned(),
        source_digest: format!("digest of {name}"),
        stage: if passed {
            ProbeStage::Timed
        } else {
            ProbeStage::Loadable
        },
        passed,
        reason: if passed {
            String::new()
        } else {
            format!("{name} is wrong")
        },
        relative_l2: 0.0,
        worst_element: 0.0,
        times,
    }
}

fn time(tokens: usize, micros: u64) -> ProbeTime {
    ProbeTime {
        tokens,
        median: Duration::from_micros(micros),
    }
}

fn names(list: &[&str]) -> Preference {
    Preference::Ordered(list.iter().map(|s| (*s).to_owned()).collect())
}

#[test]
fn binds_by_the_rules() {
    use BindingState::{Bound, Missing, ProbeFailed};
    let one = |name: &str| Preference::One(name.to_owned());
    for (candidates, preference, state, backend) in [
        (&["a+9", "b+5", "c+7"][..], Preference::Auto, Bound, "b"),
        (&["a+5", "b+5"], Preference::Auto, Bound, "a"),
        (&["a+9", "b-"], Preference::Auto, Bound, "a"),
        (&["a-", "b-"], Preference::Auto, ProbeFailed, ""),
        (&[], Preference::Auto, Missing, ""),
        // No length in common: nothing says who is faster, so the first one stands.
        (&["a+9", "b~5@9"], Preference::Auto, Bound, "a"),
        (&["a+9", "b+5"], one("a"), Bound, "a"),
        (&["a-", "b+5"], one("a"), ProbeFailed, ""),
        (&["a+9", "b+5"], one("x"), Missing, ""),
        (&["a+1", "b+5", "c+7"], names(&["c", "b"]), Bound, "c"),
        (&["a+1", "b+5", "c-"], names(&["c", "b"]), Bound, "b"),
        (&["a+1", "b+5"], names(&["x", "b"]), Bound, "b"),
        (&["a+1", "b-", "c-"], names(&["c", "b"]), ProbeFailed, ""),
        (&["a+1", "b-"], names(&["x", "b"]), ProbeFailed, ""),
        (&["a+1"], names(&["x", "y"]), Missing, ""),
        (&["a+1"], names(&[]), Missing, ""),
        // A name is a whole name.
        (&["cpu.chunked+1"], one("cpu"), Missing, ""),
        (&["a+1"], one(""), Missing, ""),
    ] {
        let reports: Vec<_> = candidates.iter().map(|c| candidate(c)).collect();
        let binding = negotiate(KernelFamily::DeltaRule, &reports, &preference);
        let case = format!("{candidates:?} {preference:?}");
        assert_eq!(
            (binding.state, binding.backend.as_str()),
            (state, backend),
            "{case}"
        );
        assert_eq!(binding.preference, preference);
        assert_eq!(
            binding.candidates.len(),
            candidates.len(),
            "every candidate is reported: {case}"
        );
        assert_eq!(binding.refusal().is_some(), state != Bound, "{case}");
        for c in &binding.candidates {
            assert_eq!(
                c.reason.is_empty(),
                state == Bound && c.backend == backend,
                "{case}: {c:?}"
            );
        }
        if state == Bound {
            assert_eq!(binding.source_digest, format!("digest of {backend}"));
        } else {
            assert!(binding.version.is_empty() && binding.source_digest.is_empty());
        }
    }
}

#[test]
fn losers_say_why() {
    let reports: Vec<_> = ["a+9", "b+5", "c-"].into_iter().map(candidate).collect();
    let reason = |preference: &Preference, index: usize| {
        negotiate(KernelFamily::Norm, &reports, preference).candidates[index]
            .reason
            .clone()
    };
    assert_eq!(reason(&Preference::Auto, 0), "b is faster");
    assert_eq!(reason(&Preference::Auto, 2), "c is wrong");
    assert_eq!(reason(&names(&["a", "b"]), 1), "a is preferred");
    assert_eq!(reason(&names(&["a"]), 1), "not among the preferred backends");
    let refused = negotiate(KernelFamily::Norm, &reports, &names(&["c"]))
        .refusal()
        .unwrap();
    assert_eq!(refused, "norm: no probe passed for c: c (c is wrong)");
}
