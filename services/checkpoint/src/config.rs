//! Sizes of a Qwen3.5 text backbone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::reader;

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Gated delta rule.
    LinearAttention,
    /// Softmax attention.
    FullAttention,
}

/// Sizes of a backbone, named as in `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Kind of each layer, from `layer_types` or `full_attention_interval`.
    pub layers: Vec<LayerKind>,
    /// Query heads of full attention.
    pub num_attention_heads: usize,
    /// Key and value heads of full attention; divides the query heads.
    pub num_key_value_heads: usize,
    /// Head size of full attention.
    pub head_dim: usize,
    /// How many of the first dimensions of a head turn with the position; even.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Query and key heads of the delta rule.
    pub linear_num_key_heads: usize,
    /// Value heads of the delta rule; a multiple of the key heads.
    pub linear_num_value_heads: usize,
    /// Size of a query or key head of the delta rule.
    pub linear_key_head_dim: usize,
    /// Size of a value head of the delta rule.
    pub linear_value_head_dim: usize,
    /// Taps of the short convolution; 4.
    pub linear_conv_kernel_dim: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Whether the output embedding is the embedding table.
    pub tie_word_embeddings: bool,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
}

impl ModelConfig {
    /// Reads the content of a `config.json`, flat (`qwen3_5_text`) or nested (`qwen3_5` with `text_config`).
    ///
    /// `output_gate_type` is ignored, as transformers does for these model types: the attention gate is a sigmoid and the norm gate SiLU
    /// whatever it says.
    ///
    /// # Errors
    /// The first key that is missing, unusable, unknown, or asks for arithmetic that is not implemented.
    pub fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let (config, errors) = reader::read(value);
        match (errors.into_iter().next(), config) {
            (None, Some(config)) => Ok(config),
            (Some(error), _) => Err(error),
            (None, None) => Err(ConfigError {
                key: String::new(),
                reason: "is not readable".to_owned(),
            }),
        }
    }
}

/// A key of `config.json` that makes the model unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {reason}")]
pub struct ConfigError {
    /// Dotted key; empty for the document itself.
    pub key: String,
    /// Why, as the end of a sentence that begins with the key.
    pub reason: String,
}
