//! Softmax, argmax, and confidence as TypeSafe defines it ("definition A"). All in f64, unrounded; and the rounding of the
//! families that round.

/// `p_i = exp((z_i - max z) / temperature) / sum`. Empty for no logits. The logits are finite, the temperature above 0.
pub fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|z| ((f64::from(*z) - f64::from(top)) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// Index of the largest value, the first of equals; 0 for none.
pub fn argmax(values: &[f64]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if values.get(best).is_some_and(|top| value > top) {
            best = index;
        }
    }
    best
}

/// Confidence of a choice: `(n p_max - 1) / (n - 1)` clamped to `[0, 1]`; 1 for one option.
pub fn choice_confidence(p: &[f64]) -> f64 {
    if p.len() < 2 {
        return 1.0;
    }
    let n = p.len() as f64;
    let top = p.iter().copied().fold(0.0, f64::max);
    ((n * top - 1.0) / (n - 1.0)).clamp(0.0, 1.0)
}

/// Confidence of a score: `1 - sum p_i |i - mode| / D`, at least 0, where `D` is the mean of `|i - (n - 1) / 2|`; 1 for one level.
pub fn score_confidence(p: &[f64]) -> f64 {
    if p.len() < 2 {
        return 1.0;
    }
    let n = p.len() as f64;
    let (mode, middle) = (argmax(p) as f64, (n - 1.0) / 2.0);
    let spread: f64 = p
        .iter()
        .enumerate()
        .map(|(i, p)| p * (i as f64 - mode).abs())
        .sum();
    let even = (0..p.len()).map(|i| (i as f64 - middle).abs()).sum::<f64>() / n;
    (1.0 - spread / even).clamp(0.0, 1.0)
}

/// Confidence by entropy ("definition B"): `1 - H(p) / ln n` with the natural logarithm and `0 ln 0 = 0`, at least 0; 1 for one
/// option.
pub fn entropy_confidence(p: &[f64]) -> f64 {
    if p.len() < 2 {
        return 1.0;
    }
    let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    (1.0 - entropy / (p.len() as f64).ln()).max(0.0)
}

/// Expected level `sum of i p_i`.
pub fn expected_level(p: &[f64]) -> f64 {
    p.iter().enumerate().map(|(i, p)| i as f64 * p).sum()
}

/// `x` to `digits` decimals as Python's `round` does it: the exact binary value, correctly rounded, ties to even.
///
/// Not by way of `x * 10^digits`, which rounds twice: 2.675 is 2.67, because the nearest double lies below it.
pub fn round_decimal(x: f64, digits: usize) -> f64 {
    format!("{x:.digits$}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::Value;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn published_table() {
        let table: Value =
            serde_json::from_str(include_str!("../../../tests/fixtures/confidence.json")).unwrap();
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 5);
        let logits: Vec<f32> = serde_json::from_value(table["logits"].clone()).unwrap();
        for row in rows {
            let of = |key: &str| row[key].as_f64().unwrap();
            let p: Vec<f64> = serde_json::from_value(row["p"].clone()).unwrap();
            let got = softmax(&logits, of("temperature"));
            assert_eq!(got.len(), p.len());
            assert!(got.iter().zip(p).all(|(a, b)| near(*a, b)), "{got:?}");
            assert!(near(choice_confidence(&got), of("choice_confidence")));
            assert!(near(expected_level(&got), of("score")));
            assert!(near(score_confidence(&got), of("score_confidence")));
            assert!(near(entropy_confidence(&got), of("entropy_confidence")));
        }
    }

    #[test]
    fn rounding_is_that_of_the_exact_value() {
        for (x, digits, want) in [
            (2.675, 2, 2.67),
            (0.12345, 4, 0.1235),
            (0.12355, 4, 0.1235),
            (0.125, 2, 0.12),
            (0.375, 2, 0.38),
            (2.5, 0, 2.0),
            (1e300, 4, 1e300),
        ] {
            assert_eq!(round_decimal(x, digits), want, "{x}");
        }
        assert!(round_decimal(-0.00001, 4).is_sign_negative() && round_decimal(f64::NAN, 4).is_nan());
    }

    #[test]
    fn extremes_stay_finite() {
        assert_eq!(softmax(&[f32::MAX, f32::MIN], f64::MIN_POSITIVE), [1.0, 0.0]);
        assert_eq!(softmax(&[], 1.0), Vec::<f64>::new());
        assert_eq!(argmax(&[0.25, 0.5, 0.5]), 1);
        assert_eq!((choice_confidence(&[1.0]), score_confidence(&[1.0])), (1.0, 1.0));
        assert_eq!(score_confidence(&[0.5, 0.0, 0.5]), 0.0);
        assert_eq!(
            (entropy_confidence(&[1.0]), entropy_confidence(&[1.0, 0.0])),
            (1.0, 1.0)
        );
        assert_eq!(entropy_confidence(&[0.5, 0.5]), 0.0);
    }
}
