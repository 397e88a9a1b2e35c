//! `gated_norm`: RMS norm per head with a plain weight, then the SiLU gate.

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};
use deltagate_kernels_api::{GatedNorm, OpError};

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    rows::for_each_row,
    space::{device, expect_matrix, expect_shape},
    vector::{dispatch, silu, sum_of_squares},
};

/// One pass over the rows, in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuGatedNorm;

impl GatedNorm<Cpu> for CpuGatedNorm {
    fn gated_norm(&self, o: &Tensor, z: &Tensor, w: &Tensor, epsilon: f64) -> Result<Tensor, OpError> {
        let (rows, columns) = expect_matrix("o", o)?;
        expect_shape("z", z, &[rows, columns])?;
        let head = w.elem_count();
        expect_shape("w", w, &[head])?;
        if head == 0 || columns % head != 0 {
            return Err(OpError::Shape {
                argument: "w",
                expected: vec![columns],
                found: vec![head],
            });
        }
        o.apply_op3_no_bwd(
            z,
            w,
            &NormThenGate {
                epsilon: epsilon as f32,
            },
        )
        .map_err(device)
    }
}

struct NormThenGate {
    epsilon: f32,
}

impl CustomOp3 for NormThenGate {
    fn name(&self) -> &'static str {
        "norm-then-gate"
    }

    fn cpu_fwd(
        &self,
        o: &CpuStorage,
        o_l: &Layout,
        z: &CpuStorage,
        z_l: &Layout,
        w: &CpuStorage,
        w_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let w = Rows::<f32>::of(w, w_l)?.row(0);
        by_dtype!(dtype(o), run((o, o_l), (z, z_l), w, self.epsilon))
    }
}

fn run<E: Element>(
    o: (&CpuStorage, &Layout),
    z: (&CpuStorage, &Layout),
    w: &[f32],
    epsilon: f32,
) -> candle_core::Result<(CpuStorage, Shape)> {
    let (o, z) = (Rows::<E>::of(o.0, o.1)?, Rows::<E>::of(z.0, z.1)?);
    let mut out = output::<E>(o.count() * o.columns());
    for_each_row(
        &mut out,
        o.columns(),
        <[Vec<f32>; 3]>::default,
        |i, row, [wide_o, wide_z, rounded]| {
            let (o, z) = (E::read(o.row(i), wide_o), E::read(z.row(i), wide_z));
            E::write(row, rounded, |row| {
                dispatch(
                    #[inline(always)]
                    || {
                        let heads = row
                            .chunks_exact_mut(w.len())
                            .zip(o.chunks_exact(w.len()).zip(z.chunks_exact(w.len())));
                        for (row, (o, z)) in heads {
                            let scale = 1.0 / (sum_of_squares(o) / o.len() as f32 + epsilon).sqrt();
                            for (((y, o), z), w) in row.iter_mut().zip(o).zip(z).zip(w) {
                                *y = w * (o * scale) * silu(*z);
                            }
                        }
                    },
                );
            });
        },
    );
    Ok((E::to_cpu_storage_owned(out), (o.count(), o.columns()).into()))
}
