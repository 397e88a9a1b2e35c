//! One tensor inside of a mapped file.

use std::fmt;

use half::{bf16, f16};

/// Element type of a tensor that weights are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE 754 half.
    F16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// As a safetensors header spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tensor that stays where the file is mapped. `bytes` holds `shape.product() * dtype.size()` bytes, row-major, little-endian, with no
/// promise about their alignment.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    /// Name, as it was asked for.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Sides, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// Elements.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Every element as f32, row-major; exact for each of the dtypes.
    pub fn to_f32(&self) -> Vec<f32> {
        let (fours, _) = self.bytes.as_chunks::<4>();
        let (twos, _) = self.bytes.as_chunks::<2>();
        match self.dtype {
            Dtype::F32 => fours.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            Dtype::Bf16 => twos
                .iter()
                .map(|&bytes| bf16::from_le_bytes(bytes).to_f32())
                .collect(),
            Dtype::F16 => twos
                .iter()
                .map(|&bytes| f16::from_le_bytes(bytes).to_f32())
                .collect(),
        }
    }
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.dtype, self.shape, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(dtype: Dtype, bytes: &[u8]) -> TensorView<'_> {
        TensorView {
            name: "w",
            dtype,
            shape: &[],
            bytes,
        }
    }

    #[test]
    fn every_dtype_converts_exactly() {
        let single: Vec<u8> = [1.5f32, -0.1, f32::MIN_POSITIVE]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(view(Dtype::F32, &single).to_f32(), [1.5, -0.1, f32::MIN_POSITIVE]);
        assert_eq!(
            view(Dtype::Bf16, &[0xC0, 0x3F, 0x49, 0xC0]).to_f32(),
            [1.5, -3.140_625]
        );
        assert_eq!(
            view(Dtype::F16, &[0x00, 0x3E, 0x01, 0x00]).to_f32(),
            [1.5, 2f32.powi(-24)]
        );
    }

    #[test]
    fn elements_are_counted_by_the_size_of_the_dtype() {
        assert_eq!(view(Dtype::F32, &[0; 12]).elements(), 3);
        assert_eq!(view(Dtype::F16, &[0; 12]).elements(), 6);
    }
}
