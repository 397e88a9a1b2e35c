//! One sequence on its way through the layers, and the calls of a segment of it.

use std::time::Instant;

use deltagate_checkpoint::ModelConfig;
use deltagate_kernels_api::{
    AttentionShape, AttentionWeights, DeltaRuleShape, GateWeights, KernelFamily, OpError, SegmentCalls, Space,
};

use super::{
    NormAt, OpCall, PlannedCall, Projection, SequencePlan,
    binding::Bound,
    clock::Clock,
    shapes::{attention_shape, delta_rule_shape},
    weights::{DeltaRuleWeights, FullAttentionWeights, MixerWeights, ModelWeights},
};

/// What the layers need to know besides their weights.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    delta_rule: DeltaRuleShape,
    attention: AttentionShape,
    epsilon: f64,
}

impl Sizes {
    pub(super) const fn new(config: &ModelConfig) -> Self {
        Self {
            delta_rule: delta_rule_shape(config),
            attention: attention_shape(config),
            epsilon: config.rms_norm_eps,
        }
    }
}

/// A sequence between two calls. Each tensor is taken by the call that uses it up.
pub(super) struct Pass<'a, S: Space> {
    sequence: &'a SequencePlan,
    causal: bool,
    /// Residual stream, [T, H].
    x: Option<S::Tensor>,
    /// What the next norm adds to it.
    delta: Option<S::Tensor>,
    /// Output of the last norm.
    normed: Option<S::Tensor>,
    /// Fused input projection of the mixer.
    fused: Option<S::Tensor>,
    /// What the mixer has made of it so far.
    mixed: Option<S::Tensor>,
    /// What was read.
    rows: Option<Vec<Vec<f32>>>,
}

impl<'a, S: Space> Pass<'a, S> {
    pub(super) const fn new(sequence: &'a SequencePlan, causal: bool) -> Self {
        Self {
            sequence,
            causal,
            x: None,
            delta: None,
            normed: None,
            fused: None,
            mixed: None,
            rows: None,
        }
    }

    /// The readout, once the last call has run.
    pub(super) fn into_rows(self) -> Option<Vec<Vec<f32>>> {
        self.rows
    }
}

/// The calls of one segment.
pub(super) struct Calls<'a, 'p, S: Space> {
    pub(super) calls: &'a [PlannedCall],
    pub(super) pass: &'a mut Pass<'p, S>,
    pub(super) bound: &'a Bound<S>,
    pub(super) weights: &'a ModelWeights<S>,
    pub(super) sizes: Sizes,
    pub(super) clock: Clock,
    /// How many calls have run.
    pub(super) ran: usize,
    /// The family whose call failed.
    pub(super) failed: Option<KernelFamily>,
}

impl<S: Space> SegmentCalls for Calls<'_, '_, S> {
    fn count(&self) -> usize {
        self.calls.len()
    }

    fn run(&mut self, index: usize) -> Result<(), OpError> {
        // A launch backend that skips or repeats a call would compute something else.
        let planned = self.calls.get(index).filter(|_| index == self.ran);
        let Some(&PlannedCall { call, .. }) = planned else {
            return Err(OpError::Device(format!(
                "call {index} was launched instead of {}",
                self.ran
            )));
        };
        let family = call.family();
        let start = Instant::now();
        let launches = self.call(call).inspect_err(|_| self.failed = Some(family))?;
        let end = Instant::now();
        if launches > 0 {
            self.clock.add(family, start, end, end - start, launches);
        }
        self.ran += 1;
        Ok(())
    }
}

/// A call came before the one that it depends on.
fn missing(what: &str) -> OpError {
    OpError::Device(format!("{what} is not there yet"))
}

impl<S: Space> Calls<'_, '_, S> {
    /// Runs a call; gives the number of ops that it launched.
    fn call(&mut self, call: OpCall) -> Result<u64, OpError> {
        let (bound, weights, sizes) = (self.bound, self.weights, self.sizes);
        let pass = &mut *self.pass;
        let layer = |index: usize| weights.layers.get(index).ok_or_else(|| missing("the layer"));
        match call {
            OpCall::Embed => {
                pass.x = Some(bound.embed.embed(&weights.embedding, &pass.sequence.token_ids)?);
            }
            OpCall::Norm(at) => {
                let w = match at {
                    NormAt::Mixer(index) => &layer(index)?.input_norm,
                    NormAt::Mlp(index) => &layer(index)?.mlp_norm,
                    NormAt::Final => &weights.final_norm,
                };
                let x = pass.x.as_mut().ok_or_else(|| missing("the residual"))?;
                let delta = pass.delta.take();
                pass.normed = Some(bound.norm.add_norm(x, delta.as_ref(), w, sizes.epsilon)?);
            }
            OpCall::MixerInput(index) => {
                let normed = pass.normed.take().ok_or_else(|| missing("the norm"))?;
                pass.fused = Some(bound.projection.project(&normed, layer(index)?.mixer.input())?);
            }
            OpCall::Conv1d(index) => {
                let w = delta_rule(&layer(index)?.mixer)?;
                let fused = pass.fused.as_ref().ok_or_else(|| missing("the projection"))?;
                let qkv = S::columns(fused, 0..sizes.delta_rule.qkv_columns())?;
                pass.mixed = Some(bound.conv1d.conv1d(&qkv, &w.taps)?);
            }
            OpCall::DeltaRule(index) => {
                let w = delta_rule(&layer(index)?.mixer)?;
                let shape = sizes.delta_rule;
                let fused = pass.fused.as_ref().ok_or_else(|| missing("the projection"))?;
                let qkv = pass.mixed.take().ok_or_else(|| missing("the convolution"))?;
                let from = shape.qkv_columns() + shape.value_columns();
                let ba = S::columns(fused, from..from + 2 * shape.value_heads)?;
                let gates = bound.delta_rule.gates(
                    &ba,
                    &GateWeights {
                        a_log: &w.a_log,
                        dt_bias: &w.dt_bias,
                    },
                )?;
                pass.mixed = Some(bound.delta_rule.delta_rule(&qkv, &gates, &shape)?);
                return Ok(2);
            }
            OpCall::GatedNorm(index) => {
                let w = delta_rule(&layer(index)?.mixer)?;
                let shape = sizes.delta_rule;
                let fused = pass.fused.take().ok_or_else(|| missing("the projection"))?;
                let o = pass.mixed.take().ok_or_else(|| missing("the delta rule"))?;
                let from = shape.qkv_columns();
                let z = S::columns(&fused, from..from + shape.value_columns())?;
                pass.mixed = Some(bound.gated_norm.gated_norm(&o, &z, &w.norm, sizes.epsilon)?);
            }
            OpCall::Attention(index) => {
                let w = attention(&layer(index)?.mixer)?;
                let fused = pass.fused.take().ok_or_else(|| missing("the projection"))?;
                let norms = AttentionWeights {
                    q_norm: &w.q_norm,
                    k_norm: &w.k_norm,
                };
                pass.mixed = Some(bound.attention.attention(
                    &fused,
                    &norms,
                    &sizes.attention,
                    pass.causal,
                )?);
            }
            OpCall::KeepRows => {
                let Some(positions) = pass.sequence.positions() else {
                    return Ok(0);
                };
                let x = pass.x.take().ok_or_else(|| missing("the residual"))?;
                let mixed = pass.mixed.take().ok_or_else(|| missing("the mixer"))?;
                pass.x = Some(S::rows(&x, &positions)?);
                pass.mixed = Some(S::rows(&mixed, &positions)?);
                return Ok(2);
            }
            OpCall::MixerOutput(index) => {
                let mixed = pass.mixed.take().ok_or_else(|| missing("the mixer"))?;
                pass.delta = Some(bound.projection.project(&mixed, layer(index)?.mixer.output())?);
            }
            OpCall::Mlp(index) => {
                let w = layer(index)?;
                let normed = pass.normed.take().ok_or_else(|| missing("the norm"))?;
                pass.delta = Some(bound.mlp.mlp(&normed, &w.gate_up, &w.down)?);
            }
            OpCall::Readout => {
                let normed = pass.normed.take().ok_or_else(|| missing("the norm"))?;
                pass.rows = Some(match &pass.sequence.projection {
                    Projection::Hidden => bound.readout.hidden(&normed)?,
                    Projection::OutputEmbedding(ids) => {
                        let table = weights.output_embedding.as_ref();
                        let table = table.ok_or_else(|| missing("the output embedding"))?;
                        bound.readout.logits(&normed, table, ids)?
                    }
                    Projection::DecisionHead(rows) => {
                        let table = weights.decision_head.as_ref();
                        let table = table.ok_or_else(|| missing("the decision head"))?;
                        bound.readout.logits(&normed, table, rows)?
                    }
                    Projection::JointHead(questions) => {
                        let table = weights.output_embedding.as_ref();
                        let table = table.ok_or_else(|| missing("the output embedding"))?;
                        let head = weights.joint_head.as_ref();
                        let head = head.ok_or_else(|| missing("the joint head"))?;
                        let ids = &pass.sequence.token_ids;
                        vec![bound.readout.joint(&normed, ids, table, head, questions)?]
                    }
                });
            }
        }
        Ok(1)
    }
}

fn delta_rule<S: Space>(mixer: &MixerWeights<S>) -> Result<&DeltaRuleWeights<S>, OpError> {
    match mixer {
        MixerWeights::DeltaRule(weights) => Ok(weights),
        MixerWeights::Attention(_) => Err(missing("the delta rule of a full-attention layer")),
    }
}

fn attention<S: Space>(mixer: &MixerWeights<S>) -> Result<&FullAttentionWeights<S>, OpError> {
    match mixer {
        MixerWeights::Attention(weights) => Ok(weights),
        MixerWeights::DeltaRule(_) => Err(missing("the attention of a delta-rule layer")),
    }
}
