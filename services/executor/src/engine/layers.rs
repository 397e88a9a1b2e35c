//! The layer plan: every op call of a forward pass, in order, tagged with its kernel family. Built once from the config.

use std::ops::Range;

use deltagate_checkpoint::{LayerKind, ModelConfig};
use deltagate_kernels_api::KernelFamily;

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormAt {
    /// Before the mixer of a layer; adds what the MLP before it gave.
    Mixer(usize),
    /// Before the MLP of a layer; adds what its mixer gave.
    Mlp(usize),
    /// After the last layer.
    Final,
}

/// One call. The number is the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpCall {
    /// Token ids to rows.
    Embed,
    /// Residual add and norm.
    Norm(NormAt),
    /// Fused input projection of a mixer: q|k|v|z|b|a of the delta rule, q+gate|k|v of attention.
    MixerInput(usize),
    /// Convolution over q|k|v.
    Conv1d(usize),
    /// Gates and delta rule.
    DeltaRule(usize),
    /// Norm and gate of its output.
    GatedNorm(usize),
    /// Softmax attention.
    Attention(usize),
    /// From here on only the rows that are read: nothing after the last mixer looks at another row.
    KeepRows,
    /// Output projection of a mixer.
    MixerOutput(usize),
    /// Gated MLP.
    Mlp(usize),
    /// Rows to the host.
    Readout,
}

impl OpCall {
    /// The family that serves it.
    pub const fn family(self) -> KernelFamily {
        match self {
            Self::Embed => KernelFamily::Embed,
            Self::Norm(_) => KernelFamily::Norm,
            Self::MixerInput(_) | Self::MixerOutput(_) => KernelFamily::Projection,
            Self::Conv1d(_) => KernelFamily::Conv1d,
            Self::DeltaRule(_) => KernelFamily::DeltaRule,
            Self::GatedNorm(_) => KernelFamily::GatedNorm,
            Self::Attention(_) => KernelFamily::Attention,
            Self::Mlp(_) => KernelFamily::Mlp,
            Self::KeepRows | Self::Readout => KernelFamily::Readout,
        }
    }
}

/// A call and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// The layer with which it runs: the first one for `Embed`, the last one for the final norm and the readout.
    pub layer: usize,
    /// The call.
    pub call: OpCall,
}

/// Consecutive layers that are launched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its calls, as indices into the plan.
    pub calls: Range<usize>,
}

/// Every call of a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    calls: Vec<PlannedCall>,
    layers: usize,
}

/// Fewest segments of a sequence that is long enough to be cut.
const MIN_SEGMENTS: usize = 4;

impl LayerPlan {
    /// The plan of a model.
    pub fn new(config: &ModelConfig) -> Self {
        let layers = config.layers.len();
        let last = layers.saturating_sub(1);
        let mut calls = vec![PlannedCall {
            layer: 0,
            call: OpCall::Embed,
        }];
        for (layer, kind) in config.layers.iter().enumerate() {
            let mut add = |call| calls.push(PlannedCall { layer, call });
            add(OpCall::Norm(NormAt::Mixer(layer)));
            add(OpCall::MixerInput(layer));
            match kind {
                LayerKind::LinearAttention => {
                    add(OpCall::Conv1d(layer));
                    add(OpCall::DeltaRule(layer));
                    add(OpCall::GatedNorm(layer));
                }
                LayerKind::FullAttention => add(OpCall::Attention(layer)),
            }
            if layer == last {
                add(OpCall::KeepRows);
            }
            add(OpCall::MixerOutput(layer));
            add(OpCall::Norm(NormAt::Mlp(layer)));
            add(OpCall::Mlp(layer));
        }
        calls.push(PlannedCall {
            layer: last,
            call: OpCall::Norm(NormAt::Final),
        });
        calls.push(PlannedCall {
            layer: last,
            call: OpCall::Readout,
        });
        Self { calls, layers }
    }

    /// The calls, in order.
    pub fn calls(&self) -> &[PlannedCall] {
        &self.calls
    }

    /// Cuts the plan for a sequence: one segment up to `segment_tokens` tokens; beyond, one per `segment_tokens`, but at least 4, at
    /// most `max_segments`, and never more than there are layers. Layers are spread evenly.
    pub fn segments(&self, tokens: usize, segment_tokens: usize, max_segments: usize) -> Vec<Segment> {
        let most = max_segments.clamp(1, self.layers.max(1));
        let count = if tokens <= segment_tokens {
            1
        } else {
            tokens.div_ceil(segment_tokens.max(1)).max(MIN_SEGMENTS).min(most)
        };
        let mut first_call = 0;
        let cut = |index: usize| {
            let layers = index * self.layers / count..(index + 1) * self.layers / count;
            let beyond = |planned: &PlannedCall| planned.layer >= layers.end && index + 1 < count;
            let calls = first_call
                ..self.calls[first_call..]
                    .iter()
                    .position(beyond)
                    .map_or(self.calls.len(), |at| first_call + at);
            first_call = calls.end;
            Segment { layers, calls }
        };
        (0..count).map(cut).collect()
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
