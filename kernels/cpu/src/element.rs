//! What is the same for f32 and bf16: rows are read and written as f32.

use candle_core::{CpuStorage, DType, Layout, WithDType, bail};
use half::bf16;

/// An element type of activations.
pub(crate) trait Element: WithDType + Send + Sync {
    const ZERO: Self;
    const NAN: Self;

    /// The row as f32; `scratch` is used when it must be widened.
    fn read<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];

    /// Lets `fill` write the row as f32; `scratch` is used when it must be rounded.
    fn write(row: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]));
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const NAN: Self = Self::NAN;

    fn read<'a>(row: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        row
    }

    fn write(row: &mut [Self], _: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        fill(row);
    }
}

impl Element for bf16 {
    const ZERO: Self = Self::ZERO;
    const NAN: Self = Self::NAN;

    fn read<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.clear();
        scratch.extend(row.iter().map(|v| v.to_f32()));
        scratch
    }

    fn write(row: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        scratch.clear();
        scratch.extend(row.iter().map(|v| v.to_f32()));
        fill(scratch);
        row.iter_mut()
            .zip(scratch)
            .for_each(|(to, from)| *to = Self::from_f32(*from));
    }
}

/// Rows of a `[rows, columns]` tensor whose columns are adjacent, or of a vector (one row).
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E> {
    data: &'a [E],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    pub(crate) fn of(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<Self> {
        let (rows, columns, stride, step) = match (layout.dims(), layout.stride()) {
            (&[rows, columns], &[stride, step]) => (rows, columns, stride, step),
            (&[columns], &[step]) => (1, columns, columns, step),
            (dims, _) => bail!("rank {} is neither a matrix nor a vector", dims.len()),
        };
        if columns > 1 && step != 1 {
            bail!("columns are not adjacent");
        }
        let data = &storage.as_slice::<E>()?[layout.start_offset()..];
        let needed = if rows == 0 {
            0
        } else {
            (rows - 1) * stride + columns
        };
        if data.len() < needed {
            bail!("tensor of {} elements is read up to {needed}", data.len());
        }
        Ok(Self {
            data,
            rows,
            columns,
            stride,
        })
    }

    pub(crate) const fn count(&self) -> usize {
        self.rows
    }

    pub(crate) const fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) const fn stride(&self) -> usize {
        self.stride
    }

    /// From the first element of the first row on; row `i` starts at `i · stride`.
    pub(crate) const fn data(&self) -> &'a [E] {
        self.data
    }

    pub(crate) fn row(&self, index: usize) -> &'a [E] {
        &self.data[index * self.stride..index * self.stride + self.columns]
    }

    /// Some columns of a row, as f32.
    pub(crate) fn read<'s>(
        &self,
        index: usize,
        from: usize,
        count: usize,
        scratch: &'s mut Vec<f32>,
    ) -> &'s [f32]
    where
        'a: 's,
    {
        E::read(&self.row(index)[from..from + count], scratch)
    }
}

/// Calls a generic function with the element type of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            candle_core::DType::F32 => $function::<f32>($($argument),*),
            candle_core::DType::BF16 => $function::<half::bf16>($($argument),*),
            other => candle_core::bail!("dtype {other:?} is not served"),
        }
    };
}
pub(crate) use by_dtype;

/// Dtype of a storage.
pub(crate) fn dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use candle_core::{Device, Storage, Tensor};

    use super::*;

    #[test]
    fn rows_of_a_view_skip_the_other_columns() {
        let t = Tensor::from_vec((0..12).map(|v| v as f32).collect(), (3, 4), &Device::Cpu).unwrap();
        let view = t.narrow(1, 1, 2).unwrap().narrow(0, 1, 2).unwrap();
        let (storage, layout) = view.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            unreachable!()
        };
        let rows = Rows::<f32>::of(storage, layout).unwrap();
        assert_eq!((rows.count(), rows.columns(), rows.stride()), (2, 2, 4));
        assert_eq!((rows.row(0), rows.row(1)), (&[5.0, 6.0][..], &[9.0, 10.0][..]));
        assert!(Rows::<bf16>::of(storage, layout).is_err());
        let turned = t.t().unwrap();
        assert!(Rows::<f32>::of(storage, turned.layout()).is_err());
    }
}
