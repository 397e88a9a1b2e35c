//! A model folder becomes a [`ModelCard`]: its config, its tensors by name, its decider family and its assets by digest.
//!
//! Nothing here computes, and nothing is guessed: a key that changes the arithmetic and is not understood, a tensor too many or too few,
//! two families in one folder, a tokenizer of another vocabulary, all make [`Checkpoint::open`] refuse with the file and the key or tensor
//! by name. [`inspect`] says the same without loading, and looks at every weight, as loading does.

mod adapter;
mod cache;
mod card;
mod checkpoint;
mod clef;
mod config;
mod cua_s1;
mod decider_2b;
mod digest;
mod embedded;
mod error;
mod examine;
mod family;
mod files;
mod index;
mod intern;
mod joint_head;
mod layout;
mod open_jev;
mod pplx;
mod reader;
mod scope;
mod sequence_classification;
mod side;
mod startlux;
mod tensors;
mod values;
mod vocabulary;
mod weights;

pub use card::{Asset, AttentionMode, ModelCard};
pub use checkpoint::Checkpoint;
pub use config::{ConfigError, LayerKind, ModelConfig};
pub use deltagate_kernels_weights::{Dtype, TensorView};
pub use embedded::{EmbeddedFile, embedded_files};
pub use error::{CheckpointError, Finding, Problem};
pub use examine::{Inspection, inspect};
pub use joint_head::{JointHead, JointHeadConfig, joint_head_tensors};
pub use tensors::backbone_tensors;
pub use weights::Weights;
