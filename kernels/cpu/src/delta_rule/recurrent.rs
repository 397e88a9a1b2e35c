//! Token by token: the definition of the rule, with the state of one head in cache.

use candle_core::Tensor;
use deltagate_kernels_api::{DeltaRule, DeltaRuleShape, GateWeights, Gates, OpError};

use super::{Input, Method, apply, gates::log_gates};
use crate::{
    Cpu,
    element::Element,
    vector::{add_scaled, decay, dispatch},
};

/// `cpu.recurrent`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recurrent;

impl DeltaRule<Cpu> for Recurrent {
    fn gates(&self, ba: &Tensor, w: &GateWeights<'_, Cpu>) -> Result<Gates<Tensor>, OpError> {
        log_gates(ba, w)
    }

    fn delta_rule(
        &self,
        qkv: &Tensor,
        gates: &Gates<Tensor>,
        shape: &DeltaRuleShape,
    ) -> Result<Tensor, OpError> {
        apply::<Self>(qkv, gates, shape)
    }
}

impl Method for Recurrent {
    const NAME: &'static str = "delta-rule-recurrent";

    fn group<E: Element>(input: &Input<'_, E>, key_head: usize, out: Vec<Vec<&mut [E]>>) {
        let DeltaRuleShape {
            key_dim, value_dim, ..
        } = input.shape;
        let (mut q, mut k) = (vec![0.0f32; key_dim], vec![0.0f32; key_dim]);
        let (mut scratch, mut rounded) = (Vec::new(), Vec::new());
        for (member, rows) in out.into_iter().enumerate() {
            let head = key_head * input.group() + member;
            let mut state = vec![0.0f32; key_dim * value_dim];
            let mut answer = vec![0.0f32; value_dim];
            for (token, row) in rows.into_iter().enumerate() {
                input.query(token, key_head, &mut q, &mut scratch);
                input.key(token, key_head, &mut k, &mut scratch);
                let decay = decay(input.decay.row(token)[head]);
                let beta = input.beta.row(token)[head];
                let v = input.value(token, head, &mut scratch);
                E::write(row, &mut rounded, |o| {
                    dispatch(
                        #[inline(always)]
                        || step(&mut state, &mut answer, &q, &k, v, decay, beta, o),
                    );
                });
            }
        }
    }
}

/// `S ← e^g S; u = β (v − Sᵀk); S ← S + k uᵀ; o = Sᵀq`, in two passes over the state.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn step(
    state: &mut [f32],
    u: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: f32,
    o: &mut [f32],
) {
    let width = v.len();
    u.fill(0.0);
    for (row, k) in state.chunks_exact_mut(width).zip(k) {
        for (s, u) in row.iter_mut().zip(u.iter_mut()) {
            *s *= decay;
            *u += k * *s;
        }
    }
    u.iter_mut().zip(v).for_each(|(u, v)| *u = beta * (v - *u));
    o.fill(0.0);
    for ((row, k), q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        add_scaled(row, u, *k);
        add_scaled(o, row, *q);
    }
}
