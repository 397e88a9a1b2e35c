//! Norms over the last dimension.

use crate::silu;

/// RMS norm with a zero-centred weight: `x / sqrt(mean x² + eps) ∘ (1 + w)`; x `[T, D]`, weight `[D]` (`Qwen3_5RMSNorm`).
///
/// # Panics
/// If `x` is not a whole number of rows of `weight.len()`.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "rows of {}",
        weight.len()
    );
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let scale = inverse_rms(row, eps);
        y.extend(row.iter().zip(weight).map(|(v, w)| v * scale * (1.0 + w)));
    }
    y
}

/// Unit length per row: `x / sqrt(Σ x² + 1e-6)`; x `[R, dim]` (`l2norm` of the gated delta rule; its epsilon is not the config's).
///
/// # Panics
/// If `x` is not a whole number of rows of `dim`.
pub fn l2_norm(x: &[f64], dim: usize) -> Vec<f64> {
    assert!(dim > 0 && x.len().is_multiple_of(dim), "rows of {dim}");
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(dim) {
        let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
        y.extend(row.iter().map(|v| v * scale));
    }
    y
}

/// Norm, then gate: `w ∘ (o / sqrt(mean o² + eps)) ∘ silu(z)` per head, with a plain weight (not `1 + w`); o and z `[R, dv]`, weight
/// `[dv]` (`Qwen3_5RMSNormGated`).
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn gated_norm(o: &[f64], z: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(o.len(), z.len(), "o and z");
    assert!(
        !weight.is_empty() && o.len().is_multiple_of(weight.len()),
        "rows of {}",
        weight.len()
    );
    let mut y = Vec::with_capacity(o.len());
    for (row, gate) in o.chunks_exact(weight.len()).zip(z.chunks_exact(weight.len())) {
        let scale = inverse_rms(row, eps);
        y.extend(
            row.iter()
                .zip(gate)
                .zip(weight)
                .map(|((v, &g), w)| w * (v * scale) * silu(g)),
        );
    }
    y
}

/// Layer norm: `(x − mean) / sqrt(variance + eps) ∘ w + b` with the biased variance; x `[R, D]`, weight and bias `[D]`.
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(weight.len(), bias.len(), "weight and bias");
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "rows of {}",
        weight.len()
    );
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let centred: Vec<f64> = row.iter().map(|v| v - mean).collect();
        let scale = inverse_rms(&centred, eps);
        y.extend(
            centred
                .iter()
                .zip(weight)
                .zip(bias)
                .map(|((v, w), b)| v * scale * w + b),
        );
    }
    y
}

fn inverse_rms(row: &[f64], eps: f64) -> f64 {
    1.0 / (row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_centres_its_weight_at_zero() {
        let y = rms_norm(&[3.0, 4.0, 0.0, 0.0], &[0.0, 1.0], 0.0);
        let rms = (25.0f64 / 2.0).sqrt();
        assert!((y[0] - 3.0 / rms).abs() < 1e-15 && (y[1] - 8.0 / rms).abs() < 1e-15);
        assert!(y[2].is_nan(), "without an epsilon a zero row has no direction");
        assert_eq!(rms_norm(&[0.0, 0.0], &[0.0, 1.0], 1e-6), [0.0, 0.0]);
    }

    #[test]
    fn layer_norm_centres_and_scales_by_the_biased_deviation() {
        let y = layer_norm(&[1.0, 3.0, 5.0, 5.0], &[2.0, 0.5], &[0.25, -1.0], 0.0);
        assert!((y[0] + 1.75).abs() < 1e-15 && (y[1] + 0.5).abs() < 1e-15);
        assert!(y[2].is_nan(), "without an epsilon equal values have no direction");
        assert_eq!(
            layer_norm(&[5.0, 5.0], &[2.0, 0.5], &[0.25, -1.0], 1e-5),
            [0.25, -1.0]
        );
    }

    #[test]
    fn l2_norm_gives_unit_rows() {
        let y = l2_norm(&[3.0, 4.0, 0.0, 0.0], 2);
        assert!((y[0] - 0.6).abs() < 1e-7 && (y[1] - 0.8).abs() < 1e-7);
        assert_eq!(y[2..], [0.0, 0.0]);
    }

    #[test]
    fn gated_norm_uses_the_plain_weight_and_gates_after_the_norm() {
        let (o, z, w) = ([1.0, -2.0], [0.5, 3.0], [2.0, 0.5]);
        let y = gated_norm(&o, &z, &w, 1e-6);
        let scale = 1.0 / (2.5f64 + 1e-6).sqrt();
        assert!((y[0] - 2.0 * scale * silu(0.5)).abs() < 1e-15);
        assert!((y[1] - 0.5 * -2.0 * scale * silu(3.0)).abs() < 1e-15);
    }
}
