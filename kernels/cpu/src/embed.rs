//! `embed`: rows of the embedding table.

use candle_core::Tensor;
use deltagate_kernels_api::{Embed, OpError, Space};

use crate::{Cpu, space::expect_matrix};

/// Gathers rows of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuEmbed;

impl Embed<Cpu> for CpuEmbed {
    fn embed(&self, table: &Tensor, ids: &[u32]) -> Result<Tensor, OpError> {
        expect_matrix("table", table)?;
        Cpu::rows(table, ids)
    }
}
