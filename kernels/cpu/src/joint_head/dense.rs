//! Layers that treat each row by itself, over rows of f32.

use candle_core::Tensor;
use deltagate_kernels_api::{Affine, FeedForward, LayerNorm, OpError};

use crate::{
    Cpu,
    buffer::output,
    projection::multiply_wide,
    rows::for_each_row,
    space::{device, expect_shape},
    vector::{dispatch, gelu, sum, sum_of_squares},
};

const EPSILON: f32 = 1e-5;

/// A small weight of `n` elements.
pub(super) fn vector(tensor: &Tensor, n: usize) -> Result<Vec<f32>, OpError> {
    expect_shape("a vector of the head", tensor, &[n])?;
    tensor.to_vec1().map_err(device)
}

/// `to += from`, both of the same length.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    debug_assert_eq!(to.len(), from.len());
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// `x · Wᵀ + b`.
pub(super) fn affine(x: &[f32], w: &Affine<Cpu>) -> Result<Vec<f32>, OpError> {
    let bias = vector(&w.bias, w.weight.outputs())?;
    let mut y = multiply_wide(x, &w.weight)?;
    y.chunks_exact_mut(bias.len().max(1))
        .for_each(|row| add(row, &bias));
    Ok(y)
}

/// `outer(gelu(inner(x)))`.
pub(super) fn feedforward(x: &[f32], w: &FeedForward<Cpu>) -> Result<Vec<f32>, OpError> {
    let mut inside = affine(x, &w.inner)?;
    for_each_row(
        &mut inside,
        w.inner.weight.outputs(),
        || (),
        |_, row, ()| {
            dispatch(
                #[inline(always)]
                || row.iter_mut().for_each(|v| *v = gelu(*v)),
            );
        },
    );
    affine(&inside, &w.outer)
}

/// Layer norm of each row.
pub(super) fn layer_norm(x: &[f32], w: &LayerNorm<Cpu>) -> Result<Vec<f32>, OpError> {
    let columns = w.weight.dims().first().copied().unwrap_or(0);
    let (weight, bias) = (vector(&w.weight, columns)?, vector(&w.bias, columns)?);
    if columns == 0 || !x.len().is_multiple_of(columns) {
        return Err(OpError::Shape {
            argument: "rows of a norm",
            expected: vec![columns],
            found: vec![x.len()],
        });
    }
    let mut out = output::<f32>(x.len());
    for_each_row(
        &mut out,
        columns,
        || (),
        |i, row, ()| {
            let x = &x[i * columns..(i + 1) * columns];
            dispatch(
                #[inline(always)]
                || {
                    let mean = sum(x) / columns as f32;
                    row.iter_mut().zip(x).for_each(|(y, x)| *y = x - mean);
                    let scale = 1.0 / (sum_of_squares(row) / columns as f32 + EPSILON).sqrt();
                    for ((y, w), b) in row.iter_mut().zip(&weight).zip(&bias) {
                        *y = *y * scale * w + b;
                    }
                },
            );
        },
    );
    Ok(out)
}
