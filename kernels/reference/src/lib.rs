//! Naive f64 oracle of every operation of the Qwen3.5 text backbone. **It never serves a request.**
//!
//! Probes and tests compare kernels with this crate, so it is written to be read and not to be fast: plain slices, plain loops, one
//! token after another, f64 from end to end, no dependency on a tensor library. The formulas are those of transformers 5.24,
//! `models/qwen3_5/modeling_qwen3_5.py` (`Qwen3_5TextModel`); each function names the part that it restates.
//!
//! Conventions: every array is row-major and its shape stands in the doc comment, `T` being the number of tokens. The operation oracles
//! panic when a slice has not the length that its shape says: that is a mistake of the calling test, and nothing that a request
//! carries can reach them. [`backbone`] takes tensors from outside and answers with an error instead.

mod activation;
mod attention;
mod backbone;
mod conv1d;
mod delta_rule;
mod joint_head;
mod norm;
mod projection;

pub use activation::{erf, gelu, sigmoid, silu, softplus};
pub use attention::{AttentionShape, attention, output_gate, rope, softmax_attention, split_query_gate};
pub use backbone::{BackboneConfig, BackboneError, Mixer, backbone, tensor_shapes};
pub use conv1d::conv1d;
pub use delta_rule::{DeltaRuleShape, delta_rule, gates};
pub use joint_head::{
    JointHeadOutput, JointHeadShape, JointQuestion, QUESTION_TYPES, joint_head, joint_head_tensors,
};
pub use norm::{gated_norm, l2_norm, layer_norm, rms_norm};
pub use projection::{embed, linear, mlp};
