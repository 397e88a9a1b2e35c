//! `projection`: `x · Wᵀ`.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Storage, Tensor, bail};
use deltagate_kernels_api::{OpError, Projection};
use half::bf16;

use crate::{
    Cpu, Matrix,
    buffer::output,
    element::Rows,
    gemm::{Into, View, gemm},
    rows::for_each_row,
    space::{device, expect_shape},
};

/// A GEMM on the rayon pool; bf16 weights are widened block by block and summed in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuProjection;

impl Projection<Cpu> for CpuProjection {
    fn project(&self, x: &Tensor, w: &Matrix) -> Result<Tensor, OpError> {
        multiply(x, w)
    }
}

/// `x` [T, K] by `w` [N, K] -> [T, N].
pub(crate) fn multiply(x: &Tensor, w: &Matrix) -> Result<Tensor, OpError> {
    let rows = x.dims().first().copied().unwrap_or(0);
    expect_shape("x", x, &[rows, w.inputs])?;
    x.apply_op2_no_bwd(&w.stored, &Multiply { outputs: w.outputs })
        .map_err(device)
}

/// `x` [T, K] by `w` [N, K] -> [T, N], both sides of it f32 whatever the dtype of `w`.
pub(crate) fn multiply_wide(x: &[f32], w: &Matrix) -> Result<Vec<f32>, OpError> {
    let (k, n) = (w.inputs, w.outputs);
    let m = x.len().checked_div(k).unwrap_or(0);
    if m * k != x.len() {
        return Err(OpError::Shape {
            argument: "x",
            expected: vec![m, k],
            found: vec![x.len()],
        });
    }
    let threads = rayon::current_num_threads();
    let mut out = output::<f32>(m * n);
    let (storage, layout) = w.stored.storage_and_layout();
    match &*storage {
        Storage::Cpu(stored @ CpuStorage::F32(_)) => {
            let w = Rows::<f32>::of(stored, layout).map_err(device)?;
            let (x, w) = (View::new(x, m, k, k), View::new(w.data(), k, n, w.stride()));
            gemm(&mut out, n, x, w, Into::Overwrite, threads);
        }
        Storage::Cpu(stored @ CpuStorage::BF16(_)) => {
            let w = Rows::<bf16>::of(stored, layout).map_err(device)?;
            by_blocks(x, w, n, threads, |start, count, sums| {
                for (row, sums) in out.chunks_mut(n).zip(sums.chunks(count)) {
                    row[start..start + count].copy_from_slice(sums);
                }
            });
        }
        _ => return Err(OpError::Device("a matrix of another dtype or device".to_owned())),
    }
    Ok(out)
}

struct Multiply {
    outputs: usize,
}

/// Rows of a bf16 weight that are widened at a time.
const BLOCK: usize = 256;

impl CustomOp2 for Multiply {
    fn name(&self) -> &'static str {
        "projection"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        w: &CpuStorage,
        w_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let threads = rayon::current_num_threads();
        match (x, w) {
            (CpuStorage::F32(_), CpuStorage::F32(_)) => {
                let (x, w) = (Rows::<f32>::of(x, x_l)?, Rows::<f32>::of(w, w_l)?);
                let (m, k, n) = (x.count(), x.columns(), self.outputs);
                let mut out = output::<f32>(m * n);
                let (x, w) = (
                    View::new(x.data(), m, k, x.stride()),
                    View::new(w.data(), k, n, w.stride()),
                );
                gemm(&mut out, n, x, w, Into::Overwrite, threads);
                Ok((CpuStorage::F32(out), (m, n).into()))
            }
            (CpuStorage::BF16(_), CpuStorage::BF16(_)) => {
                let (x, w) = (Rows::<bf16>::of(x, x_l)?, Rows::<bf16>::of(w, w_l)?);
                let out = multiply_bf16(x, w, self.outputs, threads);
                Ok((CpuStorage::BF16(out), (x.count(), self.outputs).into()))
            }
            _ => bail!("x and w have different dtypes"),
        }
    }
}

fn multiply_bf16(x: Rows<'_, bf16>, w: Rows<'_, bf16>, outputs: usize, threads: usize) -> Vec<bf16> {
    let (m, k) = (x.count(), x.columns());
    let mut wide_x = Vec::with_capacity(m * k);
    (0..m).for_each(|i| wide_x.extend(x.row(i).iter().map(|v| v.to_f32())));
    let mut out = output::<bf16>(m * outputs);
    by_blocks(&wide_x, w, outputs, threads, |start, n, sums| {
        for (row, sums) in out.chunks_mut(outputs).zip(sums.chunks(n)) {
            row[start..start + n]
                .iter_mut()
                .zip(sums)
                .for_each(|(to, from)| *to = bf16::from_f32(*from));
        }
    });
    out
}

/// Widens `BLOCK` rows of the weight at a time and gives their products with every row of x: first output, how many, `[T, those]`.
fn by_blocks(
    x: &[f32],
    w: Rows<'_, bf16>,
    outputs: usize,
    threads: usize,
    mut store: impl FnMut(usize, usize, &[f32]),
) {
    let k = w.columns();
    let m = x.len().checked_div(k).unwrap_or(0);
    let mut wide_w = vec![0.0f32; BLOCK.min(outputs) * k];
    let mut sums = vec![0.0f32; m * BLOCK.min(outputs)];
    for start in (0..outputs).step_by(BLOCK) {
        let n = BLOCK.min(outputs - start);
        for_each_row(
            &mut wide_w[..n * k],
            k,
            || (),
            |i, row, ()| {
                row.iter_mut()
                    .zip(w.row(start + i))
                    .for_each(|(to, from)| *to = from.to_f32());
            },
        );
        let (x, w) = (View::new(x, m, k, k), View::new(&wide_w, n, k, k).transposed());
        gemm(&mut sums[..m * n], n, x, w, Into::Overwrite, threads);
        store(start, n, &sums[..m * n]);
    }
}
