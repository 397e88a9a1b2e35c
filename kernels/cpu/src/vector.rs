//! Loops over slices of f32, compiled for the instruction sets that the machine may have and chosen at run time.
//!
//! Sums are split into a fixed number of lanes and no multiplication is fused with an addition, so the numbers are the same on
//! every instruction set.

use pulp::Arch;

const LANES: usize = 32;

/// Compiles `f` for each instruction set, and runs the best one. What `f` calls must be `#[inline(always)]`.
#[inline]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(f)
}

/// `e^x` with a relative error below 2e-7; clamped to the range of normal numbers, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let p = 1.0 / 720.0 + r * (1.0 / 5040.0);
    let p = 1.0 / 120.0 + r * p;
    let p = 1.0 / 24.0 + r * p;
    let p = 1.0 / 6.0 + r * p;
    let p = 0.5 + r * p;
    let p = 1.0 + r + r * r * p;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    p * f32::from_bits(exponent << 23)
}

/// `e^x` of an exponent that is at most 0; zero below -60, where it counts for nothing in f32. Its products would be subnormal, and
/// a matrix product of subnormal numbers takes ten times as long.
#[inline(always)]
pub(crate) fn decay(x: f32) -> f32 {
    if x < -60.0 { 0.0 } else { exp(x) }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x Φ(x)`, the exact gelu, with an absolute error below 4e-7 |x|: the error function is Abramowitz and Stegun 7.1.26.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let a = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let p = -1.453_152_1 + t * 1.061_405_4;
    let p = 1.421_413_8 + t * p;
    let p = -0.284_496_72 + t * p;
    let p = 0.254_829_6 + t * p;
    let erf = 1.0 - t * p * exp(-a * a);
    0.5 * x * (1.0 + erf.copysign(x))
}

/// Sum of products over fixed lanes.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0] + rest
}

/// Sum of squares.
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// The largest number. NaN is passed over: softmax still sees it, since `exp` keeps it.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = lanes[i].max(chunk[i]);
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Sum over fixed lanes.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    lanes.iter().chain(rest).sum()
}

/// `y += factor · x`.
#[inline(always)]
pub(crate) fn add_scaled(y: &mut [f32], x: &[f32], factor: f32) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}

/// `y = factor · x`.
#[inline(always)]
pub(crate) fn scale_into(y: &mut [f32], x: &[f32], factor: f32) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = factor * x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range() {
        let mut worst = 0.0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e4) < 1.3e-38 && exp(f32::NEG_INFINITY) < 1.3e-38);
        assert!(exp(1e4) > 1e38 && exp(1e4).is_finite());
    }

    #[test]
    fn gelu_is_close_to_the_exact_form() {
        for i in -120_000..120_000 {
            let x = i as f32 * 1e-4;
            let exact = deltagate_kernels_reference::gelu(f64::from(x));
            let error = (f64::from(gelu(x)) - exact).abs();
            assert!(error <= 4e-7 * f64::from(x.abs()), "{x}: {error:e}");
        }
    }

    #[test]
    fn nan_is_never_hidden() {
        assert!(gelu(f32::NAN).is_nan());
        assert!(exp(f32::NAN).is_nan() && decay(f32::NAN).is_nan());
        assert!(sigmoid(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
        assert!(
            dispatch(
                #[inline(always)]
                || dot(&[f32::NAN; 70], &[0.0; 70])
            )
            .is_nan()
        );
        assert!(
            dispatch(
                #[inline(always)]
                || sum(&[0.0, f32::NAN])
            )
            .is_nan()
        );
    }

    #[test]
    fn a_decay_to_nothing_is_nothing() {
        assert_eq!(
            (decay(0.0), decay(-60.1), decay(f32::NEG_INFINITY)),
            (1.0, 0.0, 0.0)
        );
        assert_eq!(decay(-3.0), exp(-3.0));
    }

    #[test]
    fn gates_have_their_limits() {
        assert_eq!((sigmoid(0.0), silu(0.0)), (0.5, 0.0));
        assert!((sigmoid(100.0) - 1.0).abs() < 1e-7 && sigmoid(-100.0) < 1e-37);
        assert_eq!(silu(1000.0), 1000.0);
        assert!(silu(-1000.0).abs() < 1e-30);
    }

    #[test]
    fn sums_cover_every_element() {
        for n in [0, 1, 31, 32, 33, 64, 100] {
            let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            let n = n as f32;
            assert_eq!(
                dispatch(
                    #[inline(always)]
                    || sum(&x)
                ),
                n * (n + 1.0) / 2.0
            );
            assert_eq!(
                dispatch(
                    #[inline(always)]
                    || sum_of_squares(&x)
                ),
                n * (n + 1.0) * (2.0 * n + 1.0) / 6.0
            );
            assert_eq!(
                dispatch(
                    #[inline(always)]
                    || largest(&x)
                ),
                if n == 0.0 { f32::NEG_INFINITY } else { n }
            );
        }
    }
}
