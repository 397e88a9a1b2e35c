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
}
