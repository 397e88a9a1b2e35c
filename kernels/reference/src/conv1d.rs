//! Short convolution of the delta-rule layers.

use crate::silu;

/// Depthwise causal convolution without bias, then SiLU: x `[T, C]`, weight `[C, taps]` -> `[T, C]`.
///
/// The last tap meets the current token; before the first token there are zeros (`Qwen3_5GatedDeltaNet`, `conv1d` with
/// `padding = taps - 1` cut to `T`). The checkpoint's `[C, 1, 4]` weight is the same array.
///
/// # Panics
/// If a slice has not the length of its shape.
pub fn conv1d(x: &[f64], weight: &[f64], channels: usize, taps: usize) -> Vec<f64> {
    assert_eq!(weight.len(), channels * taps, "weight");
    assert!(
        channels > 0 && x.len().is_multiple_of(channels),
        "rows of {channels}"
    );
    let tokens = x.len() / channels;
    let mut y = Vec::with_capacity(x.len());
    for token in 0..tokens {
        for channel in 0..channels {
            let mut sum = 0.0;
            for tap in 0..taps {
                // Tap `taps - 1 - back` meets the token `back` steps ago.
                let back = taps - 1 - tap;
                if back <= token {
                    sum += weight[channel * taps + tap] * x[(token - back) * channels + channel];
                }
            }
            y.push(silu(sum));
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tap_meets_the_current_token() {
        let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let w = [0.25, 0.5, 1.0, 0.0, 0.0, 0.125];
        let y = conv1d(&x, &w, 2, 3);
        let expected = [1.0, 1.25, 0.5 + 2.0, 2.5, 0.25 + 1.0 + 3.0, 3.75].map(silu);
        assert_eq!(y, expected);
    }

    #[test]
    fn channels_do_not_mix_and_the_future_is_not_seen() {
        let w: Vec<f64> = (0..8).map(|i| 0.1 * i as f64 - 0.3).collect();
        let x: Vec<f64> = (0..10).map(|i| (i as f64).sin()).collect();
        let before = conv1d(&x, &w, 2, 4);
        let mut changed = x;
        changed[6] += 1.0;
        let after = conv1d(&changed, &w, 2, 4);
        assert_eq!(before[..6], after[..6]);
        assert_ne!(before[6], after[6]);
        assert_eq!(before[7], after[7]);
    }
}
