//! Scalar functions.

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, and `x` itself above 20, as `torch.nn.functional.softplus` does with its default threshold.
pub fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The error function, to the last few bits: its power series near zero, the continued fraction of its complement beyond.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        // 2/√π e^-x² Σ (2x²)^n x / (1·3·5···(2n+1)): every term is positive, so none cancels another.
        let mut term = a;
        let mut sum = a;
        let mut n = 1.0;
        while term > sum * 1e-17 {
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else {
        let fraction = (1..60).rev().fold(a, |tail, n| a + f64::from(n) / 2.0 / tail);
        1.0 - std::f64::consts::FRAC_2_SQRT_PI / 2.0 * (-a * a).exp() / fraction
    };
    value.copysign(x)
}

/// `x Φ(x)`, the exact form: `x / 2 (1 + erf(x / √2))`.
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_stay_finite() {
        assert_eq!(sigmoid(-1e4), 0.0);
        assert_eq!(sigmoid(1e4), 1.0);
        assert_eq!(silu(-1e4), 0.0);
        assert_eq!(softplus(1e4), 1e4);
        assert_eq!(softplus(-1e4), 0.0);
    }

    #[test]
    fn softplus_is_the_logarithm_up_to_its_threshold() {
        assert!((softplus(0.0) - std::f64::consts::LN_2).abs() < 1e-15);
        assert!(softplus(20.0) > 20.0);
        assert_eq!(softplus(20.000_001), 20.000_001);
    }

    #[test]
    fn erf_has_the_values_of_the_tables() {
        for (x, y) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (4.0, 0.999_999_984_582_742_1),
        ] {
            assert!((erf(x) - y).abs() < 1e-15 && (erf(-x) + y).abs() < 1e-15, "{x}");
        }
        assert!((erf(3.0 - 1e-12) - erf(3.0)).abs() < 1e-15);
        assert_eq!((erf(40.0), erf(f64::INFINITY)), (1.0, 1.0));
        assert!(erf(f64::NAN).is_nan() && gelu(f64::NAN).is_nan());
    }

    #[test]
    fn gelu_is_the_exact_form() {
        assert!((gelu(1.0) - 0.841_344_746_068_542_9).abs() < 1e-15);
        assert!((gelu(-1.0) + 0.158_655_253_931_457_05).abs() < 1e-15);
        assert_eq!(gelu(0.0), 0.0);
    }
}
