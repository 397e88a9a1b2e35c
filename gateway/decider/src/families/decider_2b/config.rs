//! `decider_config.json` of Decider-2B.

use serde_json::{Map, Value};

use crate::FamilyError;
use crate::families::keys::{fault, positive, required, root};

/// Longest context, in tokens, if the file does not say.
pub const MAX_STATE_TOKENS: usize = 32_768;

/// What the family needs to know of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `2b-v11`, for example.
    pub version: String,
    /// Of each type of answer; logits are divided by them in f32.
    pub choice: f32,
    /// See `choice`.
    pub noul: f32,
    /// See `choice`.
    pub score: f32,
    /// Longest context, in tokens.
    pub max_state_tokens: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            version: "2b-v11".to_owned(),
            choice: 1.0,
            noul: 1.0,
            score: 1.0,
            max_state_tokens: MAX_STATE_TOKENS,
        }
    }
}

impl Config {
    /// Reads the file. What it says about the layout of prompts is checked here, because another layout is another family.
    pub fn from_json(config: &Value) -> Result<Self, FamilyError> {
        let config = root(config)?;
        if config
            .get("layout")
            .is_some_and(|layout| layout != "plain" && !layout.is_null())
        {
            return Err(fault(
                "layout",
                "is not plain, the only one that this version knows",
            ));
        }
        for (key, needed) in [("neutralize_none", false), ("isolated_levels", true)] {
            if required(config, key)? != needed {
                return Err(fault(key, format!("is not {needed}")));
            }
        }
        for key in [
            "chat_template",
            "schema_first",
            "schema_first_trained",
            "temperature_by_options",
            "temperature_schema_first",
            "temperature_schema_first_by_type",
        ] {
            if config
                .get(key)
                .is_some_and(|value| value != false && !value.is_null())
            {
                return Err(fault(
                    key,
                    "asks for another prompt or readout, which is not implemented",
                ));
            }
        }
        let version = required(config, "version")?
            .as_str()
            .filter(|version| !version.is_empty());
        let version = version.ok_or_else(|| fault("version", "is not a string, or an empty one"))?;
        let max_state_tokens = match config.get("max_state_tokens") {
            None => MAX_STATE_TOKENS,
            Some(value) => value
                .as_u64()
                .and_then(|tokens| usize::try_from(tokens).ok())
                .filter(|tokens| *tokens > 0)
                .ok_or_else(|| fault("max_state_tokens", "is not an integer above 0"))?,
        };
        let of = |kind: &str| temperature(config, kind);
        Ok(Config {
            version: version.to_owned(),
            choice: of("choice")?,
            noul: of("noul")?,
            score: of("score")?,
            max_state_tokens,
        })
    }
}

/// That of a type, or the one for all.
fn temperature(config: &Map<String, Value>, kind: &str) -> Result<f32, FamilyError> {
    let (key, value) = match config
        .get("temperature_by_type")
        .and_then(|by_type| by_type.get(kind))
    {
        Some(value) => (format!("temperature_by_type.{kind}"), value),
        None => ("temperature".to_owned(), required(config, "temperature")?),
    };
    positive(value)
        .map(|temperature| temperature as f32)
        .filter(|temperature| *temperature > 0.0 && temperature.is_finite())
        .ok_or_else(|| fault(&key, "is not a finite number above 0 in f32"))
}
