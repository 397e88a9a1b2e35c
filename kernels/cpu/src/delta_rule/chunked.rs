//! Chunks of 64 tokens: inside a chunk everything is a matrix product, between chunks only the state is carried.
//!
//! With the cumulated log-decay `G_i` of a chunk, `Γ_ij = e^(G_i − G_j)` for `i >= j`, and S before the chunk:
//! ```text
//! (I + L) X = β ∘ (V − e^G ∘ (K S))        L = strictly lower part of β ∘ (K Kᵀ) ∘ Γ
//! O = e^G ∘ (Q S) + P X                    P = lower part of (Q Kᵀ) ∘ Γ, diagonal included
//! S ← e^(G_last) S + (e^(G_last − G) ∘ K)ᵀ X
//! ```
//! which is the usual WY form with `u − w S` solved at once. Only differences of G are exponentiated, and they are taken in f64: a
//! strong decay early in a chunk would otherwise cost the later, weak ones their digits.

use candle_core::Tensor;
use deltagate_kernels_api::{DeltaRule, DeltaRuleShape, GateWeights, Gates, OpError};

use super::{Input, Method, apply, gates::log_gates};
use crate::{
    Cpu,
    element::Element,
    gemm::{Into, View, gemm},
    vector::{add_scaled, decay, dispatch, scale_into},
};

/// `cpu.chunked`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunked;

const CHUNK: usize = 64;
/// Rows of the triangular solve that are solved one by one; the rest is a product.
const SOLVE_BLOCK: usize = 16;

impl DeltaRule<Cpu> for Chunked {
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

impl Method for Chunked {
    const NAME: &'static str = "delta-rule-chunked";

    fn group<E: Element>(input: &Input<'_, E>, key_head: usize, out: Vec<Vec<&mut [E]>>) {
        let DeltaRuleShape {
            key_dim: dk,
            value_dim: dv,
            ..
        } = input.shape;
        let tokens = input.tokens();
        let longest = CHUNK.min(tokens);
        let mut heads: Vec<_> = out
            .into_iter()
            .map(|rows| (rows.into_iter(), vec![0.0f32; dk * dv]))
            .collect();
        let mut work = Workspace {
            qk: vec![0.0; 2 * longest * dk],
            products: vec![0.0; 2 * longest * longest],
            solve: vec![0.0; longest * longest],
            mix: vec![0.0; longest * longest],
            of_state: vec![0.0; 2 * longest * dv],
            x: vec![0.0; longest * dv],
            cumulated: vec![0.0; longest],
            scratch: Vec::new(),
        };
        let mut rounded = Vec::new();
        for start in (0..tokens).step_by(CHUNK) {
            let n = CHUNK.min(tokens - start);
            work.read_chunk(input, key_head, start, n);
            for (member, (rows, state)) in heads.iter_mut().enumerate() {
                let head = key_head * input.group() + member;
                let o = work.head_chunk(input, head, start, n, state);
                for (o, row) in o.chunks_exact(dv).zip(rows) {
                    E::write(row, &mut rounded, |row| row.copy_from_slice(o));
                }
            }
        }
    }
}

/// Buffers of one thread, for chunks of n tokens.
struct Workspace {
    /// Queries, then keys: [2 n, Dk].
    qk: Vec<f32>,
    /// Q Kᵀ, then K Kᵀ: [2 n, n].
    products: Vec<f32>,
    /// L: [n, n], strictly lower part.
    solve: Vec<f32>,
    /// P: [n, n].
    mix: Vec<f32>,
    /// Q S, then K S: [2 n, Dv]; the output takes the place of Q S.
    of_state: Vec<f32>,
    /// X: [n, Dv].
    x: Vec<f32>,
    /// G: [n].
    cumulated: Vec<f64>,
    scratch: Vec<f32>,
}

impl Workspace {
    /// What the value heads of a group share: queries, keys and their products.
    fn read_chunk<E: Element>(&mut self, input: &Input<'_, E>, key_head: usize, start: usize, n: usize) {
        let dk = input.shape.key_dim;
        let (queries, keys) = self.qk[..2 * n * dk].split_at_mut(n * dk);
        for (i, (q, k)) in queries
            .chunks_exact_mut(dk)
            .zip(keys.chunks_exact_mut(dk))
            .enumerate()
        {
            input.query(start + i, key_head, q, &mut self.scratch);
            input.key(start + i, key_head, k, &mut self.scratch);
        }
        let (qk, k) = (
            View::new(&self.qk, 2 * n, dk, dk),
            View::new(&self.qk[n * dk..], n, dk, dk),
        );
        gemm(&mut self.products, n, qk, k.transposed(), Into::Overwrite, 1);
    }

    /// One chunk of one value head: gives `[n, Dv]` outputs and carries the state on.
    fn head_chunk<E: Element>(
        &mut self,
        input: &Input<'_, E>,
        head: usize,
        start: usize,
        n: usize,
        state: &mut [f32],
    ) -> &[f32] {
        let DeltaRuleShape {
            key_dim: dk,
            value_dim: dv,
            ..
        } = input.shape;
        let mut g = 0.0f64;
        for (i, cumulated) in self.cumulated[..n].iter_mut().enumerate() {
            g += f64::from(input.decay.row(start + i)[head]);
            *cumulated = g;
        }
        self.decayed_products(input, head, start, n);
        if start == 0 {
            self.of_state[..2 * n * dv].fill(0.0);
        } else {
            let (qk, s) = (View::new(&self.qk, 2 * n, dk, dk), View::new(state, dk, dv, dv));
            gemm(&mut self.of_state, dv, qk, s, Into::Overwrite, 1);
        }

        // X starts as the right-hand side, the output as e^G ∘ (Q S).
        let (out, of_keys) = self.of_state[..2 * n * dv].split_at_mut(n * dv);
        let rows = self.x[..n * dv]
            .chunks_exact_mut(dv)
            .zip(of_keys.chunks_exact(dv))
            .zip(out.chunks_exact_mut(dv));
        for (i, ((x, of_key), o)) in rows.enumerate() {
            let v = input.value(start + i, head, &mut self.scratch);
            let (beta, decay) = (input.beta.row(start + i)[head], decay(self.cumulated[i] as f32));
            dispatch(
                #[inline(always)]
                || {
                    x.iter_mut()
                        .zip(v)
                        .zip(of_key)
                        .for_each(|((x, v), s)| *x = beta * (v - decay * s));
                    o.iter_mut().for_each(|o| *o *= decay);
                },
            );
        }
        solve_unit_lower(&self.solve, n, &mut self.x, dv);
        let x = View::new(&self.x, n, dv, dv);
        gemm(out, dv, View::new(&self.mix, n, n, n), x, Into::Add, 1);

        if start + n < input.tokens() {
            let last = self.cumulated[n - 1];
            let total = decay(last as f32);
            let keys = &self.qk[n * dk..2 * n * dk];
            self.scratch.clear();
            self.scratch.resize(n * dk, 0.0);
            dispatch(
                #[inline(always)]
                || {
                    state.iter_mut().for_each(|s| *s *= total);
                    let rows = self
                        .scratch
                        .chunks_exact_mut(dk)
                        .zip(keys.chunks_exact(dk))
                        .zip(&self.cumulated[..n]);
                    rows.for_each(|((to, key), g)| scale_into(to, key, decay((last - g) as f32)));
                },
            );
            let decayed = View::new(&self.scratch, n, dk, dk).transposed();
            gemm(state, dv, decayed, x, Into::Add, 1);
        }
        &self.of_state[..n * dv]
    }

    /// L and P from the products and the decays.
    fn decayed_products<E: Element>(&mut self, input: &Input<'_, E>, head: usize, start: usize, n: usize) {
        let (of_queries, of_keys) = self.products[..2 * n * n].split_at(n * n);
        let cumulated = &self.cumulated[..n];
        dispatch(
            #[inline(always)]
            || {
                let rows = self.mix[..n * n]
                    .chunks_exact_mut(n)
                    .zip(self.solve[..n * n].chunks_exact_mut(n));
                let products = of_queries.chunks_exact(n).zip(of_keys.chunks_exact(n));
                for (i, ((mix, solve), (of_query, of_key))) in rows.zip(products).enumerate() {
                    let beta = input.beta.row(start + i)[head];
                    let g = cumulated[i];
                    let seen = mix[..=i]
                        .iter_mut()
                        .zip(&mut solve[..=i])
                        .zip(of_query.iter().zip(of_key))
                        .zip(cumulated);
                    for (((mix, solve), (of_query, of_key)), other) in seen {
                        let decay = decay((g - other) as f32);
                        *mix = of_query * decay;
                        *solve = beta * of_key * decay;
                    }
                    mix[i + 1..].fill(0.0);
                }
            },
        );
    }
}

/// Solves `(I + L) X = X₀` in place; `l` [n, n] counts strictly below its diagonal, `x` is [n, width].
fn solve_unit_lower(l: &[f32], n: usize, x: &mut [f32], width: usize) {
    for start in (0..n).step_by(SOLVE_BLOCK) {
        let end = n.min(start + SOLVE_BLOCK);
        let (solved, rest) = x.split_at_mut(start * width);
        let block = &mut rest[..(end - start) * width];
        if start > 0 {
            let left = View::new(&l[start * n..], end - start, start, n);
            gemm(
                block,
                width,
                left,
                View::new(solved, start, width, width),
                Into::Subtract,
                1,
            );
        }
        dispatch(
            #[inline(always)]
            || {
                for i in 1..end - start {
                    let (above, row) = block.split_at_mut(i * width);
                    let l = &l[(start + i) * n + start..][..i];
                    for (above, l) in above.chunks_exact(width).zip(l) {
                        add_scaled(&mut row[..width], above, -l);
                    }
                }
            },
        );
    }
}
