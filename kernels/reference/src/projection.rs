//! Table look-up and matrix products.

use crate::silu;

/// Rows of the embedding table: ids `[T]`, table `[V, H]` -> `[T, H]`.
///
/// # Panics
/// If an id is not below `V`.
pub fn embed(ids: &[u32], table: &[f64], hidden: usize) -> Vec<f64> {
    ids.iter()
        .flat_map(|&id| &table[id as usize * hidden..(id as usize + 1) * hidden])
        .copied()
        .collect()
}

/// `y = x Wᵀ`, without bias: x `[T, I]`, weight `[O, I]` -> `[T, O]`.
///
/// # Panics
/// If a slice is not a whole number of rows of `inputs`.
pub fn linear(x: &[f64], weight: &[f64], inputs: usize) -> Vec<f64> {
    assert!(
        inputs > 0 && x.len().is_multiple_of(inputs) && weight.len().is_multiple_of(inputs),
        "rows of {inputs}"
    );
    let mut y = Vec::with_capacity(x.len() / inputs * (weight.len() / inputs));
    for row in x.chunks_exact(inputs) {
        for column in weight.chunks_exact(inputs) {
            y.push(row.iter().zip(column).map(|(a, b)| a * b).sum());
        }
    }
    y
}

/// The gated MLP, `down(silu(gate x) ∘ up x)`: x `[T, H]`, gate and up `[I, H]`, down `[H, I]` -> `[T, H]` (`Qwen3_5MLP`).
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn mlp(
    x: &[f64],
    gate: &[f64],
    up: &[f64],
    down: &[f64],
    hidden: usize,
    intermediate: usize,
) -> Vec<f64> {
    assert_eq!(gate.len(), intermediate * hidden, "gate");
    assert_eq!(up.len(), intermediate * hidden, "up");
    assert_eq!(down.len(), hidden * intermediate, "down");
    let up = linear(x, up, hidden);
    let inner: Vec<f64> = linear(x, gate, hidden)
        .iter()
        .zip(up)
        .map(|(&g, u)| silu(g) * u)
        .collect();
    linear(&inner, down, intermediate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embed_copies_rows_in_the_order_of_the_ids() {
        assert_eq!(
            embed(&[2, 0, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2),
            [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]
        );
    }

    #[test]
    fn linear_multiplies_by_the_transposed_weight() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let w = [1.0, 0.0, -1.0, 2.0, 2.0, 2.0];
        assert_eq!(linear(&x, &w, 3), [-2.0, 12.0, -2.0, 30.0]);
    }

    #[test]
    fn mlp_gates_the_up_projection() {
        let y = mlp(&[2.0], &[1.0, -1.0], &[3.0, 5.0], &[1.0, 1.0], 1, 2);
        assert!((y[0] - (silu(2.0) * 6.0 + silu(-2.0) * 10.0)).abs() < 1e-14);
    }
}
