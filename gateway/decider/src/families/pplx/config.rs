//! What the family needs to know of a model. The checkpoint gives it in this one form, with every default filled in.

use serde::Deserialize;
use serde_json::Value;

use crate::FamilyError;
use crate::families::codes::CODES;
use crate::families::keys::fault;

/// Longest prompt where the model does not say, in tokens.
pub const DEFAULT_MAX_LENGTH: usize = 8192;

/// What the full-attention layers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionMode {
    /// The tokens up to their own: v1.
    Causal,
    /// The whole prompt: v1.1.
    NoncausalFullAttention,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Code of each row of the readout matrix, in that order.
    pub codes: Vec<String>,
    /// Token of each code.
    pub token_ids: Vec<u32>,
    /// Of all questions.
    pub temperature: f64,
    /// What the full-attention layers see.
    pub attention_mode: AttentionMode,
    /// Longest prompt, in tokens.
    pub max_length: usize,
}

impl Config {
    /// Reads and checks it.
    pub fn from_json(config: &Value) -> Result<Self, FamilyError> {
        let config: Config = Config::deserialize(config).map_err(|error| fault("", error.to_string()))?;
        if config.codes.is_empty() || config.codes.len() != config.token_ids.len() {
            return Err(fault("codes", "is empty, or not as long as `token_ids`"));
        }
        if !(config.temperature.is_finite() && config.temperature > 0.0) {
            return Err(fault("temperature", "is not a finite number above 0"));
        }
        if config.max_length == 0 {
            return Err(fault("max_length", "is 0"));
        }
        Ok(config)
    }

    /// Of no model in particular: renders the same prompts.
    pub fn without_model(attention_mode: AttentionMode) -> Self {
        Config {
            codes: CODES.map(str::to_owned).to_vec(),
            token_ids: Vec::new(),
            temperature: 1.0,
            attention_mode,
            max_length: DEFAULT_MAX_LENGTH,
        }
    }
}
