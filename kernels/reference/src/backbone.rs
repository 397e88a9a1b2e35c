//! The whole text backbone.

use crate::{
    AttentionShape, DeltaRuleShape, attention, conv1d, delta_rule, embed, gated_norm, gates, l2_norm, linear,
    mlp, rms_norm,
};

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Gated delta rule.
    LinearAttention,
    /// Softmax attention.
    FullAttention,
}

/// Sizes of a backbone, named as in `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct BackboneConfig {
    /// Width of the residual stream, `H`.
    pub hidden_size: usize,
    /// Width of the MLP, `I`.
    pub intermediate_size: usize,
    /// Mixer of each layer.
    pub layers: Vec<Mixer>,
    /// Query heads of full attention.
    pub num_attention_heads: usize,
    /// Key and value heads of full attention.
    pub num_key_value_heads: usize,
    /// Head size of full attention.
    pub head_dim: usize,
    /// Turning dimensions of a head.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Query and key heads of the delta rule.
    pub linear_num_key_heads: usize,
    /// Value heads of the delta rule.
    pub linear_num_value_heads: usize,
    /// Size of a query or key head of the delta rule.
    pub linear_key_head_dim: usize,
    /// Size of a value head of the delta rule.
    pub linear_value_head_dim: usize,
    /// Taps of the short convolution.
    pub linear_conv_kernel_dim: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Rows of the embedding table.
    pub vocab_size: usize,
}

/// Why a backbone cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackboneError {
    /// A tensor has another number of values than the sizes say.
    #[error("tensor `{name}` has {actual} values, not {expected}")]
    Tensor {
        /// Unprefixed name.
        name: String,
        /// Number of values by the config.
        expected: usize,
        /// Number of values given.
        actual: usize,
    },
    /// A token id is not below the vocabulary size.
    #[error("a token id at position {position} is not below the vocabulary size")]
    TokenId {
        /// Where it stands.
        position: usize,
    },
    /// Sizes that no backbone can have.
    #[error("the sizes in `{key}` do not fit together")]
    Config {
        /// The size that does not fit.
        key: &'static str,
    },
}

/// Unprefixed name and shape of every tensor of a backbone, in the order of the layers (not of the names).
pub fn tensor_shapes(config: &BackboneConfig) -> Vec<(String, Vec<usize>)> {
    let c = config;
    let (h, inner) = (c.hidden_size, c.intermediate_size);
    let (value_heads, value_dim) = (c.linear_num_value_heads, c.linear_value_head_dim);
    let values = value_heads * value_dim;
    let channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim + values;
    let mut shapes = vec![("embed_tokens.weight".to_owned(), vec![c.vocab_size, h])];
    for (layer, mixer) in c.layers.iter().enumerate() {
        let mut add =
            |name: &str, shape: &[usize]| shapes.push((format!("layers.{layer}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[h]);
        match mixer {
            Mixer::LinearAttention => {
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
                add("linear_attn.norm.weight", &[value_dim]);
                add("linear_attn.out_proj.weight", &[h, values]);
            }
            Mixer::FullAttention => {
                add(
                    "self_attn.q_proj.weight",
                    &[c.num_attention_heads * c.head_dim * 2, h],
                );
                add(
                    "self_attn.k_proj.weight",
                    &[c.num_key_value_heads * c.head_dim, h],
                );
                add(
                    "self_attn.v_proj.weight",
                    &[c.num_key_value_heads * c.head_dim, h],
                );
                add(
                    "self_attn.o_proj.weight",
                    &[h, c.num_attention_heads * c.head_dim],
                );
                add("self_attn.q_norm.weight", &[c.head_dim]);
                add("self_attn.k_norm.weight", &[c.head_dim]);
            }
        }
        add("post_attention_layernorm.weight", &[h]);
        add("mlp.gate_proj.weight", &[inner, h]);
        add("mlp.up_proj.weight", &[inner, h]);
        add("mlp.down_proj.weight", &[h, inner]);
    }
    shapes.push(("norm.weight".to_owned(), vec![h]));
    shapes
}

/// Hidden rows after the final norm, `[T, H]` (`Qwen3_5TextModel.forward`).
///
/// `get_tensor` gives a tensor by its unprefixed name, flat and row-major; [`tensor_shapes`] lists what is asked for. With
/// `noncausal_full_attention` every token sees the whole sequence in the full-attention layers; the delta rule stays causal.
///
/// # Errors
/// If a tensor has a wrong number of values, an id lies outside of the vocabulary, or the sizes do not fit together.
pub fn backbone(
    config: &BackboneConfig,
    get_tensor: &dyn Fn(&str) -> Vec<f64>,
    ids: &[u32],
    noncausal_full_attention: bool,
) -> Result<Vec<f64>, BackboneError> {
    check(config, ids)?;
    let shapes: std::collections::HashMap<String, usize> = tensor_shapes(config)
        .into_iter()
        .map(|(name, shape)| (name, shape.iter().product()))
        .collect();
    let tensor = |name: &str| {
        let values = get_tensor(name);
        let expected = shapes.get(name).copied().unwrap_or_default();
        if values.len() == expected {
            Ok(values)
        } else {
            Err(BackboneError::Tensor {
                name: name.to_owned(),
                expected,
                actual: values.len(),
            })
        }
    };

    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let mut x = embed(ids, &tensor("embed_tokens.weight")?, hidden);
    for (layer, mixer) in config.layers.iter().enumerate() {
        let of_layer = |name: &str| tensor(&format!("layers.{layer}.{name}"));
        let normed = rms_norm(&x, &of_layer("input_layernorm.weight")?, eps);
        let mixed = match mixer {
            Mixer::LinearAttention => delta_layer(config, &of_layer, &normed)?,
            Mixer::FullAttention => attention_layer(config, &of_layer, &normed, !noncausal_full_attention)?,
        };
        add(&mut x, &mixed);
        let normed = rms_norm(&x, &of_layer("post_attention_layernorm.weight")?, eps);
        let (gate, up, down) = (
            of_layer("mlp.gate_proj.weight")?,
            of_layer("mlp.up_proj.weight")?,
            of_layer("mlp.down_proj.weight")?,
        );
        add(
            &mut x,
            &mlp(&normed, &gate, &up, &down, hidden, config.intermediate_size),
        );
    }
    Ok(rms_norm(&x, &tensor("norm.weight")?, eps))
}

type OfLayer<'a> = dyn Fn(&str) -> Result<Vec<f64>, BackboneError> + 'a;

fn delta_layer(
    config: &BackboneConfig,
    of_layer: &OfLayer<'_>,
    x: &[f64],
) -> Result<Vec<f64>, BackboneError> {
    let shape = DeltaRuleShape {
        key_heads: config.linear_num_key_heads,
        value_heads: config.linear_num_value_heads,
        key_dim: config.linear_key_head_dim,
        value_dim: config.linear_value_head_dim,
    };
    let hidden = config.hidden_size;
    let keys = shape.key_heads * shape.key_dim;
    let values = shape.value_heads * shape.value_dim;
    let channels = 2 * keys + values;

    let qkv = linear(x, &of_layer("linear_attn.in_proj_qkv.weight")?, hidden);
    let qkv = conv1d(
        &qkv,
        &of_layer("linear_attn.conv1d.weight")?,
        channels,
        config.linear_conv_kernel_dim,
    );
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for row in qkv.chunks_exact(channels) {
        q.extend_from_slice(&row[..keys]);
        k.extend_from_slice(&row[keys..2 * keys]);
        v.extend_from_slice(&row[2 * keys..]);
    }
    let a = linear(x, &of_layer("linear_attn.in_proj_a.weight")?, hidden);
    let b = linear(x, &of_layer("linear_attn.in_proj_b.weight")?, hidden);
    let (log_decay, beta) = gates(
        &a,
        &b,
        &of_layer("linear_attn.A_log")?,
        &of_layer("linear_attn.dt_bias")?,
    );
    let (q, k) = (l2_norm(&q, shape.key_dim), l2_norm(&k, shape.key_dim));
    let o = delta_rule(
        shape,
        &q,
        &k,
        &v,
        &log_decay,
        &beta,
        (shape.key_dim as f64).powf(-0.5),
    );
    let z = linear(x, &of_layer("linear_attn.in_proj_z.weight")?, hidden);
    let y = gated_norm(&o, &z, &of_layer("linear_attn.norm.weight")?, config.rms_norm_eps);
    Ok(linear(&y, &of_layer("linear_attn.out_proj.weight")?, values))
}

fn attention_layer(
    config: &BackboneConfig,
    of_layer: &OfLayer<'_>,
    x: &[f64],
    causal: bool,
) -> Result<Vec<f64>, BackboneError> {
    let shape = AttentionShape {
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rotary_dim: config.rotary_dim,
        rope_theta: config.rope_theta,
        eps: config.rms_norm_eps,
    };
    let hidden = config.hidden_size;
    let query_gate = linear(x, &of_layer("self_attn.q_proj.weight")?, hidden);
    let key = linear(x, &of_layer("self_attn.k_proj.weight")?, hidden);
    let value = linear(x, &of_layer("self_attn.v_proj.weight")?, hidden);
    let (q_norm, k_norm) = (
        of_layer("self_attn.q_norm.weight")?,
        of_layer("self_attn.k_norm.weight")?,
    );
    let y = attention(&shape, &query_gate, &key, &value, &q_norm, &k_norm, causal);
    Ok(linear(
        &y,
        &of_layer("self_attn.o_proj.weight")?,
        shape.heads * shape.head_dim,
    ))
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn check(config: &BackboneConfig, ids: &[u32]) -> Result<(), BackboneError> {
    let c = config;
    let positive = [
        ("hidden_size", c.hidden_size),
        ("intermediate_size", c.intermediate_size),
        ("num_attention_heads", c.num_attention_heads),
        ("num_key_value_heads", c.num_key_value_heads),
        ("head_dim", c.head_dim),
        ("linear_num_key_heads", c.linear_num_key_heads),
        ("linear_num_value_heads", c.linear_num_value_heads),
        ("linear_key_head_dim", c.linear_key_head_dim),
        ("linear_value_head_dim", c.linear_value_head_dim),
        ("linear_conv_kernel_dim", c.linear_conv_kernel_dim),
        ("vocab_size", c.vocab_size),
    ];
    if let Some(&(key, _)) = positive.iter().find(|(_, size)| *size == 0) {
        return Err(BackboneError::Config { key });
    }
    if !c.num_attention_heads.is_multiple_of(c.num_key_value_heads) {
        return Err(BackboneError::Config {
            key: "num_key_value_heads",
        });
    }
    if !c.linear_num_value_heads.is_multiple_of(c.linear_num_key_heads) {
        return Err(BackboneError::Config {
            key: "linear_num_key_heads",
        });
    }
    if !c.rotary_dim.is_multiple_of(2) || c.rotary_dim > c.head_dim {
        return Err(BackboneError::Config { key: "rotary_dim" });
    }
    match ids.iter().position(|&id| id as usize >= c.vocab_size) {
        Some(position) => Err(BackboneError::TokenId { position }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tiny() -> BackboneConfig {
        BackboneConfig {
            hidden_size: 4,
            intermediate_size: 6,
            layers: vec![Mixer::LinearAttention, Mixer::FullAttention],
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            rotary_dim: 2,
            rope_theta: 1e4,
            linear_num_key_heads: 1,
            linear_num_value_heads: 2,
            linear_key_head_dim: 3,
            linear_value_head_dim: 5,
            linear_conv_kernel_dim: 4,
            rms_norm_eps: 1e-6,
            vocab_size: 7,
        }
    }

    fn values(config: &BackboneConfig, name: &str) -> Vec<f64> {
        let shape = tensor_shapes(config)
            .into_iter()
            .find(|(n, _)| n == name)
            .unwrap()
            .1;
        (0..shape.iter().product())
            .map(|i: usize| (i as f64 * 0.37 + name.len() as f64).sin())
            .collect()
    }

    #[test]
    fn a_wrong_tensor_is_named() {
        let config = tiny();
        let get = |name: &str| {
            let mut tensor = values(&config, name);
            if name == "layers.1.self_attn.k_norm.weight" {
                tensor.pop();
            }
            tensor
        };
        let error = backbone(&config, &get, &[1, 2], false).unwrap_err();
        let name = "layers.1.self_attn.k_norm.weight".to_owned();
        assert_eq!(
            error,
            BackboneError::Tensor {
                name,
                expected: 8,
                actual: 7
            }
        );
    }

    #[test]
    fn ids_and_sizes_are_checked() {
        let config = tiny();
        let get = |name: &str| values(&config, name);
        let error = backbone(&config, &get, &[1, 7], false).unwrap_err();
        assert_eq!(error, BackboneError::TokenId { position: 1 });
        let odd = BackboneConfig {
            num_key_value_heads: 3,
            ..tiny()
        };
        let error = backbone(&odd, &get, &[1], false).unwrap_err();
        assert_eq!(
            error,
            BackboneError::Config {
                key: "num_key_value_heads"
            }
        );
        assert!(backbone(&config, &get, &[], false).unwrap().is_empty());
    }

    #[test]
    fn rows_do_not_see_the_future_unless_attention_is_noncausal() {
        let config = tiny();
        let get = |name: &str| values(&config, name);
        let (short, long) = ([1, 2, 3], [1, 2, 3, 4]);
        let causal = |ids: &[u32]| backbone(&config, &get, ids, false).unwrap();
        assert_eq!(causal(&short)[..], causal(&long)[..12]);
        let noncausal = |ids: &[u32]| backbone(&config, &get, ids, true).unwrap();
        assert_ne!(noncausal(&short)[..], noncausal(&long)[..12]);
    }
}
