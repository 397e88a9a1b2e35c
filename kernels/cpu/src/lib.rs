//! The CPU backend: tensors of candle-core, with custom ops of its own for every kernel family.
//!
//! * f32: weights and activations f32.
//! * bf16: weights and activations bf16, sums in f32; norms, gates, the delta rule and softmax compute in f32.
//!
//! Everything runs on the rayon pool that the caller has installed.

mod attention;
mod buffer;
mod candidates;
mod conv1d;
mod delta_rule;
mod element;
mod embed;
mod gated_norm;
mod gemm;
mod joint_head;
mod launch;
mod load;
mod mlp;
mod norm;
mod pool;
mod probe;
mod projection;
mod readout;
mod rope;
mod rows;
mod space;
mod vector;

pub use attention::CpuAttention;
pub use candidates::{ModelShapes, candidates};
pub use conv1d::CpuConv1d;
pub use delta_rule::{Chunked, Recurrent};
pub use embed::CpuEmbed;
pub use gated_norm::CpuGatedNorm;
pub use launch::Eager;
pub use load::{LoadError, Loader};
pub use mlp::CpuMlp;
pub use norm::CpuNorm;
pub use pool::Pool;
pub use projection::CpuProjection;
pub use readout::CpuReadout;
pub use space::{Cpu, CpuDtype, Matrix};
