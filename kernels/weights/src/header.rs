//! The header: read strictly, then checked against the bytes that follow it.

use std::{collections::HashMap, fmt};

use safetensors::tensor::TensorInfo;
use serde::{
    Deserialize,
    de::{MapAccess, Visitor},
};

use crate::Fault;

/// Bytes of the length that a file begins with.
pub(crate) const LENGTH_BYTES: usize = 8;
/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Tensors by name, with offsets that are known to lie inside of the data.
#[derive(Debug)]
pub(crate) struct Header {
    /// Where the data begin.
    pub(crate) data_start: usize,
    pub(crate) tensors: HashMap<String, TensorInfo>,
}

impl Header {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let data_start = data_start(bytes)?;
        let entries: Entries = serde_json::from_slice(&bytes[LENGTH_BYTES..data_start])
            .map_err(|error| Fault::Header(error.to_string()))?;
        let mut entries = entries.0;
        // The data must be covered from the first byte to the last one, each byte once.
        entries.sort_by(|(a, left), (b, right)| {
            left.data_offsets.cmp(&right.data_offsets).then_with(|| a.cmp(b))
        });
        let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Fault::Duplicate {
                tensor: pair[0].to_owned(),
            });
        }
        let available = bytes.len() - data_start;
        let mut end = 0;
        let mut last = "";
        for (name, info) in &entries {
            check(name, info, available)?;
            let start = info.data_offsets.0;
            if start < end {
                return Err(Fault::Overlap {
                    tensor: name.clone(),
                    other: last.to_owned(),
                });
            }
            unowned(end, start)?;
            (end, last) = (info.data_offsets.1, name);
        }
        unowned(end, available)?;
        Ok(Self {
            data_start,
            tensors: entries.into_iter().collect(),
        })
    }
}

fn data_start(bytes: &[u8]) -> Result<usize, Fault> {
    let size = bytes.len() as u64;
    let refuse = |header| Fault::HeaderLength { header, size };
    let length = bytes
        .first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| refuse(LENGTH_BYTES as u64))?;
    let length = u64::from_le_bytes(*length);
    let end = length.saturating_add(LENGTH_BYTES as u64);
    if end > size {
        return Err(refuse(end));
    }
    if length > MAX_HEADER_BYTES {
        let reason = format!("{length} bytes are more than the format allows ({MAX_HEADER_BYTES})");
        return Err(Fault::Header(reason));
    }
    usize::try_from(end).map_err(|_| refuse(end))
}

fn check(name: &str, info: &TensorInfo, available: usize) -> Result<(), Fault> {
    let refuse = |reason: String| {
        Err(Fault::Inconsistent {
            tensor: name.to_owned(),
            reason,
        })
    };
    let (start, end) = info.data_offsets;
    if start > end {
        return refuse(format!("begins at {start}, after its end at {end}"));
    }
    if end > available {
        return Err(Fault::OutOfRange {
            tensor: name.to_owned(),
            end: end as u64,
            available: available as u64,
        });
    }
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize(), |bits, &side| bits.checked_mul(side));
    match bits {
        Some(bits) if bits == (end - start).saturating_mul(8) => Ok(()),
        Some(bits) => refuse(format!(
            "{:?} of {} is {} bytes, not {}",
            info.shape,
            info.dtype,
            bits.div_ceil(8),
            end - start
        )),
        None => refuse(format!("shape {:?} is too large", info.shape)),
    }
}

fn unowned(from: usize, to: usize) -> Result<(), Fault> {
    match to.checked_sub(from) {
        Some(0) | None => Ok(()),
        Some(bytes) => Err(Fault::Unowned {
            offset: from as u64,
            bytes: bytes as u64,
        }),
    }
}

/// The header's entries in their order, duplicates included.
///
/// The `safetensors` crate's own reader keeps the last of two equal names, and its flattened map cannot read numbers when `serde_json`
/// is built with `arbitrary_precision`; its types for one tensor are used as they are.
struct Entries(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<HashMap<String, String>>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}
