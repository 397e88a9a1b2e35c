//! `readout`: rows to the host, as they are or as logits of some rows of the output embedding.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use deltagate_kernels_api::{JointHead, JointQuestion, OpError, Readout};
use rayon::prelude::*;

use crate::{
    Cpu,
    buffer::output,
    element::{Element, Rows, by_dtype, dtype},
    joint_head::joint_head,
    space::{device, expect_matrix},
    vector::{dispatch, dot},
};

/// Reads only those rows of the table that are asked for; sums in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuReadout;

impl Readout<Cpu> for CpuReadout {
    fn hidden(&self, rows: &Tensor) -> Result<Vec<Vec<f32>>, OpError> {
        expect_matrix("rows", rows)?;
        rows.to_dtype(candle_core::DType::F32)
            .and_then(|rows| rows.to_vec2())
            .map_err(device)
    }

    fn logits(&self, rows: &Tensor, table: &Tensor, ids: &[u32]) -> Result<Vec<Vec<f32>>, OpError> {
        let (_, hidden) = expect_matrix("rows", rows)?;
        let (vocabulary, columns) = expect_matrix("table", table)?;
        if columns != hidden {
            return Err(OpError::Shape {
                argument: "table",
                expected: vec![vocabulary, hidden],
                found: vec![vocabulary, columns],
            });
        }
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(OpError::Index {
                index: u64::from(id),
                limit: vocabulary as u64,
            });
        }
        rows.apply_op2_no_bwd(table, &Logits { ids })
            .and_then(|logits| logits.to_vec2())
            .map_err(device)
    }

    fn joint(
        &self,
        rows: &Tensor,
        ids: &[u32],
        table: &Tensor,
        head: &JointHead<Cpu>,
        questions: &[JointQuestion],
    ) -> Result<Vec<f32>, OpError> {
        joint_head(rows, ids, table, head, questions)
    }
}

/// `[R, H]` against rows `ids` of `[V, H]` -> `[R, ids.len()]`, f32.
struct Logits<'a> {
    ids: &'a [u32],
}

impl CustomOp2 for Logits<'_> {
    fn name(&self) -> &'static str {
        "logits"
    }

    fn cpu_fwd(
        &self,
        rows: &CpuStorage,
        rows_l: &Layout,
        table: &CpuStorage,
        table_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        by_dtype!(dtype(rows), project((rows, rows_l), (table, table_l), self.ids))
    }
}

fn project<E: Element>(
    rows: (&CpuStorage, &Layout),
    table: (&CpuStorage, &Layout),
    ids: &[u32],
) -> candle_core::Result<(CpuStorage, Shape)> {
    let (rows, table) = (Rows::<E>::of(rows.0, rows.1)?, Rows::<E>::of(table.0, table.1)?);
    let mut out = output::<f32>(rows.count() * ids.len());
    // Over the ids: each row of the table is read once for all rows. `by_id` is [ids, R].
    let by_id: Vec<Vec<f32>> = ids
        .par_iter()
        .with_min_len(16)
        .map(|&id| {
            let (mut wide_w, mut wide_x) = (Vec::new(), Vec::new());
            let w = E::read(table.row(id as usize), &mut wide_w);
            (0..rows.count())
                .map(|i| {
                    let x = E::read(rows.row(i), &mut wide_x);
                    dispatch(
                        #[inline(always)]
                        || dot(x, w),
                    )
                })
                .collect()
        })
        .collect();
    for (column, values) in by_id.iter().enumerate() {
        for (row, value) in values.iter().enumerate() {
            out[row * ids.len() + column] = *value;
        }
    }
    Ok((CpuStorage::F32(out), (rows.count(), ids.len()).into()))
}
