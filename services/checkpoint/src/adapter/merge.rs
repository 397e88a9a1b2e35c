//! The arithmetic of merging.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use deltagate_kernels_weights::{Dtype, TensorView};
use half::bf16;

/// `W + scale · B A`, in the dtype of `W`; an error is the row-major index of an element that is not finite.
///
/// Element by element: the products `B[o, k] A[k, i]` are summed in f32 for k = 0, 1, …; the sum is multiplied by `scale` and added to
/// `W[o, i]` in f32, and the result is rounded to nearest, ties to even.
pub(super) fn merged(
    base: &TensorView<'_>,
    a: &TensorView<'_>,
    b: &TensorView<'_>,
    scale: f32,
) -> Result<Vec<u8>, usize> {
    let (a, b) = (a.to_f32(), b.to_f32());
    let outputs = base.shape.first().copied().unwrap_or(0);
    let inputs = base.elements() / outputs.max(1);
    let rank = b.len() / outputs.max(1);
    let row_bytes = inputs * base.dtype.size();
    let mut out = vec![0u8; base.bytes.len()];
    if out.is_empty() || rank == 0 {
        out.copy_from_slice(base.bytes);
        return Ok(out);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let rows = outputs.div_ceil(threads);
    let bad = AtomicUsize::new(usize::MAX);
    thread::scope(|scope| {
        let parts = out
            .chunks_mut(rows * row_bytes)
            .zip(base.bytes.chunks(rows * row_bytes))
            .zip(b.chunks(rows * rank));
        for (part, ((out, base_bytes), b)) in parts.enumerate() {
            let (a, bad) = (&a, &bad);
            scope.spawn(move || {
                let mut sum = vec![0f32; inputs];
                let lines = out
                    .chunks_mut(row_bytes)
                    .zip(base_bytes.chunks(row_bytes))
                    .zip(b.chunks(rank));
                for (row, ((out, base_bytes), b)) in lines.enumerate() {
                    product(&mut sum, a, b);
                    if let Some(column) = add(out, base_bytes, base.dtype, &sum, scale) {
                        bad.fetch_min((part * rows + row) * inputs + column, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match bad.into_inner() {
        usize::MAX => Ok(out),
        element => Err(element),
    }
}

/// One row of `B A`.
fn product(sum: &mut [f32], a: &[f32], b: &[f32]) {
    sum.fill(0.0);
    for (factor, row) in b.iter().zip(a.chunks(sum.len())) {
        for (sum, a) in sum.iter_mut().zip(row) {
            *sum += factor * a;
        }
    }
}

/// Writes a row; gives the first column that is not finite.
fn add(out: &mut [u8], base: &[u8], dtype: Dtype, sum: &[f32], scale: f32) -> Option<usize> {
    let mut bad = None;
    let mut check = |column: usize, finite: bool| {
        if !finite {
            bad = bad.or(Some(column));
        }
    };
    if dtype == Dtype::F32 {
        let (out, base) = (out.as_chunks_mut::<4>().0, base.as_chunks::<4>().0);
        for (column, ((out, base), sum)) in out.iter_mut().zip(base).zip(sum).enumerate() {
            let value = f32::from_le_bytes(*base) + scale * sum;
            check(column, value.is_finite());
            *out = value.to_le_bytes();
        }
        return bad;
    }
    // Opening refuses every other dtype of a base.
    let (out, base) = (out.as_chunks_mut::<2>().0, base.as_chunks::<2>().0);
    for (column, ((out, base), sum)) in out.iter_mut().zip(base).zip(sum).enumerate() {
        let value = bf16::from_f32(bf16::from_le_bytes(*base).to_f32() + scale * sum);
        check(column, value.is_finite());
        *out = value.to_le_bytes();
    }
    bad
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OUT: usize = 37;
    const IN: usize = 29;
    const RANK: usize = 5;

    fn value(seed: usize, i: usize) -> f32 {
        (1.3 * seed as f64 + 0.71 * i as f64).sin() as f32
    }

    fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        let element = |value: &f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            _ => bf16::from_f32(*value).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(element).collect()
    }

    fn view<'a>(dtype: Dtype, shape: &'a [usize], bytes: &'a [u8]) -> TensorView<'a> {
        TensorView {
            name: "w",
            dtype,
            shape,
            bytes,
        }
    }

    /// Merges random matrices; gives them as f64 sums, and as they came out.
    fn both(dtype: Dtype, scale: f32) -> (Vec<f64>, Vec<f32>) {
        let matrix = |seed, count| -> Vec<f32> { (0..count).map(|i| value(seed, i)).collect() };
        let base = bytes(dtype, &matrix(1, OUT * IN));
        let (a, b) = (matrix(2, RANK * IN), matrix(3, OUT * RANK));
        let base = view(dtype, &[OUT, IN], &base);
        let [a_bytes, b_bytes] = [&a, &b].map(|values| bytes(Dtype::F32, values));
        let (a_view, b_view) = (
            view(Dtype::F32, &[RANK, IN], &a_bytes),
            view(Dtype::F32, &[OUT, RANK], &b_bytes),
        );
        let out = merged(&base, &a_view, &b_view, scale).unwrap();
        let sum = |(at, w): (usize, f32)| {
            let (o, i) = (at / IN, at % IN);
            let product = |k: usize| f64::from(b[o * RANK + k]) * f64::from(a[k * IN + i]);
            f64::from(w) + f64::from(scale) * (0..RANK).map(product).sum::<f64>()
        };
        let sums = base.to_f32().into_iter().enumerate().map(sum).collect();
        (sums, view(dtype, &[OUT, IN], &out).to_f32())
    }

    #[test]
    fn every_element_is_the_sum_to_the_rounding_of_its_dtype() {
        for (dtype, relative) in [(Dtype::F32, 1e-6), (Dtype::Bf16, 1.0 / 256.0)] {
            let (want, got) = both(dtype, 2.0);
            assert_eq!(want.len(), got.len());
            for (want, got) in want.iter().zip(&got) {
                let error = (want - f64::from(*got)).abs();
                assert!(
                    error <= relative * want.abs() + 2e-6,
                    "{dtype}: {got} is not {want}"
                );
            }
        }
    }

    #[test]
    fn the_first_element_that_is_not_finite_is_told() {
        let base = bytes(Dtype::F32, &[f32::MAX; OUT * IN]);
        let mut b = [0.0; OUT];
        (b[20], b[30]) = (1.0, 1.0);
        let mut a = [0.0; IN];
        (a[7], a[9]) = (f32::MAX, f32::MAX);
        let (a, b) = (bytes(Dtype::F32, &a), bytes(Dtype::F32, &b));
        let got = merged(
            &view(Dtype::F32, &[OUT, IN], &base),
            &view(Dtype::F32, &[1, IN], &a),
            &view(Dtype::F32, &[OUT, 1], &b),
            1.0,
        );
        assert_eq!(got, Err(20 * IN + 7));
    }
}
