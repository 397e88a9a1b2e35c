//! Softmax attention of the full-attention layers.

use crate::{rms_norm, sigmoid};

/// Heads and sizes of a full-attention layer. Query head `j` reads key-value head `j / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads, `Q`.
    pub heads: usize,
    /// Key and value heads, `KV`.
    pub kv_heads: usize,
    /// Size of a head, `D`.
    pub head_dim: usize,
    /// How many of the first dimensions of a head turn with the position.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Epsilon of the query and key norms.
    pub eps: f64,
}

/// Parts of the query projection: `[T, Q, 2 D]` -> (query, gate), both `[T, Q, D]`. Each head holds its query, then its gate.
///
/// # Panics
/// If `query_gate` is not a whole number of pairs of `head_dim`.
pub fn split_query_gate(query_gate: &[f64], head_dim: usize) -> (Vec<f64>, Vec<f64>) {
    assert!(
        head_dim > 0 && query_gate.len().is_multiple_of(2 * head_dim),
        "pairs of {head_dim}"
    );
    let (mut query, mut gate) = (Vec::new(), Vec::new());
    for head in query_gate.chunks_exact(2 * head_dim) {
        query.extend_from_slice(&head[..head_dim]);
        gate.extend_from_slice(&head[head_dim..]);
    }
    (query, gate)
}

/// Rotary embedding of the positions `0..T`: x `[T, heads, head_dim]`, of which the first `rotary_dim` dimensions turn in pairs
/// `(i, i + rotary_dim / 2)` by the angle `position theta^(-2 i / rotary_dim)`.
///
/// A text token has the same position on all three axes of the interleaved mrope, which then is plain rope
/// (`Qwen3_5TextRotaryEmbedding`, `apply_rotary_pos_emb`).
///
/// # Panics
/// If `x` is not a whole number of tokens, or `rotary_dim` is odd or above `head_dim`.
pub fn rope(x: &[f64], heads: usize, head_dim: usize, rotary_dim: usize, theta: f64) -> Vec<f64> {
    assert!(
        rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim,
        "rotary dimensions"
    );
    assert!(
        heads * head_dim > 0 && x.len().is_multiple_of(heads * head_dim),
        "rows of {heads} heads"
    );
    let half = rotary_dim / 2;
    let mut y = x.to_vec();
    for (at, head) in y.chunks_exact_mut(head_dim).enumerate() {
        let position = (at / heads) as f64;
        for i in 0..half {
            let (sin, cos) = (position * theta.powf(-2.0 * i as f64 / rotary_dim as f64)).sin_cos();
            let (first, second) = (head[i], head[i + half]);
            head[i] = first * cos - second * sin;
            head[i + half] = second * cos + first * sin;
        }
    }
    y
}

/// Grouped-query softmax attention with the scale `D^-0.5`: q `[T, Q, D]`, k and v `[T, KV, D]` -> `[T, Q, D]`. A causal query sees the
/// keys up to its own position, a noncausal one all of them.
///
/// # Panics
/// If a slice has not the length of its shape, or `Q` is not a multiple of `KV`.
pub fn softmax_attention(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: bool,
) -> Vec<f64> {
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "query heads share key heads evenly"
    );
    let tokens = q.len() / (heads * head_dim);
    assert_eq!(q.len(), tokens * heads * head_dim, "q");
    assert_eq!(k.len(), tokens * kv_heads * head_dim, "k");
    assert_eq!(v.len(), k.len(), "v");
    let group = heads / kv_heads;
    let scale = (head_dim as f64).powf(-0.5);
    let mut out = vec![0.0; q.len()];
    for token in 0..tokens {
        let seen = if causal { token + 1 } else { tokens };
        for head in 0..heads {
            let at = (token * heads + head) * head_dim;
            let q = &q[at..at + head_dim];
            let key_value = |key: usize| {
                let at = (key * kv_heads + head / group) * head_dim;
                at..at + head_dim
            };
            let scores: Vec<f64> = (0..seen)
                .map(|key| scale * q.iter().zip(&k[key_value(key)]).map(|(a, b)| a * b).sum::<f64>())
                .collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let out = &mut out[at..at + head_dim];
            for (key, weight) in weights.iter().enumerate() {
                out.iter_mut()
                    .zip(&v[key_value(key)])
                    .for_each(|(o, v)| *o += weight / total * v);
            }
        }
    }
    out
}

/// `out ∘ sigmoid(gate)`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn output_gate(out: &[f64], gate: &[f64]) -> Vec<f64> {
    assert_eq!(out.len(), gate.len(), "out and gate");
    out.iter().zip(gate).map(|(o, &g)| o * sigmoid(g)).collect()
}

/// Everything between the projections of a full-attention layer: query projection `[T, Q, 2 D]`, key and value projections
/// `[T, KV, D]`, `q_norm` and `k_norm` `[D]` -> `[T, Q, D]`, ready for `o_proj` (`Qwen3_5Attention`: split, norm per head, rope,
/// attention, output gate).
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn attention(
    shape: &AttentionShape,
    query_gate: &[f64],
    key: &[f64],
    value: &[f64],
    q_norm: &[f64],
    k_norm: &[f64],
    causal: bool,
) -> Vec<f64> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        rotary_dim,
        rope_theta,
        eps,
    } = *shape;
    assert_eq!(q_norm.len(), head_dim, "q_norm");
    assert_eq!(k_norm.len(), head_dim, "k_norm");
    let (query, gate) = split_query_gate(query_gate, head_dim);
    let query = rope(
        &rms_norm(&query, q_norm, eps),
        heads,
        head_dim,
        rotary_dim,
        rope_theta,
    );
    let key = rope(
        &rms_norm(key, k_norm, eps),
        kv_heads,
        head_dim,
        rotary_dim,
        rope_theta,
    );
    output_gate(
        &softmax_attention(&query, &key, value, heads, kv_heads, head_dim, causal),
        &gate,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_and_gate_alternate_per_head() {
        let (query, gate) = split_query_gate(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2);
        assert_eq!(
            (query, gate),
            (vec![1.0, 2.0, 5.0, 6.0], vec![3.0, 4.0, 7.0, 8.0])
        );
    }

    #[test]
    fn rope_turns_pairs_half_a_rotary_width_apart() {
        let x = [1.0, 0.0, 0.0, 2.0, 9.0, 1.0, 0.0, 0.0, 2.0, 9.0];
        let y = rope(&x, 1, 5, 4, 100.0);
        assert_eq!(y[..5], x[..5], "position 0 stays");
        let expected = [
            1f64.cos(),
            -2.0 * 0.1f64.sin(),
            1f64.sin(),
            2.0 * 0.1f64.cos(),
            9.0,
        ];
        assert!(
            y[5..].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15),
            "{y:?}"
        );
    }

    #[test]
    fn causal_hides_the_future_only() {
        let (q, k, v) = ([0.0; 3], [0.0; 3], [3.0, 6.0, 9.0]);
        assert_eq!(softmax_attention(&q, &k, &v, 1, 1, 1, true), [3.0, 4.5, 6.0]);
        let noncausal = softmax_attention(&q, &k, &v, 1, 1, 1, false);
        assert!(noncausal.iter().all(|o| (o - 6.0).abs() < 1e-14));
    }

    #[test]
    fn consecutive_query_heads_share_a_key_head_and_large_scores_stay_finite() {
        let q = [1e4, 1e4, -1e4, 1e4];
        let o = softmax_attention(&q, &[1.0, 1.0], &[5.0, 7.0], 4, 2, 1, true);
        assert_eq!(o, [5.0, 5.0, 7.0, 7.0]);
    }
}
