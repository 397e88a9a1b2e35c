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
