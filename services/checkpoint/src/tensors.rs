//! Tensors that a config asks for.

use crate::{LayerKind, ModelConfig};

/// Unprefixed name and shape of every tensor of the backbone, the output embedding not included.
pub fn backbone_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let c = config;
    let (h, inner) = (c.hidden_size, c.intermediate_size);
    let value_heads = c.linear_num_value_heads;
    let values = value_heads * c.linear_value_head_dim;
    let channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim + values;
    let queries = c.num_attention_heads * c.head_dim;
    let keys = c.num_key_value_heads * c.head_dim;
    let mut tensors = vec![("embed_tokens.weight".to_owned(), vec![c.vocab_size, h])];
    for (layer, kind) in c.layers.iter().enumerate() {
        let mut add =
            |name: &str, shape: &[usize]| tensors.push((format!("layers.{layer}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
        add("mlp.gate_proj.weight", &[inner, h]);
        add("mlp.up_proj.weight", &[inner, h]);
        add("mlp.down_proj.weight", &[h, inner]);
        match kind {
            LayerKind::LinearAttention => {
                add("linear_attn.in_proj_qkv.weight", &[channels, h]);
                add("linear_attn.in_proj_z.weight", &[values, h]);
                add("linear_attn.in_proj_b.weight", &[value_heads, h]);
                add("linear_attn.in_proj_a.weight", &[value_heads, h]);
                add(
                    "linear_attn.conv1d.weight",
                    &[channels, 1, c.linear_conv_kernel_dim],
                );
                add("linear_attn.A_log", &[value_heads]);
                add("linear_attn.dt_bias", &[value_heads]);
                add("linear_attn.norm.weight", &[c.linear_value_head_dim]);
                add("linear_attn.out_proj.weight", &[h, values]);
            }
            LayerKind::FullAttention => {
                // Per head the query, then its gate.
                add("self_attn.q_proj.weight", &[queries * 2, h]);
                add("self_attn.k_proj.weight", &[keys, h]);
                add("self_attn.v_proj.weight", &[keys, h]);
                add("self_attn.o_proj.weight", &[h, queries]);
                add("self_attn.q_norm.weight", &[c.head_dim]);
                add("self_attn.k_norm.weight", &[c.head_dim]);
            }
        }
    }
    tensors.push(("norm.weight".to_owned(), vec![h]));
    tensors
}
