//! Probes of the CPU backends: seeded random inputs, outputs poisoned with NaN, the f64 reference as the oracle.
//!
//! Sizes are the model's own, cut where only the amount of equal work would grow: heads are independent, and rows and columns of a
//! matrix beyond what fills every block of the GEMM add nothing but time.

mod joint_head;
mod mixers;
mod rowwise;
mod sample;

use std::time::{Duration, Instant};

use deltagate_kernels_api::{
    Agreement, Backend, Bound, JointHeadShape, LaunchBackend, OpError, ProbeCase, Refusal, SegmentCalls,
};

use crate::{Cpu, CpuDtype, ModelShapes, buffer::poisoned};

/// For whom is probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) shapes: ModelShapes,
    pub(crate) dtype: CpuDtype,
}

impl Context {
    /// f32: a few hundred roundings; bf16: a few roundings to 8 bits.
    pub(crate) const fn bound(&self) -> Bound {
        match self.dtype {
            CpuDtype::F32 => Bound {
                relative_l2: 1e-5,
                worst_element: 1e-4,
            },
            CpuDtype::Bf16 => Bound {
                relative_l2: 1e-2,
                worst_element: 3e-2,
            },
        }
    }

    pub(crate) fn loadable(&self) -> Result<(), Refusal> {
        let ModelShapes {
            hidden,
            intermediate,
            vocabulary,
            conv_taps,
            delta_rule: d,
            attention: a,
            joint_head,
            ..
        } = self.shapes;
        let sizes = [
            hidden,
            intermediate,
            vocabulary,
            conv_taps,
            d.key_heads,
            d.value_heads,
            d.key_dim,
            d.value_dim,
            a.heads,
            a.kv_heads,
            a.head_dim,
        ];
        if sizes.contains(&0) {
            return Err(Refusal::new("a size of the model is zero"));
        }
        if !d.value_heads.is_multiple_of(d.key_heads) || !a.heads.is_multiple_of(a.kv_heads) {
            return Err(Refusal::new("heads cannot be grouped evenly"));
        }
        if a.rotary_dim % 2 != 0 || a.rotary_dim > a.head_dim {
            return Err(Refusal::new("rotary dimensions do not fit the head"));
        }
        if let Some(head) = joint_head {
            let JointHeadShape {
                width,
                heads,
                feedforward,
                ..
            } = head;
            if width == 0 || feedforward == 0 || heads == 0 || !width.is_multiple_of(heads) {
                return Err(Refusal::new("the sizes of the joint head do not fit each other"));
            }
        }
        Ok(())
    }
}

/// How a check runs an op: once, with poisoned outputs.
fn run<R>(op: impl FnOnce() -> Result<R, OpError>) -> Result<R, Refusal> {
    poisoned(op).map_err(Refusal::new)
}

/// How a timing runs an op.
fn clock<R>(op: impl FnOnce() -> Result<R, OpError>) -> Result<Duration, Refusal> {
    let start = Instant::now();
    op().map_err(Refusal::new)?;
    Ok(start.elapsed())
}

pub(crate) fn check(
    backend: &Backend<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    match backend {
        Backend::Embed(op) => rowwise::check_embed(&**op, context, case),
        Backend::Norm(op) => rowwise::check_norm(&**op, context, case),
        Backend::Projection(op) => rowwise::check_projection(&**op, context, case),
        Backend::GatedNorm(op) => rowwise::check_gated_norm(&**op, context, case),
        Backend::Mlp(op) => rowwise::check_mlp(&**op, context, case),
        Backend::Readout(op) => rowwise::check_readout(&**op, context, case),
        Backend::Conv1d(op) => mixers::check_conv1d(&**op, context, case),
        Backend::DeltaRule(op) => mixers::check_delta_rule(&**op, context, case),
        Backend::Attention(op) => mixers::check_attention(&**op, context, case),
        Backend::Launch(op) => check_launch(&**op, case),
    }
}

pub(crate) fn time(backend: &Backend<Cpu>, context: &Context, case: &ProbeCase) -> Result<Duration, Refusal> {
    match backend {
        Backend::Embed(op) => rowwise::time_embed(&**op, context, case),
        Backend::Norm(op) => rowwise::time_norm(&**op, context, case),
        Backend::Projection(op) => rowwise::time_projection(&**op, context, case),
        Backend::GatedNorm(op) => rowwise::time_gated_norm(&**op, context, case),
        Backend::Mlp(op) => rowwise::time_mlp(&**op, context, case),
        Backend::Readout(op) => rowwise::time_readout(&**op, context, case),
        Backend::Conv1d(op) => mixers::time_conv1d(&**op, context, case),
        Backend::DeltaRule(op) => mixers::time_delta_rule(&**op, context, case),
        Backend::Attention(op) => mixers::time_attention(&**op, context, case),
        Backend::Launch(op) => clock(|| op.launch(&mut Recorder::new(case.tokens, None))),
    }
}

/// Writes down which calls were run.
struct Recorder {
    count: usize,
    fails_at: Option<usize>,
    ran: Vec<usize>,
}

impl Recorder {
    const fn new(count: usize, fails_at: Option<usize>) -> Self {
        Self {
            count,
            fails_at,
            ran: Vec::new(),
        }
    }
}

impl SegmentCalls for Recorder {
    fn count(&self) -> usize {
        self.count
    }

    fn run(&mut self, index: usize) -> Result<(), OpError> {
        self.ran.push(index);
        if self.fails_at == Some(index) {
            Err(OpError::Device("asked to fail".to_owned()))
        } else {
            Ok(())
        }
    }
}

/// As many calls as tokens: all of them run once and in order, and none after one that fails.
fn check_launch(op: &dyn LaunchBackend, case: &ProbeCase) -> Result<Agreement, Refusal> {
    let mut all = Recorder::new(case.tokens, None);
    op.launch(&mut all).map_err(Refusal::new)?;
    if !all.ran.iter().copied().eq(0..case.tokens) {
        return Err(Refusal::new("calls did not run once each and in order"));
    }
    let at = case.tokens / 2;
    let mut failing = Recorder::new(case.tokens, Some(at));
    if op.launch(&mut failing).is_ok() || !failing.ran.iter().copied().eq(0..=at) {
        return Err(Refusal::new("a failed call did not stop the segment"));
    }
    Ok(Agreement::default())
}

#[cfg(test)]
mod tests;
