//! How an engine is set up.

use std::time::Duration;

use deltagate_kernels_api::Preferences;
use serde::{Deserialize, Serialize};

/// Dtype of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 single.
    #[default]
    F32,
    /// bfloat16; sums, norms, the delta rule and softmax stay f32.
    Bf16,
}

impl Dtype {
    /// The name in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// Dtype of weights and activations.
    pub dtype: Dtype,
    /// Threads of a CPU device; none: all there are.
    pub threads: Option<usize>,
    /// What is preferred per kernel family.
    pub preferences: Preferences,
    /// A sequence of at most so many tokens runs as one segment.
    pub segment_tokens: usize,
    /// Most segments of a longer sequence; it has at least 4 if the model has as many layers.
    pub max_segments: usize,
    /// Limit of one probe.
    pub probe_timeout: Duration,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            dtype: Dtype::F32,
            threads: None,
            preferences: Preferences::default(),
            segment_tokens: 512,
            max_segments: 8,
            probe_timeout: Duration::from_secs(60),
        }
    }
}
