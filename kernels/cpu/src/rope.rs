//! Rotary position embedding.

use std::sync::Arc;

use parking_lot::Mutex;

/// Cosines and sines, `[positions, rotary_dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    theta: u64,
}

impl Rotation {
    fn new(positions: usize, rotary_dim: usize, theta: f64) -> Self {
        let half = rotary_dim / 2;
        let (mut cos, mut sin) = (
            Vec::with_capacity(positions * half),
            Vec::with_capacity(positions * half),
        );
        let frequencies: Vec<f64> = (0..half)
            .map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64))
            .collect();
        for position in 0..positions {
            for frequency in &frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        Self {
            cos,
            sin,
            half,
            theta: theta.to_bits(),
        }
    }

    fn positions(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(usize::MAX)
    }

    /// Turns the pairs `(i, i + half)` of one head at `position`.
    #[inline(always)]
    pub(crate) fn turn(&self, head: &mut [f32], position: usize) {
        let range = position * self.half..(position + 1) * self.half;
        let (low, high) = head[..2 * self.half].split_at_mut(self.half);
        for ((a, b), (c, s)) in low
            .iter_mut()
            .zip(high)
            .zip(self.cos[range.clone()].iter().zip(&self.sin[range]))
        {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

/// The rotation of the last call; it grows with the longest sequence.
#[derive(Debug, Default)]
pub(crate) struct RotationCache(Mutex<Option<Arc<Rotation>>>);

impl RotationCache {
    pub(crate) fn get(&self, positions: usize, rotary_dim: usize, theta: f64) -> Arc<Rotation> {
        let mut cached = self.0.lock();
        let fits = |r: &Arc<Rotation>| {
            r.half == rotary_dim / 2 && r.theta == theta.to_bits() && r.positions() >= positions
        };
        match cached.as_ref().filter(|r| fits(r)) {
            Some(rotation) => Arc::clone(rotation),
            None => {
                let grown = positions.next_power_of_two().max(256);
                Arc::clone(cached.insert(Arc::new(Rotation::new(grown, rotary_dim, theta))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_grows_and_notices_other_parameters() {
        let cache = RotationCache::default();
        let first = cache.get(10, 4, 100.0);
        assert!(Arc::ptr_eq(&first, &cache.get(256, 4, 100.0)));
        assert!(cache.get(257, 4, 100.0).positions() >= 257);
        assert_ne!(cache.get(10, 4, 50.0).theta, first.theta);
        assert_eq!(cache.get(10, 8, 50.0).half, 4);
    }

    #[test]
    fn pairs_turn_and_the_rest_stays() {
        let rotation = Rotation::new(2, 4, 100.0);
        let mut head = [1.0, 0.0, 0.0, 2.0, 9.0];
        rotation.turn(&mut head, 0);
        assert_eq!(head, [1.0, 0.0, 0.0, 2.0, 9.0]);
        rotation.turn(&mut head, 1);
        let expected = [
            1f32.cos(),
            -2.0 * 0.1f32.sin(),
            1f32.sin(),
            2.0 * 0.1f32.cos(),
            9.0,
        ];
        assert!(
            head.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
            "{head:?}"
        );
    }
}
