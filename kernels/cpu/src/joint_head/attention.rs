//! Multi-head attention of all queries over all keys.

use deltagate_kernels_api::{JointHeadShape, MultiHead, OpError};

use super::dense::affine;
use crate::{
    Cpu,
    buffer::output,
    gemm::{Into, View, gemm},
    rows::for_each_row,
    vector::{decay, dispatch, largest, sum},
};

/// Queries per block: the scores of a block are never larger than `[64, keys]`.
const BLOCK: usize = 64;

/// `query` `[A, W]` over `memory` `[B, W]` -> `[A, W]`.
pub(super) fn attend(
    query: &[f32],
    memory: &[f32],
    w: &MultiHead<Cpu>,
    shape: &JointHeadShape,
) -> Result<Vec<f32>, OpError> {
    let (width, heads) = (shape.width, shape.heads);
    if heads == 0 || width == 0 || width % heads != 0 {
        return Err(OpError::Device(format!(
            "{heads} heads cannot share {width} columns"
        )));
    }
    let d = width / heads;
    let (q, kv) = (affine(query, &w.query)?, affine(memory, &w.key_value)?);
    if q.len() != query.len() || kv.len() != 2 * memory.len() || memory.is_empty() {
        return Err(OpError::Shape {
            argument: "keys and values",
            expected: vec![query.len(), 2 * memory.len()],
            found: vec![q.len(), kv.len()],
        });
    }
    let (queries, keys) = (query.len() / width, memory.len() / width);
    let threads = rayon::current_num_threads();
    let scale = 1.0 / (d as f32).sqrt();
    let mut mixed = output::<f32>(query.len());
    let mut scores = output::<f32>(BLOCK.min(queries) * keys);
    for (block, rows) in mixed.chunks_mut(BLOCK * width).enumerate() {
        let count = rows.len() / width;
        let scores = &mut scores[..count * keys];
        for head in 0..heads {
            let from = head * d;
            let q = View::new(&q[block * BLOCK * width + from..], count, d, width);
            let k = View::new(&kv[from..], keys, d, 2 * width);
            let v = View::new(&kv[width + from..], keys, d, 2 * width);
            gemm(scores, keys, q, k.transposed(), Into::Overwrite, threads);
            for_each_row(
                scores,
                keys,
                || (),
                |_, row, ()| {
                    dispatch(
                        #[inline(always)]
                        || {
                            let highest = largest(row);
                            row.iter_mut().for_each(|s| *s = decay(scale * (*s - highest)));
                            let total = 1.0 / sum(row);
                            row.iter_mut().for_each(|s| *s *= total);
                        },
                    );
                },
            );
            let p = View::new(scores, count, keys, keys);
            gemm(&mut rows[from..], width, p, v, Into::Overwrite, threads);
        }
    }
    affine(&mixed, &w.output)
}
