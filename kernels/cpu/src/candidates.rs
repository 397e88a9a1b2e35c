//! The candidates of this crate.

use std::{sync::Arc, time::Duration};

use deltagate_kernels_api::{
    Agreement, AttentionShape, Backend, Bindable, Bound, Candidate, DeltaRuleShape, Identity, JointHeadShape,
    KernelFamily, ProbeCase, Refusal,
};
use sha2::{Digest, Sha256};

use crate::{
    Chunked, Cpu, CpuAttention, CpuConv1d, CpuDtype, CpuEmbed, CpuGatedNorm, CpuMlp, CpuNorm, CpuProjection,
    CpuReadout, Eager, Pool, Recurrent, probe,
};

/// Sizes of the model that is going to be served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShapes {
    /// H.
    pub hidden: usize,
    /// I.
    pub intermediate: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Sizes of the delta-rule layers.
    pub delta_rule: DeltaRuleShape,
    /// Sizes of the full-attention layers.
    pub attention: AttentionShape,
    /// Epsilon of the norms.
    pub epsilon: f64,
    /// Sizes of the joint head, where the model has one; nothing of it is probed where it has none.
    pub joint_head: Option<JointHeadShape>,
}

/// Every candidate, for a model of these sizes; probes run on `pool`.
pub fn candidates(shapes: &ModelShapes, dtype: CpuDtype, pool: &Pool) -> Vec<Arc<dyn Bindable<Cpu>>> {
    const SHARED: &[&str] = &[
        include_str!("buffer.rs"),
        include_str!("element.rs"),
        include_str!("gemm.rs"),
        include_str!("rows.rs"),
        include_str!("space.rs"),
        include_str!("vector.rs"),
    ];
    const OPS: &[&str] = &[
        include_str!("attention.rs"),
        include_str!("embed.rs"),
        include_str!("gated_norm.rs"),
        include_str!("joint_head/attention.rs"),
        include_str!("joint_head/dense.rs"),
        include_str!("joint_head/mod.rs"),
        include_str!("joint_head/score.rs"),
        include_str!("joint_head/spans.rs"),
        include_str!("mlp.rs"),
        include_str!("norm.rs"),
        include_str!("projection.rs"),
        include_str!("readout.rs"),
        include_str!("rope.rs"),
    ];
    const RULE: &[&str] = &[
        include_str!("delta_rule/gates.rs"),
        include_str!("delta_rule/input.rs"),
        include_str!("delta_rule/mod.rs"),
    ];
    const EVERY_OP: &[KernelFamily] = &[
        KernelFamily::Embed,
        KernelFamily::Norm,
        KernelFamily::Projection,
        KernelFamily::GatedNorm,
        KernelFamily::Attention,
        KernelFamily::Mlp,
        KernelFamily::Readout,
    ];
    let rule = |method: &'static str| [SHARED, RULE, &[method]].concat();
    let chunked = rule(include_str!("delta_rule/chunked.rs"));
    let recurrent = rule(include_str!("delta_rule/recurrent.rs"));
    let candidate = |name: &str, sources: &[&str], families: &'static [KernelFamily], backend| {
        let candidate = CpuCandidate {
            identity: Identity {
                name: name.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                source_digest: digest(sources),
            },
            families,
            backend,
            context: probe::Context {
                shapes: *shapes,
                dtype,
            },
            pool: pool.clone(),
        };
        Arc::new(candidate) as Arc<dyn Bindable<Cpu>>
    };
    vec![
        candidate("cpu", &[SHARED, OPS].concat(), EVERY_OP, op),
        candidate(
            "cpu.conv1d",
            &[SHARED, &[include_str!("conv1d.rs")]].concat(),
            &[KernelFamily::Conv1d],
            |_| Backend::Conv1d(Arc::new(CpuConv1d)),
        ),
        candidate("cpu.chunked", &chunked, &[KernelFamily::DeltaRule], |_| {
            Backend::DeltaRule(Arc::new(Chunked))
        }),
        candidate("cpu.recurrent", &recurrent, &[KernelFamily::DeltaRule], |_| {
            Backend::DeltaRule(Arc::new(Recurrent))
        }),
        candidate(
            "cpu.eager",
            &[include_str!("launch.rs")],
            &[KernelFamily::Launch],
            |_| Backend::Launch(Arc::new(Eager)),
        ),
    ]
}

/// The backends of `cpu`.
fn op(family: KernelFamily) -> Backend<Cpu> {
    match family {
        KernelFamily::Embed => Backend::Embed(Arc::new(CpuEmbed)),
        KernelFamily::Norm => Backend::Norm(Arc::new(CpuNorm)),
        KernelFamily::Projection => Backend::Projection(Arc::new(CpuProjection)),
        KernelFamily::Conv1d => Backend::Conv1d(Arc::new(CpuConv1d)),
        KernelFamily::DeltaRule => Backend::DeltaRule(Arc::new(Chunked)),
        KernelFamily::GatedNorm => Backend::GatedNorm(Arc::new(CpuGatedNorm)),
        KernelFamily::Attention => Backend::Attention(Arc::new(CpuAttention::default())),
        KernelFamily::Mlp => Backend::Mlp(Arc::new(CpuMlp)),
        KernelFamily::Readout => Backend::Readout(Arc::new(CpuReadout)),
        KernelFamily::Launch => Backend::Launch(Arc::new(Eager)),
    }
}

/// SHA-256 over the sources that a candidate is compiled from, hex.
fn digest(sources: &[&str]) -> String {
    let mut hash = Sha256::new();
    for source in sources {
        hash.update((source.len() as u64).to_le_bytes());
        hash.update(source.as_bytes());
    }
    hex::encode(hash.finalize())
}

struct CpuCandidate {
    identity: Identity,
    families: &'static [KernelFamily],
    backend: fn(KernelFamily) -> Backend<Cpu>,
    context: probe::Context,
    pool: Pool,
}

impl Candidate for CpuCandidate {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn families(&self) -> &[KernelFamily] {
        self.families
    }

    fn present(&self) -> Result<(), Refusal> {
        // It is compiled into this program: there is no pack that could be missing or changed.
        Ok(())
    }

    fn loadable(&self, _: KernelFamily) -> Result<(), Refusal> {
        self.context.loadable()
    }

    fn check(&self, family: KernelFamily, case: &ProbeCase) -> Result<Agreement, Refusal> {
        self.pool
            .run(|| probe::check(&(self.backend)(family), &self.context, case))
    }

    fn bound(&self, _: KernelFamily) -> Bound {
        self.context.bound()
    }

    fn time(&self, family: KernelFamily, case: &ProbeCase) -> Result<Duration, Refusal> {
        self.pool
            .run(|| probe::time(&(self.backend)(family), &self.context, case))
    }
}

impl Bindable<Cpu> for CpuCandidate {
    fn backend(&self, family: KernelFamily) -> Option<Backend<Cpu>> {
        self.families.contains(&family).then(|| (self.backend)(family))
    }
}
