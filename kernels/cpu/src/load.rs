//! Weights from a file into this space, fused on the way: each tensor is converted straight into its place.

use candle_core::{Device, Tensor};
use deltagate_kernels_weights::{Dtype, TensorView, first_not_finite};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::{CpuDtype, Matrix};

/// A tensor does not fit where it is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The tensor has another shape.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape that the model config implies.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A value is NaN or an infinity.
    #[error("tensor `{name}` holds {value} at element {element}")]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// The value, spelled.
        value: String,
        /// Row-major index of the first one.
        element: usize,
    },
    /// The library refused.
    #[error("{0}")]
    Device(String),
}

/// Puts weights into host memory with one dtype.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    dtype: CpuDtype,
}

/// Rows and columns that are transposed at a time: both sides of the copy stay in cache.
const TILE: usize = 64;
/// Elements of a cache line.
const LINE: usize = 16;

impl Loader {
    /// A loader to this dtype.
    pub const fn new(dtype: CpuDtype) -> Self {
        Self { dtype }
    }

    /// Fuses `[N_i, inputs]` matrices, one below the other, into one `[Σ N_i, inputs]`.
    pub fn matrix(&self, parts: &[TensorView<'_>], inputs: usize) -> Result<Matrix, LoadError> {
        let mut outputs = 0;
        for part in parts {
            outputs += expect_rows(part, inputs)?;
            finite(part)?;
        }
        let stored = match self.dtype {
            CpuDtype::F32 => Tensor::from_vec(
                transposed(parts, outputs, inputs),
                (inputs, outputs),
                &Device::Cpu,
            ),
            CpuDtype::Bf16 => Tensor::from_vec(
                joined::<bf16>(parts, outputs * inputs),
                (outputs, inputs),
                &Device::Cpu,
            ),
        };
        Ok(Matrix {
            stored: stored.map_err(device)?,
            outputs,
            inputs,
        })
    }

    /// A table that is read row by row: `[rows, columns]`, in the dtype of the activations.
    pub fn table(&self, view: &TensorView<'_>, rows: usize, columns: usize) -> Result<Tensor, LoadError> {
        expect(view, &[rows, columns])?;
        finite(view)?;
        let parts = std::slice::from_ref(view);
        let shape = (rows, columns);
        match self.dtype {
            CpuDtype::F32 => Tensor::from_vec(joined::<f32>(parts, rows * columns), shape, &Device::Cpu),
            CpuDtype::Bf16 => Tensor::from_vec(joined::<bf16>(parts, rows * columns), shape, &Device::Cpu),
        }
        .map_err(device)
    }

    /// A small weight, always f32: `[n]`.
    pub fn vector(&self, view: &TensorView<'_>, n: usize) -> Result<Tensor, LoadError> {
        expect(view, &[n])?;
        finite(view)?;
        Tensor::from_vec(view.to_f32(), n, &Device::Cpu).map_err(device)
    }

    /// Convolution taps, always f32: `[C, 1, K]` in the file -> `[C, K]`.
    pub fn taps(&self, view: &TensorView<'_>, channels: usize, taps: usize) -> Result<Tensor, LoadError> {
        expect(view, &[channels, 1, taps])?;
        finite(view)?;
        Tensor::from_vec(view.to_f32(), (channels, taps), &Device::Cpu).map_err(device)
    }
}

fn device(error: candle_core::Error) -> LoadError {
    LoadError::Device(error.to_string())
}

fn expect(view: &TensorView<'_>, expected: &[usize]) -> Result<(), LoadError> {
    if view.shape == expected && view.elements() == expected.iter().product::<usize>() {
        return Ok(());
    }
    Err(LoadError::Shape {
        name: view.name.to_owned(),
        expected: expected.to_vec(),
        found: view.shape.to_vec(),
    })
}

fn expect_rows(view: &TensorView<'_>, inputs: usize) -> Result<usize, LoadError> {
    let rows = view.shape.first().copied().unwrap_or(0);
    expect(view, &[rows, inputs])?;
    Ok(rows)
}

/// Elements that a thread looks at for values that are no numbers before it takes the next ones.
const PIECE: usize = 1 << 18;

/// Refuses NaN and infinities. The bytes are converted right after, so that a file is read once and this pass is on warm memory.
fn finite(view: &TensorView<'_>) -> Result<(), LoadError> {
    let size = view.dtype.size();
    let found = if view.bytes.len() <= PIECE * size {
        first_not_finite(view.dtype, view.bytes)
    } else {
        let pieces = view.bytes.par_chunks(PIECE * size).enumerate();
        pieces.find_map_first(|(i, bytes)| {
            let (index, value) = first_not_finite(view.dtype, bytes)?;
            Some((i * PIECE + index, value))
        })
    };
    match found {
        None => Ok(()),
        Some((element, value)) => Err(LoadError::NotFinite {
            name: view.name.to_owned(),
            value: value.to_string(),
            element,
        }),
    }
}

/// An element that file bytes become.
trait Target: Copy + Default + Send + Sync {
    fn from_f32(value: f32) -> Self;

    /// Exact. Plain shifts, because NaN was refused before: the general conversion has a branch for it.
    fn from_bf16(bits: u16) -> Self;
}

impl Target for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }

    fn from_bf16(bits: u16) -> Self {
        Self::from_bits(u32::from(bits) << 16)
    }
}

impl Target for bf16 {
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn from_bf16(bits: u16) -> Self {
        Self::from_bits(bits)
    }
}

/// Elements `range` of a tensor, converted.
fn convert<T: Target>(view: &TensorView<'_>, from: usize, to: &mut [T]) {
    let size = view.dtype.size();
    let bytes = &view.bytes[from * size..(from + to.len()) * size];
    match view.dtype {
        Dtype::F32 => {
            let fours = bytes.as_chunks::<4>().0;
            to.iter_mut()
                .zip(fours)
                .for_each(|(to, b)| *to = T::from_f32(f32::from_le_bytes(*b)));
        }
        Dtype::Bf16 => {
            let twos = bytes.as_chunks::<2>().0;
            to.iter_mut()
                .zip(twos)
                .for_each(|(to, b)| *to = T::from_bf16(u16::from_le_bytes(*b)));
        }
        Dtype::F16 => {
            let twos = bytes.as_chunks::<2>().0;
            to.iter_mut()
                .zip(twos)
                .for_each(|(to, b)| *to = T::from_f32(f16::from_le_bytes(*b).to_f32()));
        }
    }
}

/// The parts one after another.
fn joined<T: Target>(parts: &[TensorView<'_>], count: usize) -> Vec<T> {
    let mut out = vec![T::default(); count];
    let mut rest = out.as_mut_slice();
    for part in parts {
        let (here, after) = rest.split_at_mut(part.elements());
        here.par_chunks_mut(1 << 16)
            .enumerate()
            .for_each(|(i, to)| convert(part, i << 16, to));
        rest = after;
    }
    out
}

/// The parts below each other, transposed: `[inputs, outputs]`.
fn transposed(parts: &[TensorView<'_>], outputs: usize, inputs: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; inputs * outputs];
    // Each task owns TILE whole rows of the result, which are TILE columns of every part. It reads LINE rows of a part at a time, so
    // that it writes whole cache lines: the rows of the result lie a power of two apart and would evict each other otherwise.
    out.par_chunks_mut((TILE * outputs).max(1))
        .enumerate()
        .for_each(|(tile, to)| {
            let first = tile * TILE;
            let count = TILE.min(inputs - first);
            let mut block = [[0.0f32; TILE]; LINE];
            let mut at = 0;
            for part in parts {
                let rows = part.shape[0];
                for start in (0..rows).step_by(LINE) {
                    let lines = LINE.min(rows - start);
                    for (i, row) in block[..lines].iter_mut().enumerate() {
                        convert(part, (start + i) * inputs + first, &mut row[..count]);
                    }
                    for (k, to) in to.chunks_exact_mut(outputs).enumerate() {
                        for (to, row) in to[at + start..][..lines].iter_mut().zip(&block) {
                            *to = row[k];
                        }
                    }
                }
                at += rows;
            }
        });
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn parts_are_fused_below_each_other() {
        let (a, b) = (bytes(&[1.0, 2.0, 3.0]), bytes(&[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]));
        let parts = [
            TensorView {
                name: "a",
                dtype: Dtype::F32,
                shape: &[1, 3],
                bytes: &a,
            },
            TensorView {
                name: "b",
                dtype: Dtype::F32,
                shape: &[2, 3],
                bytes: &b,
            },
        ];
        let f32s = Loader::new(CpuDtype::F32).matrix(&parts, 3).unwrap();
        assert_eq!((f32s.outputs(), f32s.inputs()), (3, 3));
        assert_eq!(
            f32s.stored.to_vec2::<f32>().unwrap(),
            [[1.0, 4.0, 7.0], [2.0, 5.0, 8.0], [3.0, 6.0, 9.0]]
        );
        let bf16s = Loader::new(CpuDtype::Bf16).matrix(&parts, 3).unwrap();
        let rows = bf16s
            .stored
            .to_dtype(candle_core::DType::F32)
            .unwrap()
            .to_vec2::<f32>()
            .unwrap();
        assert_eq!(rows, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]);
    }

    #[test]
    fn wide_matrices_are_transposed_tile_by_tile() {
        let (n, k) = (70, 131);
        let values: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        let data = bytes(&values);
        let part = TensorView {
            name: "w",
            dtype: Dtype::F32,
            shape: &[n, k],
            bytes: &data,
        };
        let stored = Loader::new(CpuDtype::F32)
            .matrix(&[part], k)
            .unwrap()
            .stored
            .to_vec2::<f32>()
            .unwrap();
        for (i, row) in stored.iter().enumerate() {
            assert!(row.iter().enumerate().all(|(j, v)| *v == values[j * k + i]));
        }
    }

    #[test]
    fn a_weight_that_is_no_number_names_the_tensor() {
        // Large enough that several threads look for it.
        let (n, k) = (600, 1000);
        for (at, value) in [
            (0, f32::NAN),
            (599_999, f32::INFINITY),
            (262_144, f32::NEG_INFINITY),
        ] {
            let mut values = vec![0.5f32; n * k];
            values[at] = value;
            let data = bytes(&values);
            let view = TensorView {
                name: "w",
                dtype: Dtype::F32,
                shape: &[n, k],
                bytes: &data,
            };
            let expected = format!("tensor `w` holds {value} at element {at}");
            for dtype in [CpuDtype::F32, CpuDtype::Bf16] {
                let loader = Loader::new(dtype);
                assert_eq!(loader.matrix(&[view], k).err().unwrap().to_string(), expected);
                assert_eq!(loader.table(&view, n, k).unwrap_err().to_string(), expected);
            }
            let flat = TensorView {
                shape: &[n * k],
                ..view
            };
            assert_eq!(
                Loader::new(CpuDtype::F32)
                    .vector(&flat, n * k)
                    .unwrap_err()
                    .to_string(),
                expected
            );
            let taps = TensorView {
                shape: &[n, 1, k],
                ..view
            };
            assert_eq!(
                Loader::new(CpuDtype::F32)
                    .taps(&taps, n, k)
                    .unwrap_err()
                    .to_string(),
                expected
            );
        }
    }

    #[test]
    fn a_wrong_shape_names_the_tensor() {
        let data = bytes(&[0.0; 6]);
        let view = TensorView {
            name: "norm.weight",
            dtype: Dtype::F32,
            shape: &[6],
            bytes: &data,
        };
        let loader = Loader::new(CpuDtype::F32);
        assert!(loader.vector(&view, 6).is_ok());
        let error = loader.vector(&view, 7).unwrap_err().to_string();
        assert_eq!(error, "tensor `norm.weight` has shape [6], expected [7]");
        assert!(loader.matrix(&[view], 6).is_err() && loader.table(&view, 2, 3).is_err());
    }
}
