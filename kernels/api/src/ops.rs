//! One typed trait per kernel family. Shapes: T tokens, H hidden, I intermediate, Hk/Hv key and value heads of the delta
//! rule with Dk/Dv dimensions, Q/KV query and key-value heads of attention with D dimensions.
//!
//! Activations have the engine's dtype; `w` of norms, taps and gate weights are f32. Formulas: Qwen3.5 text backbone.

use crate::{Beta, Decay, JointHead, JointQuestion, OpError, Space};

/// Token embedding.
pub trait Embed<S: Space>: Send + Sync {
    /// `table` [V, H], `ids` [T] -> [T, H]. An id outside the table is an error.
    fn embed(&self, table: &S::Tensor, ids: &[u32]) -> Result<S::Tensor, OpError>;
}

/// Residual add and RMS norm.
pub trait Norm<S: Space>: Send + Sync {
    /// `x += delta` when given, then `x · rsqrt(mean x² + epsilon) · (1 + w)`. `x`, `delta` and the result are [T, H], `w` [H].
    fn add_norm(
        &self,
        x: &mut S::Tensor,
        delta: Option<&S::Tensor>,
        w: &S::Tensor,
        epsilon: f64,
    ) -> Result<S::Tensor, OpError>;
}

/// Linear layers outside the MLP.
pub trait Projection<S: Space>: Send + Sync {
    /// `x` [T, K], `w` [N, K] -> [T, N].
    fn project(&self, x: &S::Tensor, w: &S::Matrix) -> Result<S::Tensor, OpError>;
}

/// Depthwise causal convolution with SiLU.
pub trait Conv1d<S: Space>: Send + Sync {
    /// `x` [T, C], `taps` [C, K] with the last tap on the current token, zeros before the first token -> [T, C].
    fn conv1d(&self, x: &S::Tensor, taps: &S::Tensor) -> Result<S::Tensor, OpError>;
}

/// Sizes of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRuleShape {
    /// Hk.
    pub key_heads: usize,
    /// Hv, a multiple of Hk: value head h uses key head `h / (Hv / Hk)`.
    pub value_heads: usize,
    /// Dk.
    pub key_dim: usize,
    /// Dv.
    pub value_dim: usize,
}

impl DeltaRuleShape {
    /// Columns of q | k | v: `2 Hk Dk + Hv Dv`.
    pub const fn qkv_columns(&self) -> usize {
        2 * self.key_columns() + self.value_columns()
    }

    /// Columns of q, and of k: `Hk Dk`.
    pub const fn key_columns(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Columns of v, of z and of the output: `Hv Dv`.
    pub const fn value_columns(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// Weights of the gates of a delta-rule layer, f32.
pub struct GateWeights<'a, S: Space> {
    /// [Hv].
    pub a_log: &'a S::Tensor,
    /// [Hv].
    pub dt_bias: &'a S::Tensor,
}

/// The gates of a delta-rule layer, each [T, Hv], f32.
pub struct Gates<T> {
    /// Decay, in the form that the backend takes.
    pub decay: Decay<T>,
    /// Write strength.
    pub beta: Beta<T>,
}

/// The gated delta rule.
pub trait DeltaRule<S: Space>: Send + Sync {
    /// `ba` [T, 2 Hv] (b | a) -> the gates in this backend's own form.
    fn gates(&self, ba: &S::Tensor, w: &GateWeights<'_, S>) -> Result<Gates<S::Tensor>, OpError>;

    /// `qkv` [T, 2 Hk Dk + Hv Dv] after the convolution -> [T, Hv Dv]. q and k are normalised inside
    /// (`x · rsqrt(Σx² + 1e-6)`, q also scaled by `Dk^-0.5`); the state is f32 and starts at zero:
    /// `S ← e^g S; S ← S + k β (v − Sᵀk)ᵀ; o = Sᵀq`.
    fn delta_rule(
        &self,
        qkv: &S::Tensor,
        gates: &Gates<S::Tensor>,
        shape: &DeltaRuleShape,
    ) -> Result<S::Tensor, OpError>;
}

/// Norm and gate after the delta rule.
pub trait GatedNorm<S: Space>: Send + Sync {
    /// Per head of `w.len()` columns: `w ∘ (o · rsqrt(mean o² + epsilon)) · silu(z)`. `o` and `z` [T, Hv Dv], `w` [Dv].
    fn gated_norm(
        &self,
        o: &S::Tensor,
        z: &S::Tensor,
        w: &S::Tensor,
        epsilon: f64,
    ) -> Result<S::Tensor, OpError>;
}

/// Sizes of a full-attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Q, a multiple of KV: query head j uses key-value head `j / (Q / KV)`.
    pub heads: usize,
    /// KV.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Rotated dimensions, even, at most D; the pairs are `(i, i + rotary_dim / 2)`.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies `theta^(-2i / rotary_dim)`.
    pub rope_theta: f64,
    /// Epsilon of the query and key norms.
    pub epsilon: f64,
}

impl AttentionShape {
    /// Columns of the fused q and gate: `2 Q D`, per head query then gate.
    pub const fn query_gate_columns(&self) -> usize {
        2 * self.heads * self.head_dim
    }

    /// Columns of k, and of v: `KV D`.
    pub const fn kv_columns(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Columns of q+gate | k | v.
    pub const fn input_columns(&self) -> usize {
        self.query_gate_columns() + 2 * self.kv_columns()
    }

    /// Columns of the output: `Q D`.
    pub const fn output_columns(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Norm weights of a full-attention layer, f32.
pub struct AttentionWeights<'a, S: Space> {
    /// [D], applied as `1 + w`.
    pub q_norm: &'a S::Tensor,
    /// [D], applied as `1 + w`.
    pub k_norm: &'a S::Tensor,
}

/// Softmax attention of the full-attention layers.
pub trait Attention<S: Space>: Send + Sync {
    /// `qkv` [T, 2 Q D + 2 KV D] -> [T, Q D], gated by `sigmoid(gate)`. `causal`: keys up to the query; otherwise all keys.
    fn attention(
        &self,
        qkv: &S::Tensor,
        w: &AttentionWeights<'_, S>,
        shape: &AttentionShape,
        causal: bool,
    ) -> Result<S::Tensor, OpError>;
}

/// The gated MLP.
pub trait Mlp<S: Space>: Send + Sync {
    /// `down(silu(gate(x)) ∘ up(x))`. `x` [T, H], `gate_up` [2 I, H] (gate | up), `down` [H, I] -> [T, H].
    fn mlp(&self, x: &S::Tensor, gate_up: &S::Matrix, down: &S::Matrix) -> Result<S::Tensor, OpError>;
}

/// What is read from the last hidden rows. Results go to the host, f32.
pub trait Readout<S: Space>: Send + Sync {
    /// The rows as they are: [R, H] -> R rows of H.
    fn hidden(&self, rows: &S::Tensor) -> Result<Vec<Vec<f32>>, OpError>;

    /// `rows` [R, H] against the rows `ids` of `table` [V, H] -> R rows of `ids.len()` logits.
    fn logits(&self, rows: &S::Tensor, table: &S::Tensor, ids: &[u32]) -> Result<Vec<Vec<f32>>, OpError>;

    /// All questions of a sequence at once, by a joint head: every row of it `[T, H]`, its token ids, and the output embedding
    /// `[V, H]` -> one logit per option, in the order of the questions and of their options. A span outside of the sequence, an
    /// empty one, and a question without options are errors.
    fn joint(
        &self,
        rows: &S::Tensor,
        ids: &[u32],
        table: &S::Tensor,
        head: &JointHead<S>,
        questions: &[JointQuestion],
    ) -> Result<Vec<f32>, OpError>;
}
