//! Log-decay and beta from the projections a and b.

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};
use deltagate_kernels_api::{Beta, Decay, GateWeights, Gates, LogDecay, OpError};

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    space::{device, expect_matrix, expect_shape},
};

/// `ba` [T, 2 Hv] (b | a) -> log-decay and beta.
pub(super) fn log_gates(ba: &Tensor, w: &GateWeights<'_, Cpu>) -> Result<Gates<Tensor>, OpError> {
    let (tokens, _) = expect_matrix("ba", ba)?;
    let heads = w.a_log.elem_count();
    expect_shape("ba", ba, &[tokens, 2 * heads])?;
    expect_shape("a_log", w.a_log, &[heads])?;
    expect_shape("dt_bias", w.dt_bias, &[heads])?;
    let gates = ba
        .apply_op3_no_bwd(w.a_log, w.dt_bias, &LogGates)
        .map_err(device)?;
    let part = |index: usize| gates.narrow(0, index * tokens, tokens).map_err(device);
    Ok(Gates {
        decay: Decay::Log(LogDecay(part(0)?)),
        beta: Beta(part(1)?),
    })
}

/// -> `[2 T, Hv]`: the log-decays of all tokens, then their betas.
struct LogGates;

impl CustomOp3 for LogGates {
    fn name(&self) -> &'static str {
        "delta-rule-gates"
    }

    fn cpu_fwd(
        &self,
        ba: &CpuStorage,
        ba_l: &Layout,
        a_log: &CpuStorage,
        a_log_l: &Layout,
        dt_bias: &CpuStorage,
        dt_bias_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (a_log, dt_bias) = (
            Rows::<f32>::of(a_log, a_log_l)?.row(0),
            Rows::<f32>::of(dt_bias, dt_bias_l)?.row(0),
        );
        by_dtype!(dtype(ba), run(ba, ba_l, a_log, dt_bias))
    }
}

fn run<E: Element>(
    ba: &CpuStorage,
    ba_l: &Layout,
    a_log: &[f32],
    dt_bias: &[f32],
) -> candle_core::Result<(CpuStorage, Shape)> {
    let ba = Rows::<E>::of(ba, ba_l)?;
    let (tokens, heads) = (ba.count(), a_log.len());
    let mut out = output::<f32>(2 * tokens * heads);
    let (decays, betas) = out.split_at_mut(tokens * heads);
    let rates: Vec<f64> = a_log.iter().map(|a| -f64::from(*a).exp()).collect();
    let mut scratch = Vec::new();
    for (token, (decay, beta)) in decays
        .chunks_mut(heads.max(1))
        .zip(betas.chunks_mut(heads.max(1)))
        .enumerate()
    {
        let (b, a) = E::read(ba.row(token), &mut scratch).split_at(heads);
        for h in 0..heads {
            decay[h] = (rates[h] * softplus(f64::from(a[h]) + f64::from(dt_bias[h]))) as f32;
            beta[h] = (1.0 / (1.0 + (-f64::from(b[h])).exp())) as f32;
        }
    }
    Ok((CpuStorage::F32(out), (2 * tokens, heads).into()))
}

/// `ln(1 + e^x)`; `x` itself above 20, as the model was trained with.
fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
