//! Random inputs that the op and the oracle see alike.

use candle_core::{DType, Device, Tensor};
use deltagate_kernels_api::{Agreement, Random, Refusal, compare};
use deltagate_kernels_weights::{Dtype, TensorView};
use half::bf16;

use crate::{CpuDtype, Loader, Matrix};

/// A tensor in the served dtype, and its exact values.
pub(super) struct Sample {
    pub(super) tensor: Tensor,
    pub(super) exact: Vec<f64>,
}

impl Sample {
    /// `[rows, columns]` activations.
    pub(super) fn new(
        values: Vec<f32>,
        rows: usize,
        columns: usize,
        dtype: CpuDtype,
    ) -> Result<Self, Refusal> {
        let values = rounded(values, dtype);
        let exact = widened(&values);
        let tensor =
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).and_then(|t| t.to_dtype(dtype.candle()));
        Ok(Self {
            tensor: tensor.map_err(Refusal::new)?,
            exact,
        })
    }

    pub(super) fn random(
        random: &mut Random,
        rows: usize,
        columns: usize,
        range: f64,
        dtype: CpuDtype,
    ) -> Result<Self, Refusal> {
        Self::new(random.values(rows * columns, -range, range), rows, columns, dtype)
    }

    /// A small f32 weight.
    pub(super) fn vector(values: Vec<f32>) -> Result<Self, Refusal> {
        let exact = widened(&values);
        let count = values.len();
        Ok(Self {
            tensor: Tensor::from_vec(values, count, &Device::Cpu).map_err(Refusal::new)?,
            exact,
        })
    }
}

/// A `[outputs, inputs]` weight whose products keep the size of their inputs, and its exact values.
pub(super) struct Weight {
    pub(super) matrix: Matrix,
    pub(super) exact: Vec<f64>,
}

impl Weight {
    pub(super) fn random(
        random: &mut Random,
        outputs: usize,
        inputs: usize,
        dtype: CpuDtype,
    ) -> Result<Self, Refusal> {
        let range = (3.0 / inputs as f64).sqrt();
        let values = rounded(random.values(outputs * inputs, -range, range), dtype);
        let exact = widened(&values);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = [outputs, inputs];
        let view = TensorView {
            name: "probe",
            dtype: Dtype::F32,
            shape: &shape,
            bytes: &bytes,
        };
        Ok(Self {
            matrix: Loader::new(dtype).matrix(&[view], inputs).map_err(Refusal::new)?,
            exact,
        })
    }
}

pub(super) fn rounded(values: Vec<f32>, dtype: CpuDtype) -> Vec<f32> {
    match dtype {
        CpuDtype::F32 => values,
        CpuDtype::Bf16 => values.into_iter().map(|v| bf16::from_f32(v).to_f32()).collect(),
    }
}

pub(super) fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// All elements of an output, as f32.
pub(super) fn elements(tensor: &Tensor) -> Result<Vec<f32>, Refusal> {
    tensor
        .to_dtype(DType::F32)
        .and_then(|t| t.flatten_all())
        .and_then(|t| t.to_vec1())
        .map_err(Refusal::new)
}

/// Rows at which the oracle is asked: all of a few, otherwise the ends, the middle and some random ones.
pub(super) fn sampled_rows(random: &mut Random, rows: usize) -> Vec<usize> {
    if rows <= 8 {
        return (0..rows).collect();
    }
    let mut sampled = vec![0, 1, rows / 2, rows - 2, rows - 1];
    sampled.extend((0..3).map(|_| random.below(rows)));
    sampled
}

/// The chosen rows of `[_, columns]`.
pub(super) fn gather<T: Copy>(values: &[T], columns: usize, rows: &[usize]) -> Vec<T> {
    rows.iter()
        .flat_map(|row| &values[row * columns..(row + 1) * columns])
        .copied()
        .collect()
}

/// Compares the chosen rows, after every element of every row was found finite.
pub(super) fn compare_rows(
    actual: &[f32],
    columns: usize,
    rows: &[usize],
    expected: &[f64],
) -> Result<Agreement, Refusal> {
    if let Some(at) = actual.iter().position(|v| !v.is_finite()) {
        return Err(Refusal(format!("element {at} of {} is not finite", actual.len())));
    }
    if rows.iter().any(|row| (row + 1) * columns > actual.len()) {
        return Err(Refusal(format!("{} elements are too few", actual.len())));
    }
    compare(&gather(actual, columns, rows), expected)
}
