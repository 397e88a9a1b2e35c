//! What others need to know about a model folder.

use serde::{Deserialize, Serialize};

use crate::ModelConfig;

/// A model folder in short. The gateway gets it from the executor and needs no access to the folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Name of the folder.
    pub name: String,
    /// Decider family, such as `startlux`; none for a backbone without one.
    pub family: Option<String>,
    /// SHA-256, lower-case hex, over everything that decides an answer: `config.json`, the family's files, `tokenizer.json`, and of each
    /// weights file its name, size and header; files up to 64 MiB with all their bytes, larger ones with the first 4 KiB of each tensor. An adapter is in it with all its bytes.
    pub digest: String,
    /// Sizes of the backbone.
    pub config: ModelConfig,
    /// Longest sequence, in tokens.
    pub max_tokens: u32,
    /// Number of weights, the output embedding included if it has its own, and the family's head if it has one in a file.
    pub parameters: u64,
    /// Their size in the files, in bytes.
    pub weight_bytes: u64,
    /// `YYYY-MM-DD`, if the family has one.
    pub release_date: Option<String>,
    /// The family's configuration file as read; null without a family.
    pub family_config: serde_json::Value,
    /// What the full-attention layers see.
    pub attention: AttentionMode,
    /// Whether the questions of a request share a prompt, so that an answer may depend on the other questions.
    pub joint_questions: bool,
    /// Files that the gateway asks for by digest.
    pub assets: Vec<Asset>,
}

/// What the full-attention layers see. The delta rule is causal in either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionMode {
    /// The tokens up to their own.
    Causal,
    /// The whole sequence.
    NoncausalFullAttention,
}

/// A file of the folder that is handed out by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asset {
    /// File name.
    pub name: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size.
    pub size_bytes: u64,
}
