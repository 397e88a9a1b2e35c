//! `attention`: query and key norm, rotation, grouped-query softmax attention, output gate.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor, bail};
use deltagate_kernels_api::{Attention, AttentionShape, AttentionWeights, OpError};
use rayon::prelude::*;

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    gemm::{Into, View, gemm},
    rope::{Rotation, RotationCache},
    rows::column_strips,
    space::{device, expect_matrix, expect_shape},
    vector::{decay, dispatch, largest, sigmoid, sum, sum_of_squares},
};

/// Blocks of queries against all keys they may see; the scores of a block are never larger than `[64, T]`.
#[derive(Debug, Default)]
pub struct CpuAttention {
    rotations: RotationCache,
}

/// Queries per block.
const BLOCK: usize = 64;

impl Attention<Cpu> for CpuAttention {
    fn attention(
        &self,
        qkv: &Tensor,
        w: &AttentionWeights<'_, Cpu>,
        shape: &AttentionShape,
        causal: bool,
    ) -> Result<Tensor, OpError> {
        let (tokens, _) = expect_matrix("qkv", qkv)?;
        expect_shape("qkv", qkv, &[tokens, shape.input_columns()])?;
        expect_shape("q_norm", w.q_norm, &[shape.head_dim])?;
        expect_shape("k_norm", w.k_norm, &[shape.head_dim])?;
        let rotation = self.rotations.get(tokens, shape.rotary_dim, shape.rope_theta);
        qkv.apply_op3_no_bwd(
            w.q_norm,
            w.k_norm,
            &GatedAttention {
                shape: *shape,
                causal,
                rotation,
            },
        )
        .map_err(device)
    }
}

struct GatedAttention {
    shape: AttentionShape,
    causal: bool,
    rotation: Arc<Rotation>,
}

impl CustomOp3 for GatedAttention {
    fn name(&self) -> &'static str {
        "gated-attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_l: &Layout,
        q_norm: &CpuStorage,
        q_norm_l: &Layout,
        k_norm: &CpuStorage,
        k_norm_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            ..
        } = self.shape;
        if kv_heads == 0 || heads % kv_heads != 0 || rotary_dim % 2 != 0 || rotary_dim > head_dim {
            bail!(
                "attention of {heads} heads over {kv_heads}, {rotary_dim} of {head_dim} dimensions rotated"
            );
        }
        let (q_norm, k_norm) = (
            Rows::<f32>::of(q_norm, q_norm_l)?.row(0),
            Rows::<f32>::of(k_norm, k_norm_l)?.row(0),
        );
        by_dtype!(dtype(qkv), run(self, qkv, qkv_l, q_norm, k_norm))
    }
}

fn run<E: Element>(
    op: &GatedAttention,
    qkv: &CpuStorage,
    qkv_l: &Layout,
    q_norm: &[f32],
    k_norm: &[f32],
) -> candle_core::Result<(CpuStorage, Shape)> {
    let qkv = Rows::<E>::of(qkv, qkv_l)?;
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: d,
        ..
    } = op.shape;
    let tokens = qkv.count();
    let k_start = op.shape.query_gate_columns();
    let v_start = k_start + op.shape.kv_columns();

    // Keys (normalised, rotated) and values, [KV, T, D].
    let mut keys = vec![0.0f32; kv_heads * tokens * d];
    let mut values = vec![0.0f32; kv_heads * tokens * d];
    keys.par_chunks_mut(d.max(1))
        .zip(values.par_chunks_mut(d.max(1)))
        .enumerate()
        .with_min_len(16)
        .for_each(|(at, (key, value))| {
            let (head, token) = (at / tokens, at % tokens);
            let mut scratch = Vec::new();
            op.prepare(
                key,
                qkv.read(token, k_start + head * d, d, &mut scratch),
                k_norm,
                token,
                1.0,
            );
            value.copy_from_slice(qkv.read(token, v_start + head * d, d, &mut scratch));
        });

    let mut out = output::<E>(tokens * heads * d);
    let mut blocks = Vec::new();
    for (head, rows) in column_strips(&mut out, heads, d).into_iter().enumerate() {
        let mut rows = rows.into_iter();
        for start in (0..tokens).step_by(BLOCK) {
            blocks.push((head, start, rows.by_ref().take(BLOCK).collect::<Vec<_>>()));
        }
    }
    // The last blocks see the most keys: they are taken first.
    blocks.sort_by_key(|(_, start, _)| std::cmp::Reverse(*start));
    let group = heads / kv_heads;
    blocks.into_par_iter().for_each(|(head, start, rows)| {
        let of_head = (head / group) * tokens * d..(head / group + 1) * tokens * d;
        op.block(
            &qkv,
            q_norm,
            (&keys[of_head.clone()], &values[of_head]),
            head,
            start,
            rows,
        );
    });
    Ok((E::to_cpu_storage_owned(out), (tokens, heads * d).into()))
}

impl GatedAttention {
    /// `factor · rotate(x · rsqrt(mean x² + ε) · (1 + w))`.
    fn prepare(&self, to: &mut [f32], x: &[f32], w: &[f32], position: usize, factor: f32) {
        dispatch(
            #[inline(always)]
            || {
                let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + self.shape.epsilon as f32).sqrt();
                to.iter_mut()
                    .zip(x)
                    .zip(w)
                    .for_each(|((y, x), w)| *y = x * scale * (1.0 + w) * factor);
                self.rotation.turn(to, position);
            },
        );
    }

    /// One block of queries of one head.
    fn block<E: Element>(
        &self,
        qkv: &Rows<'_, E>,
        q_norm: &[f32],
        (keys, values): (&[f32], &[f32]),
        head: usize,
        start: usize,
        rows: Vec<&mut [E]>,
    ) {
        let (d, tokens, count) = (self.shape.head_dim, qkv.count(), rows.len());
        let seen = if self.causal { start + count } else { tokens };
        let scale = 1.0 / (d as f32).sqrt();
        let mut scratch = Vec::new();
        let mut queries = vec![0.0f32; count * d];
        for (i, query) in queries.chunks_exact_mut(d).enumerate() {
            let x = qkv.read(start + i, head * 2 * d, d, &mut scratch);
            self.prepare(query, x, q_norm, start + i, scale);
        }
        let mut scores = vec![0.0f32; count * seen];
        let (q, k) = (View::new(&queries, count, d, d), View::new(keys, seen, d, d));
        gemm(&mut scores, seen, q, k.transposed(), Into::Overwrite, 1);
        for (i, row) in scores.chunks_exact_mut(seen).enumerate() {
            let visible = if self.causal { start + i + 1 } else { seen };
            let (row, hidden) = row.split_at_mut(visible);
            dispatch(
                #[inline(always)]
                || {
                    let highest = largest(row);
                    row.iter_mut().for_each(|s| *s = decay(*s - highest));
                    let total = 1.0 / sum(row);
                    row.iter_mut().for_each(|s| *s *= total);
                },
            );
            hidden.fill(0.0);
        }
        let (p, v) = (
            View::new(&scores, count, seen, seen),
            View::new(values, seen, d, d),
        );
        gemm(&mut queries, d, p, v, Into::Overwrite, 1);
        let mut rounded = Vec::new();
        for (i, (row, mixed)) in rows.into_iter().zip(queries.chunks_exact(d)).enumerate() {
            let gate = qkv.read(start + i, head * 2 * d + d, d, &mut scratch);
            E::write(row, &mut rounded, |row| {
                dispatch(
                    #[inline(always)]
                    || {
                        row.iter_mut()
                            .zip(mixed)
                            .zip(gate)
                            .for_each(|((y, m), g)| *y = m * sigmoid(*g))
                    },
                );
            });
        }
    }
}
