//! JSON, where it matters how: a strict parser, and the spellings that prompts use.

mod dialect;
mod number;
mod parse;

pub use dialect::Dialect;
pub use number::{python_float, python_number};
pub use parse::{DuplicateKeys, JsonError, JsonErrorKind, JsonLimits, parse_json};
