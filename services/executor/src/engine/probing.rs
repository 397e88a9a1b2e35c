//! Probes of every candidate of every family, and what follows from them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use deltagate_kernels_api::{
    Bindable, BindingReport, Candidate, CandidateReport, FamilyBinding, KernelFamily, Preferences, ProbePlan,
    ProbeStage, Space, negotiate, probe,
};

/// Probe reports of every family.
#[derive(Clone, Default)]
pub(super) struct Probed(BTreeMap<KernelFamily, Vec<CandidateReport>>);

impl Probed {
    /// Probes the candidates of some families anew.
    pub(super) fn probe<S: Space>(
        &mut self,
        families: impl IntoIterator<Item = KernelFamily>,
        candidates: &[Arc<dyn Bindable<S>>],
        timeout: Duration,
    ) {
        let plan = ProbePlan {
            timeout,
            ..ProbePlan::default()
        };
        for family in families {
            let serving = candidates.iter().filter(|c| c.families().contains(&family));
            let reports = serving
                .map(|c| probe(Arc::clone(c) as Arc<dyn Candidate>, family, &plan))
                .collect();
            self.0.insert(family, reports);
        }
    }

    /// What every family would be bound to.
    pub(super) fn negotiate(&self, preferences: &Preferences) -> BindingReport {
        let binding = |family| {
            let reports = self.0.get(&family).map_or(&[][..], Vec::as_slice);
            negotiate(family, reports, &preferences.get(family))
        };
        BindingReport {
            bindings: KernelFamily::ALL.into_iter().map(binding).collect(),
        }
    }
}

/// A reason per family that is not bound.
pub(super) fn refusals(report: &BindingReport) -> Vec<String> {
    report
        .bindings
        .iter()
        .filter_map(FamilyBinding::refusal)
        .collect()
}

/// Shows in the report of the binding that stays why another one was refused.
pub(super) fn note_refused(kept: &mut BindingReport, refused: &BindingReport) {
    for refused in refused
        .bindings
        .iter()
        .filter(|binding| binding.refusal().is_some())
    {
        let Some(kept) = kept
            .bindings
            .iter_mut()
            .find(|binding| binding.family == refused.family)
        else {
            continue;
        };
        let unknown = refused
            .preference
            .names()
            .iter()
            .filter(|name| !refused.candidates.iter().any(|c| c.backend == **name));
        let unknown = unknown.map(|name| CandidateReport {
            backend: name.clone(),
            version: String::new(),
            source_digest: String::new(),
            stage: ProbeStage::None,
            passed: false,
            reason: "preferred, and no such candidate exists".to_owned(),
            relative_l2: 0.0,
            worst_element: 0.0,
            times: Vec::new(),
        });
        let failed = refused.candidates.iter().filter(|c| !c.passed).cloned();
        for report in unknown.chain(failed).collect::<Vec<_>>() {
            kept.candidates
                .retain(|c| c.backend != report.backend || c.backend == kept.backend);
            if report.backend != kept.backend {
                kept.candidates.push(report);
            }
        }
    }
}
