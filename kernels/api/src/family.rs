//! The kernel families: groups of operations that are bound to one backend each.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A group of operations that is bound to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelFamily {
    /// Token embedding.
    Embed,
    /// Residual add and RMS norm.
    Norm,
    /// Linear layers outside the MLP.
    Projection,
    /// Depthwise causal convolution of the delta-rule layers.
    Conv1d,
    /// The gated delta rule.
    DeltaRule,
    /// Norm and gate after the delta rule.
    GatedNorm,
    /// Softmax attention of the full-attention layers.
    Attention,
    /// The gated MLP.
    Mlp,
    /// What is read from the last hidden rows.
    Readout,
    /// How a plan is launched.
    Launch,
}

impl KernelFamily {
    /// Every family, in the order of the layer plan.
    pub const ALL: [Self; 10] = [
        Self::Embed,
        Self::Norm,
        Self::Projection,
        Self::Conv1d,
        Self::DeltaRule,
        Self::GatedNorm,
        Self::Attention,
        Self::Mlp,
        Self::Readout,
        Self::Launch,
    ];

    /// The name in configuration, spans and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Projection => "projection",
            Self::Conv1d => "conv1d",
            Self::DeltaRule => "delta_rule",
            Self::GatedNorm => "gated_norm",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Readout => "readout",
            Self::Launch => "launch",
        }
    }
}

impl fmt::Display for KernelFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name is none of the kernel families.
#[derive(Debug, thiserror::Error)]
#[error("unknown kernel family `{0}`")]
pub struct UnknownFamily(pub String);

impl FromStr for KernelFamily {
    type Err = UnknownFamily;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|f| f.as_str() == name)
            .ok_or_else(|| UnknownFamily(name.to_owned()))
    }
}
