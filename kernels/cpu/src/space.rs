//! The memory space of the CPU.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use deltagate_kernels_api::{OpError, Space};

/// Host memory, with tensors of candle.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

/// Dtype of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuDtype {
    /// IEEE 754 single.
    F32,
    /// bfloat16.
    Bf16,
}

impl CpuDtype {
    pub(crate) const fn candle(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// The name in configuration and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// A `[N, K]` matrix prepared for `x · Wᵀ`.
///
/// f32 is stored `[K, N]`: the GEMM then reads both operands along N and packs by plain copies. bf16 stays `[N, K]` and is widened
/// block by block.
pub struct Matrix {
    pub(crate) stored: Tensor,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

impl Matrix {
    /// N.
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    /// K.
    pub const fn inputs(&self) -> usize {
        self.inputs
    }
}

impl Space for Cpu {
    type Tensor = Tensor;
    type Matrix = Matrix;

    fn row_count(tensor: &Tensor) -> usize {
        tensor.dims().first().copied().unwrap_or(0)
    }

    fn columns(tensor: &Tensor, range: Range<usize>) -> Result<Tensor, OpError> {
        tensor.narrow(1, range.start, range.len()).map_err(device)
    }

    fn rows(tensor: &Tensor, indices: &[u32]) -> Result<Tensor, OpError> {
        let rows = Self::row_count(tensor);
        if let Some(&index) = indices.iter().find(|&&i| i as usize >= rows) {
            return Err(OpError::Index {
                index: u64::from(index),
                limit: rows as u64,
            });
        }
        let indices = Tensor::from_slice(indices, indices.len(), &Device::Cpu).map_err(device)?;
        tensor
            .contiguous()
            .and_then(|t| t.index_select(&indices, 0))
            .map_err(device)
    }
}

/// An error of candle as an error of an op.
pub(crate) fn device(error: candle_core::Error) -> OpError {
    OpError::Device(error.to_string())
}

/// Checks the shape of an argument.
pub(crate) fn expect_shape(
    argument: &'static str,
    tensor: &Tensor,
    expected: &[usize],
) -> Result<(), OpError> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(OpError::Shape {
        argument,
        expected: expected.to_vec(),
        found: tensor.dims().to_vec(),
    })
}

/// Rows and columns of a matrix argument.
pub(crate) fn expect_matrix(argument: &'static str, tensor: &Tensor) -> Result<(usize, usize), OpError> {
    match *tensor.dims() {
        [rows, columns] => Ok((rows, columns)),
        ref other => Err(OpError::Shape {
            argument,
            expected: vec![0, 0],
            found: other.to_vec(),
        }),
    }
}
