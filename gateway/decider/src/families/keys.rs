//! Keys of a family's configuration file.

use serde_json::{Map, Value};

use crate::FamilyError;

/// What is wrong with a key; empty means the file as a whole.
pub(super) fn fault(key: &str, reason: impl Into<String>) -> FamilyError {
    FamilyError::Config {
        key: key.to_owned(),
        reason: reason.into(),
    }
}

/// The file's object.
pub(super) fn root(config: &Value) -> Result<&Map<String, Value>, FamilyError> {
    config.as_object().ok_or_else(|| fault("", "is not an object"))
}

/// A value that must be there.
pub(super) fn required<'c>(config: &'c Map<String, Value>, key: &str) -> Result<&'c Value, FamilyError> {
    config.get(key).ok_or_else(|| fault(key, "is missing"))
}

/// A finite number.
pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

/// A finite number above 0, as temperatures are.
pub(super) fn positive(value: &Value) -> Option<f64> {
    number(value).filter(|number| *number > 0.0)
}
