//! The bound kernels: one object per family.

use std::sync::Arc;

use deltagate_kernels_api::{
    Attention, Backend, Bindable, BindingReport, BindingState, Conv1d, DeltaRule, Embed, GatedNorm,
    KernelFamily, LaunchBackend, Mlp, Norm, Projection, Readout, Space,
};

pub(super) struct Bound<S: Space> {
    pub(super) embed: Arc<dyn Embed<S>>,
    pub(super) norm: Arc<dyn Norm<S>>,
    pub(super) projection: Arc<dyn Projection<S>>,
    pub(super) conv1d: Arc<dyn Conv1d<S>>,
    pub(super) delta_rule: Arc<dyn DeltaRule<S>>,
    pub(super) gated_norm: Arc<dyn GatedNorm<S>>,
    pub(super) attention: Arc<dyn Attention<S>>,
    pub(super) mlp: Arc<dyn Mlp<S>>,
    pub(super) readout: Arc<dyn Readout<S>>,
    pub(super) launch: Arc<dyn LaunchBackend>,
    names: Vec<Arc<str>>,
}

impl<S: Space> Bound<S> {
    /// The objects behind a report; none unless every family is bound.
    pub(super) fn new(report: &BindingReport, candidates: &[Arc<dyn Bindable<S>>]) -> Option<Self> {
        let backend = |family: KernelFamily| {
            let binding = report
                .binding(family)
                .filter(|b| b.state == BindingState::Bound)?;
            // The digest, too: the object must be what was probed.
            let probed = |c: &&Arc<dyn Bindable<S>>| {
                c.identity().name == binding.backend && c.identity().source_digest == binding.source_digest
            };
            candidates
                .iter()
                .filter(probed)
                .find_map(|candidate| candidate.backend(family))
        };
        macro_rules! bound {
            ($family:ident) => {
                match backend(KernelFamily::$family)? {
                    Backend::$family(op) => op,
                    _ => return None,
                }
            };
        }
        let name = |family| {
            report
                .binding(family)
                .map_or("", |binding| binding.backend.as_str())
                .into()
        };
        Some(Self {
            embed: bound!(Embed),
            norm: bound!(Norm),
            projection: bound!(Projection),
            conv1d: bound!(Conv1d),
            delta_rule: bound!(DeltaRule),
            gated_norm: bound!(GatedNorm),
            attention: bound!(Attention),
            mlp: bound!(Mlp),
            readout: bound!(Readout),
            launch: bound!(Launch),
            names: KernelFamily::ALL.into_iter().map(name).collect(),
        })
    }

    /// The name of the backend that serves a family.
    pub(super) fn name(&self, family: KernelFamily) -> Arc<str> {
        Arc::clone(&self.names[family as usize])
    }
}
