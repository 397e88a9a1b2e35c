//! `conv1d`: depthwise causal convolution with SiLU.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use deltagate_kernels_api::{Conv1d, OpError};

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    rows::for_each_row,
    space::{device, expect_matrix},
    vector::{dispatch, silu},
};

/// One pass over the rows; each row reads itself and the rows before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuConv1d;

impl Conv1d<Cpu> for CpuConv1d {
    fn conv1d(&self, x: &Tensor, taps: &Tensor) -> Result<Tensor, OpError> {
        let (_, channels) = expect_matrix("x", x)?;
        let (rows, count) = expect_matrix("taps", taps)?;
        if rows != channels || count == 0 {
            return Err(OpError::Shape {
                argument: "taps",
                expected: vec![channels, 4],
                found: vec![rows, count],
            });
        }
        x.apply_op2_no_bwd(taps, &CausalConv1d).map_err(device)
    }
}

struct CausalConv1d;

impl CustomOp2 for CausalConv1d {
    fn name(&self) -> &'static str {
        "causal-conv1d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        w: &CpuStorage,
        w_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let w = Rows::<f32>::of(w, w_l)?;
        by_dtype!(dtype(x), run(x, x_l, w))
    }
}

fn run<E: Element>(
    x: &CpuStorage,
    x_l: &Layout,
    w: Rows<'_, f32>,
) -> candle_core::Result<(CpuStorage, Shape)> {
    let x = Rows::<E>::of(x, x_l)?;
    let (channels, taps) = (x.columns(), w.columns());
    // By tap, so that the inner loop runs over adjacent channels.
    let by_tap: Vec<f32> = (0..taps * channels)
        .map(|at| w.row(at % channels)[at / channels])
        .collect();
    let mut out = output::<E>(x.count() * channels);
    for_each_row(
        &mut out,
        channels,
        <[Vec<f32>; 2]>::default,
        |token, row, [wide, rounded]| {
            E::write(row, rounded, |row| {
                let mut first = true;
                for back in (0..taps.min(token + 1)).rev() {
                    let x = E::read(x.row(token - back), wide);
                    let w = &by_tap[(taps - 1 - back) * channels..(taps - back) * channels];
                    dispatch(
                        #[inline(always)]
                        || {
                            let terms = row.iter_mut().zip(x.iter().zip(w));
                            if first {
                                terms.for_each(|(y, (x, w))| *y = x * w);
                            } else {
                                terms.for_each(|(y, (x, w))| *y += x * w);
                            }
                        },
                    );
                    first = false;
                }
                dispatch(
                    #[inline(always)]
                    || row.iter_mut().for_each(|y| *y = silu(*y)),
                );
            });
        },
    );
    Ok((E::to_cpu_storage_owned(out), (x.count(), channels).into()))
}
