//! `norm`: residual add and RMS norm.

use candle_core::{CpuStorage, CustomOp2, InplaceOp2, Layout, Shape, Tensor, bail};
use deltagate_kernels_api::{Norm, OpError};

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    rows::for_each_row,
    space::{device, expect_matrix, expect_shape},
    vector::{dispatch, sum_of_squares},
};

/// Adds in place, then normalises row by row in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuNorm;

impl Norm<Cpu> for CpuNorm {
    fn add_norm(
        &self,
        x: &mut Tensor,
        delta: Option<&Tensor>,
        w: &Tensor,
        epsilon: f64,
    ) -> Result<Tensor, OpError> {
        let (rows, columns) = expect_matrix("x", x)?;
        expect_shape("w", w, &[columns])?;
        if let Some(delta) = delta {
            expect_shape("delta", delta, &[rows, columns])?;
            x.inplace_op2(delta, &AddInPlace).map_err(device)?;
        }
        x.apply_op2_no_bwd(
            w,
            &RmsNorm {
                epsilon: epsilon as f32,
            },
        )
        .map_err(device)
    }
}

struct AddInPlace;

impl InplaceOp2 for AddInPlace {
    fn name(&self) -> &'static str {
        "add-in-place"
    }

    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        to_l: &Layout,
        from: &CpuStorage,
        from_l: &Layout,
    ) -> candle_core::Result<()> {
        fn add<E: Element>(to: &mut [E], from: Rows<'_, E>) -> candle_core::Result<()> {
            for_each_row(
                to,
                from.columns(),
                <(Vec<f32>, Vec<f32>)>::default,
                |i, row, (sum, delta)| {
                    let delta = E::read(from.row(i), delta);
                    E::write(row, sum, |row| {
                        dispatch(
                            #[inline(always)]
                            || row.iter_mut().zip(delta).for_each(|(x, d)| *x += d),
                        )
                    });
                },
            );
            Ok(())
        }
        let Some((start, end)) = to_l.contiguous_offsets() else {
            bail!("the residual is not contiguous")
        };
        match to {
            CpuStorage::F32(to) => add(&mut to[start..end], Rows::<f32>::of(from, from_l)?),
            CpuStorage::BF16(to) => add(&mut to[start..end], Rows::<half::bf16>::of(from, from_l)?),
            other => bail!("dtype {:?} is not served", dtype(other)),
        }
    }
}

struct RmsNorm {
    epsilon: f32,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        w: &CpuStorage,
        w_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        fn norm<E: Element>(
            x: &CpuStorage,
            x_l: &Layout,
            w: &[f32],
            epsilon: f32,
        ) -> candle_core::Result<(CpuStorage, Shape)> {
            let x = Rows::<E>::of(x, x_l)?;
            let mut out = output::<E>(x.count() * x.columns());
            for_each_row(
                &mut out,
                x.columns(),
                <(Vec<f32>, Vec<f32>)>::default,
                |i, row, (wide, rounded)| {
                    let x = E::read(x.row(i), wide);
                    E::write(row, rounded, |row| {
                        dispatch(
                            #[inline(always)]
                            || {
                                let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + epsilon).sqrt();
                                for ((y, x), w) in row.iter_mut().zip(x).zip(w) {
                                    *y = x * scale * (1.0 + w);
                                }
                            },
                        );
                    });
                },
            );
            Ok((E::to_cpu_storage_owned(out), (x.count(), x.columns()).into()))
        }
        let w = Rows::<f32>::of(w, w_l)?.row(0);
        by_dtype!(dtype(x), norm(x, x_l, w, self.epsilon))
    }
}
