//! Decision config of Intern. The publisher has no file for it: the temperature is printed beside the weights.

use serde_json::Value;

use crate::FamilyError;

/// What the family needs to know of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Temperature of all questions.
    pub temperature: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { temperature: 1.0 }
    }
}

impl Config {
    /// Reads `temperature`, which is required; any other key is refused.
    pub fn from_json(config: &Value) -> Result<Self, FamilyError> {
        let fault = |key: &str, reason: &str| FamilyError::Config {
            key: key.to_owned(),
            reason: reason.to_owned(),
        };
        let config = config.as_object().ok_or_else(|| fault("", "is not an object"))?;
        if let Some(key) = config.keys().find(|key| *key != "temperature") {
            return Err(fault(key, "is not known"));
        }
        let value = config
            .get("temperature")
            .ok_or_else(|| fault("temperature", "is missing"))?;
        let temperature = value
            .as_f64()
            .filter(|t| t.is_finite() && *t > 0.0)
            .ok_or_else(|| fault("temperature", "is not a number above 0"))?;
        Ok(Config { temperature })
    }
}
