//! From probe reports and a preference to a binding: a pure function.

use std::time::Duration;

use crate::{BindingState, CandidateReport, FamilyBinding, KernelFamily, Preference};

/// Decides what a family is bound to.
///
/// * `auto`: the fastest candidate that passed, by the times at the lengths that all of them were timed at; the earlier one
///   when equal.
/// * names: the first name whose candidate passed. A candidate that is not named is never bound.
///
/// Otherwise the family is not bound: [`BindingState::Missing`] when none of the wanted candidates exists,
/// [`BindingState::ProbeFailed`] when they exist and none passed. Every candidate stays in the result, with the reason why it
/// is not the bound one.
pub fn negotiate(
    family: KernelFamily,
    candidates: &[CandidateReport],
    preference: &Preference,
) -> FamilyBinding {
    let chosen = match preference {
        Preference::Auto => fastest(candidates),
        Preference::One(_) | Preference::Ordered(_) => {
            let named = |name: &String| candidates.iter().position(|c| c.passed && c.backend == *name);
            preference.names().iter().find_map(named)
        }
    };
    let wanted = |c: &CandidateReport| match preference {
        Preference::Auto => true,
        Preference::One(_) | Preference::Ordered(_) => preference.names().contains(&c.backend),
    };
    let state = match chosen {
        Some(_) => BindingState::Bound,
        None if candidates.iter().any(wanted) => BindingState::ProbeFailed,
        None => BindingState::Missing,
    };
    let bound = chosen.map(|index| &candidates[index]);
    let explained = candidates.iter().enumerate().map(|(index, candidate)| {
        let mut candidate = candidate.clone();
        if Some(index) == chosen {
            candidate.reason.clear();
        } else if candidate.passed {
            candidate.reason = match (preference, bound) {
                (Preference::Auto, Some(bound)) => format!("{} is faster", bound.backend),
                (_, Some(bound)) if wanted(&candidate) => format!("{} is preferred", bound.backend),
                _ => "not among the preferred backends".to_owned(),
            };
        }
        candidate
    });
    FamilyBinding {
        family,
        state,
        backend: bound.map(|c| c.backend.clone()).unwrap_or_default(),
        version: bound.map(|c| c.version.clone()).unwrap_or_default(),
        source_digest: bound.map(|c| c.source_digest.clone()).unwrap_or_default(),
        preference: preference.clone(),
        candidates: explained.collect(),
    }
}

fn fastest(candidates: &[CandidateReport]) -> Option<usize> {
    let passed: Vec<_> = candidates.iter().enumerate().filter(|(_, c)| c.passed).collect();
    let (_, first) = passed.first()?;
    let time_at = |c: &CandidateReport, tokens| c.times.iter().find(|t| t.tokens == tokens).map(|t| t.median);
    let common: Vec<usize> = first
        .times
        .iter()
        .map(|t| t.tokens)
        .filter(|&n| passed.iter().all(|(_, c)| time_at(c, n).is_some()))
        .collect();
    let total = |c: &CandidateReport| common.iter().filter_map(|&n| time_at(c, n)).sum::<Duration>();
    // `min_by_key` keeps the first of equals.
    passed
        .iter()
        .min_by_key(|(_, c)| total(c))
        .map(|(index, _)| *index)
}

/// Why a family is not bound, for people: one sentence with every candidate's reason.
impl FamilyBinding {
    /// `None` when the family is bound.
    pub fn refusal(&self) -> Option<String> {
        let wanted = || match self.preference.names() {
            [] => "auto".to_owned(),
            names => names.join(", "),
        };
        match self.state {
            BindingState::Bound => None,
            BindingState::Missing => Some(format!("{}: no candidate for {}", self.family, wanted())),
            BindingState::ProbeFailed => {
                let reasons: Vec<_> = self
                    .candidates
                    .iter()
                    .filter(|c| !c.passed)
                    .map(|c| format!("{} ({})", c.backend, c.reason))
                    .collect();
                Some(format!(
                    "{}: no probe passed for {}: {}",
                    self.family,
                    wanted(),
                    reasons.join("; ")
                ))
            }
        }
    }
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
