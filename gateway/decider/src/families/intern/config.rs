//! Decision config of Intern. The publisher has no file for it: the temperature is printed beside the weights.

use serde_json::Value;

use crate::FamilyError;
use crate::families::keys::{fault, positive, required, root};

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
        let config = root(config)?;
        if let Some(key) = config.keys().find(|key| *key != "temperature") {
            return Err(fault(key, "is not known"));
        }
        let temperature = positive(required(config, "temperature")?)
            .ok_or_else(|| fault("temperature", "is not a number above 0"))?;
        Ok(Config { temperature })
    }
}
