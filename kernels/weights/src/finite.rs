//! Looks for values that are no numbers, at the speed of memory.

use half::{bf16, f16};

use crate::Dtype;

/// Elements that are looked at together, without a branch.
const BLOCK: usize = 4096;

/// The first element of little-endian bytes that is NaN or an infinity: its index and value.
pub fn first_not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f32)> {
    // A value is not finite exactly if all bits of its exponent are set.
    match dtype {
        Dtype::F32 => {
            let bits = bytes.as_chunks::<4>().0;
            let index = first(bits, |b| u32::from_le_bytes(b) & 0x7F80_0000 == 0x7F80_0000)?;
            Some((index, f32::from_le_bytes(bits[index])))
        }
        Dtype::Bf16 => {
            let bits = bytes.as_chunks::<2>().0;
            let index = first(bits, |b| u16::from_le_bytes(b) & 0x7F80 == 0x7F80)?;
            Some((index, bf16::from_le_bytes(bits[index]).to_f32()))
        }
        Dtype::F16 => {
            let bits = bytes.as_chunks::<2>().0;
            let index = first(bits, |b| u16::from_le_bytes(b) & 0x7C00 == 0x7C00)?;
            Some((index, f16::from_le_bytes(bits[index]).to_f32()))
        }
    }
}

fn first<const N: usize>(elements: &[[u8; N]], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let blocks = elements.chunks(BLOCK).enumerate();
    blocks
        .filter(|(_, block)| block.iter().fold(false, |any, &element| any | is_bad(element)))
        .find_map(|(i, block)| {
            let within = block.iter().position(|&element| is_bad(element))?;
            Some(i * BLOCK + within)
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        let element = |&value: &f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(element).collect()
    }

    #[test]
    fn the_first_value_that_is_no_number_is_found_in_every_dtype() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let mut values = vec![-1.5f32; 3 * BLOCK + 7];
            values[5] = 0.0;
            assert_eq!(first_not_finite(dtype, &bytes(dtype, &values)), None);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, BLOCK - 1, BLOCK, 3 * BLOCK + 6] {
                    let mut values = values.clone();
                    values[at] = bad;
                    *values.last_mut().unwrap() = bad;
                    let (index, value) = first_not_finite(dtype, &bytes(dtype, &values)).unwrap();
                    assert_eq!(index, at, "{dtype} {bad}");
                    assert!(
                        value == bad || (value.is_nan() && bad.is_nan()),
                        "{dtype} {value}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_largest_and_smallest_numbers_are_numbers() {
        let edges = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), -0.0];
        assert_eq!(first_not_finite(Dtype::F32, &bytes(Dtype::F32, &edges)), None);
        assert_eq!(first_not_finite(Dtype::Bf16, &[0x7F, 0x7F, 0x7F, 0xFF]), None);
        assert_eq!(first_not_finite(Dtype::F16, &[0xFF, 0x7B, 0xFF, 0xFB]), None);
    }
}
