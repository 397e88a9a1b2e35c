//! Memory-mapped safetensors.
//!
//! [`WeightsFile::open`] checks the whole header against the size of the file before a tensor can be looked at, so that a view never
//! reaches outside of the file, over another tensor, or over bytes that no tensor owns.

mod error;
mod file;
mod finite;
mod header;
mod view;

pub use error::{Fault, WeightsError};
pub use file::WeightsFile;
pub use finite::first_not_finite;
pub use view::{Dtype, TensorView};
