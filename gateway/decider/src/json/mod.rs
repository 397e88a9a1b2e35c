//! JSON, where it matters how: a strict parser, and the spellings that prompts use.

mod dialect;
mod number;
mod parse;
mod policy;

pub use dialect::Dialect;
pub use number::{python_float, python_number};
pub use parse::parse_json;
pub use policy::{DuplicateKeys, JsonError, JsonErrorKind, JsonLimits};
