//! Why a file is refused.

use std::path::PathBuf;

/// A safetensors file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct WeightsError {
    /// File.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub fault: Fault,
}

/// What is wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// A directory, a pipe, a device.
    #[error("not a regular file")]
    NotRegular,
    /// The file is shorter than its own header says, or has no room for a header length.
    #[error("header of {header} bytes does not fit in a file of {size} bytes")]
    HeaderLength {
        /// Bytes that the header takes, its length field included.
        header: u64,
        /// Bytes in the file.
        size: u64,
    },
    /// The header is not the JSON that it has to be.
    #[error("header is not valid: {0}")]
    Header(String),
    /// A name stands twice in the header.
    #[error("tensor `{tensor}` is declared twice")]
    Duplicate {
        /// Name.
        tensor: String,
    },
    /// A tensor begins after its end, or its shape and dtype give another number of bytes than its offsets.
    #[error("tensor `{tensor}`: {reason}")]
    Inconsistent {
        /// Name.
        tensor: String,
        /// What does not agree.
        reason: String,
    },
    /// A tensor ends behind the end of the file: the file is truncated or the header wrong.
    #[error("tensor `{tensor}` ends at byte {end} of {available} data bytes")]
    OutOfRange {
        /// Name.
        tensor: String,
        /// Where it ends, counted from the end of the header.
        end: u64,
        /// Bytes behind the header.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor `{tensor}` overlaps tensor `{other}`")]
    Overlap {
        /// The later one.
        tensor: String,
        /// The earlier one.
        other: String,
    },
    /// Bytes that no tensor owns; the format allows none.
    #[error("{bytes} bytes at data offset {offset} belong to no tensor")]
    Unowned {
        /// Where they begin, counted from the end of the header.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// No tensor has this name.
    #[error("tensor `{tensor}` is missing")]
    Missing {
        /// Name.
        tensor: String,
    },
    /// The dtype is none that weights are read from.
    #[error("tensor `{tensor}` has dtype {dtype}, not F32, BF16 or F16")]
    UnsupportedDtype {
        /// Name.
        tensor: String,
        /// Its dtype, as the file spells it.
        dtype: String,
    },
}

impl Fault {
    /// The tensor that it is about, if it is about one.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::Duplicate { tensor }
            | Self::Inconsistent { tensor, .. }
            | Self::OutOfRange { tensor, .. }
            | Self::Overlap { tensor, .. }
            | Self::Missing { tensor }
            | Self::UnsupportedDtype { tensor, .. } => Some(tensor),
            Self::Io(_)
            | Self::NotRegular
            | Self::HeaderLength { .. }
            | Self::Header(_)
            | Self::Unowned { .. } => None,
        }
    }
}
