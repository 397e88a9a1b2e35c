//! From the names of the config to the names of the kernels.

use deltagate_checkpoint::{JointHeadConfig, ModelConfig};
use deltagate_kernels_api::{AttentionShape, DeltaRuleShape, JointHeadShape};

/// Sizes of the delta-rule layers of a model.
pub(super) const fn delta_rule_shape(config: &ModelConfig) -> DeltaRuleShape {
    DeltaRuleShape {
        key_heads: config.linear_num_key_heads,
        value_heads: config.linear_num_value_heads,
        key_dim: config.linear_key_head_dim,
        value_dim: config.linear_value_head_dim,
    }
}

/// Sizes of the full-attention layers of a model.
pub(super) const fn attention_shape(config: &ModelConfig) -> AttentionShape {
    AttentionShape {
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rotary_dim: config.rotary_dim,
        rope_theta: config.rope_theta,
        epsilon: config.rms_norm_eps,
    }
}

/// Sizes of the joint head of a model.
pub(super) const fn joint_head_shape(config: &JointHeadConfig) -> JointHeadShape {
    JointHeadShape {
        width: config.width,
        routing_layers: config.routing_layers,
        layers: config.layers,
        heads: config.heads,
        feedforward: config.feedforward,
    }
}
