//! Gated delta rule.

use crate::{sigmoid, softplus};

/// Heads and sizes of a delta-rule layer. Value head `j` reads key head `j / (value_heads / key_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRuleShape {
    /// Query and key heads, `Hk`.
    pub key_heads: usize,
    /// Value heads, `Hv`; a multiple of `Hk`.
    pub value_heads: usize,
    /// Size of a query or key head, `dk`.
    pub key_dim: usize,
    /// Size of a value head, `dv`.
    pub value_dim: usize,
}

/// Gates of the delta rule from the `a` and `b` projections: a, b `[T, Hv]`, `A_log` and `dt_bias` `[Hv]` -> (log-decay, beta), both
/// `[T, Hv]`.
///
/// `log_decay = -exp(A_log) softplus(a + dt_bias)` (never positive; the state is multiplied by its exponential) and
/// `beta = sigmoid(b)` (`Qwen3_5GatedDeltaNet.forward`).
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn gates(a: &[f64], b: &[f64], a_log: &[f64], dt_bias: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let heads = a_log.len();
    assert_eq!(dt_bias.len(), heads, "dt_bias");
    assert_eq!(a.len(), b.len(), "a and b");
    assert!(heads > 0 && a.len().is_multiple_of(heads), "rows of {heads}");
    let log_decay = a
        .iter()
        .enumerate()
        .map(|(i, a)| -a_log[i % heads].exp() * softplus(a + dt_bias[i % heads]))
        .collect();
    (log_decay, b.iter().map(|&b| sigmoid(b)).collect())
}

/// Token by token, from a zero state: q, k `[T, Hk, dk]`, v `[T, Hv, dv]`, log-decay and beta `[T, Hv]` -> o `[T, Hv, dv]`.
///
/// Per value head with state `S [dk, dv]`: `S ← e^g S`; `u = beta (v - Sᵀk)`; `S ← S + k uᵀ`; `o = Sᵀ(scale q)`
/// (`torch_recurrent_gated_delta_rule`). `q` and `k` are used as given: pass them through [`l2_norm`](crate::l2_norm) first, as the
/// model does, and give the scale `dk^-0.5`.
///
/// # Panics
/// If a slice has not the length of its shape, or `Hv` is not a multiple of `Hk`.
pub fn delta_rule(
    shape: DeltaRuleShape,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    log_decay: &[f64],
    beta: &[f64],
    scale: f64,
) -> Vec<f64> {
    let DeltaRuleShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    } = shape;
    assert!(
        key_heads > 0 && value_heads.is_multiple_of(key_heads),
        "value heads share key heads evenly"
    );
    let tokens = log_decay.len() / value_heads;
    assert_eq!(q.len(), tokens * key_heads * key_dim, "q");
    assert_eq!(k.len(), tokens * key_heads * key_dim, "k");
    assert_eq!(v.len(), tokens * value_heads * value_dim, "v");
    assert_eq!(log_decay.len(), tokens * value_heads, "log_decay");
    assert_eq!(beta.len(), tokens * value_heads, "beta");

    let mut out = vec![0.0; v.len()];
    let group = value_heads / key_heads;
    for head in 0..value_heads {
        let mut state = vec![0.0; key_dim * value_dim];
        for token in 0..tokens {
            let at_key = (token * key_heads + head / group) * key_dim;
            let (q, k) = (&q[at_key..at_key + key_dim], &k[at_key..at_key + key_dim]);
            let at_gate = token * value_heads + head;
            let at_value = at_gate * value_dim;
            let v = &v[at_value..at_value + value_dim];

            let decay = log_decay[at_gate].exp();
            state.iter_mut().for_each(|s| *s *= decay);
            // What the state already answers to this key is taken off before the new value is written.
            let mut update = v.to_vec();
            for (row, k) in state.chunks_exact(value_dim).zip(k) {
                update.iter_mut().zip(row).for_each(|(u, s)| *u -= s * k);
            }
            update.iter_mut().for_each(|u| *u *= beta[at_gate]);
            let out = &mut out[at_value..at_value + value_dim];
            for ((row, k), q) in state.chunks_exact_mut(value_dim).zip(k).zip(q) {
                for ((s, u), o) in row.iter_mut().zip(&update).zip(out.iter_mut()) {
                    *s += k * u;
                    *o += *s * q * scale;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: DeltaRuleShape = DeltaRuleShape {
        key_heads: 1,
        value_heads: 1,
        key_dim: 2,
        value_dim: 1,
    };

    #[test]
    fn gates_follow_the_formula() {
        let (log_decay, beta) = gates(&[0.3, 30.0], &[0.0, 2.0], &[0.5], &[-0.1]);
        assert!((log_decay[0] + 0.5f64.exp() * (0.2f64.exp() + 1.0).ln()).abs() < 1e-15);
        assert!((log_decay[1] + 0.5f64.exp() * 29.9).abs() < 1e-12);
        assert_eq!(beta, [0.5, sigmoid(2.0)]);
    }

    #[test]
    fn the_same_key_overwrites_its_value() {
        // Unit key, beta 1, no decay: the second write replaces the first one entirely.
        let q = [1.0, 0.0, 1.0, 0.0];
        let o = delta_rule(ONE, &q, &q, &[5.0, 7.0], &[0.0, 0.0], &[1.0, 1.0], 1.0);
        assert_eq!(o, [5.0, 7.0]);
    }

    #[test]
    fn beta_and_decay_act_where_the_formula_says() {
        let (q, k) = ([1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]);
        let o = delta_rule(ONE, &q, &k, &[4.0, 8.0], &[0.0, 0.5f64.ln()], &[0.5, 0.25], 2.0);
        // First: 2 stands at key 0. Second: it decays to 1 and 2 stands at key 1.
        assert!((o[0] - 4.0).abs() < 1e-14 && (o[1] - 6.0).abs() < 1e-14, "{o:?}");
    }

    #[test]
    fn consecutive_value_heads_share_a_key_head() {
        let shape = DeltaRuleShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 1,
            value_dim: 1,
        };
        let o = delta_rule(
            shape,
            &[1.0, 10.0],
            &[1.0, 1.0],
            &[1.0, 2.0, 3.0, 4.0],
            &[0.0; 4],
            &[1.0; 4],
            1.0,
        );
        assert_eq!(o, [1.0, 2.0, 30.0, 40.0]);
    }
}
