//! `mlp`: `down(silu(gate(x)) ∘ up(x))`.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use deltagate_kernels_api::{Mlp, OpError};

use crate::{
    Cpu, Matrix,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    projection::multiply,
    rows::for_each_row,
    space::device,
    vector::{dispatch, silu},
};

/// Two GEMMs, gate and up fused in the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuMlp;

impl Mlp<Cpu> for CpuMlp {
    fn mlp(&self, x: &Tensor, gate_up: &Matrix, down: &Matrix) -> Result<Tensor, OpError> {
        if gate_up.outputs != 2 * down.inputs {
            let found = vec![gate_up.outputs, gate_up.inputs];
            return Err(OpError::Shape {
                argument: "gate_up",
                expected: vec![2 * down.inputs, down.outputs],
                found,
            });
        }
        let gated = multiply(x, gate_up)?
            .apply_op1_no_bwd(&SiluTimesUp)
            .map_err(device)?;
        multiply(&gated, down)
    }
}

/// `[T, 2 I]` (gate | up) -> `silu(gate) ∘ up`, `[T, I]`.
struct SiluTimesUp;

impl CustomOp1 for SiluTimesUp {
    fn name(&self) -> &'static str {
        "silu-times-up"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        fn run<E: Element>(x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
            let x = Rows::<E>::of(x, layout)?;
            let inner = x.columns() / 2;
            let mut out = output::<E>(x.count() * inner);
            for_each_row(
                &mut out,
                inner,
                <[Vec<f32>; 3]>::default,
                |i, row, [gate, up, rounded]| {
                    let (gate, up) = (x.read(i, 0, inner, gate), x.read(i, inner, inner, up));
                    E::write(row, rounded, |row| {
                        dispatch(
                            #[inline(always)]
                            || {
                                for ((y, g), u) in row.iter_mut().zip(gate).zip(up) {
                                    *y = silu(*g) * u;
                                }
                            },
                        );
                    });
                },
            );
            Ok((E::to_cpu_storage_owned(out), (x.count(), inner).into()))
        }
        by_dtype!(dtype(x), run(x, layout))
    }
}
