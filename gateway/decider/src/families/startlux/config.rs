//! `decision_config.json` of StartLux.

use serde_json::{Map, Value};

use super::MAX_LETTERS;
use super::tournament::WideChoice;
use crate::FamilyError;
use crate::families::keys::{fault, number, positive, required, root};

/// What the family needs to know of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Token of each letter, A to Z.
    pub letter_token_ids: [u32; MAX_LETTERS],
    /// Temperatures.
    pub temperature: Temperatures,
    /// Rules for choices of more than 26 options.
    pub wide_choice: WideChoice,
}

/// Temperature of each type of question; 1 where the file says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperatures {
    /// Of choice questions.
    pub choice: f64,
    /// Of yes/no questions.
    pub noul: f64,
    /// Of score questions.
    pub score: f64,
}

impl Default for Config {
    /// What holds for all published sizes, with temperature 1.
    fn default() -> Self {
        Config {
            // `A` is token 32 of every Qwen tokenizer, and so on.
            letter_token_ids: std::array::from_fn(|letter| 32 + letter as u32),
            temperature: Temperatures {
                choice: 1.0,
                noul: 1.0,
                score: 1.0,
            },
            wide_choice: WideChoice::default(),
        }
    }
}

impl Config {
    /// Reads `letter_token_ids` and `temperature_by_type` (required) and `wide_choice`. Other keys are for others.
    pub fn from_json(config: &Value) -> Result<Self, FamilyError> {
        let config = root(config)?;
        let temperatures = object(config, "temperature_by_type")?
            .ok_or_else(|| fault("temperature_by_type", "is missing"))?;
        let temperature = |kind: &str| match temperatures.get(kind) {
            None => Ok(1.0),
            Some(value) => positive(value)
                .ok_or_else(|| fault(&format!("temperature_by_type.{kind}"), "is not a number above 0")),
        };
        Ok(Config {
            letter_token_ids: letters(config)?,
            temperature: Temperatures {
                choice: temperature("choice")?,
                noul: temperature("noul")?,
                score: temperature("score")?,
            },
            wide_choice: wide_choice(config)?,
        })
    }
}

fn object<'c>(
    config: &'c Map<String, Value>,
    key: &str,
) -> Result<Option<&'c Map<String, Value>>, FamilyError> {
    match config.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_object()
            .map(Some)
            .ok_or_else(|| fault(key, "is not an object")),
    }
}

fn letters(config: &Map<String, Value>) -> Result<[u32; MAX_LETTERS], FamilyError> {
    let key = "letter_token_ids";
    let value = required(config, key)?;
    let ids: Option<Vec<u32>> = value.as_array().and_then(|ids| {
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect()
    });
    let ids = ids.ok_or_else(|| fault(key, "is not a list of token ids"))?;
    let count = ids.len();
    let ids: [u32; MAX_LETTERS] = ids
        .try_into()
        .map_err(|_| fault(key, format!("has {count} entries, not {MAX_LETTERS}")))?;
    let mut sorted = ids;
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(fault(key, "has an id twice"));
    }
    Ok(ids)
}

fn wide_choice(config: &Map<String, Value>) -> Result<WideChoice, FamilyError> {
    let mut rules = WideChoice::default();
    let Some(given) = object(config, "wide_choice")? else {
        return Ok(rules);
    };
    let count = |key: &str, default: usize| match given.get(key) {
        None => Ok(default),
        Some(value) => value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| fault(&format!("wide_choice.{key}"), "is not a count")),
    };
    rules.group = count("group", rules.group)?;
    rules.keep = count("keep", rules.keep)?;
    if let Some(value) = given.get("residual") {
        rules.residual = number(value)
            .filter(|residual| (0.0..1.0).contains(residual))
            .ok_or_else(|| fault("wide_choice.residual", "is not in [0, 1)"))?;
    }
    rules.check().map_err(|reason| fault("wide_choice", reason))?;
    Ok(rules)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn base() -> Value {
        json!({"letter_token_ids": (32..58).collect::<Vec<u32>>(), "temperature_by_type": {"choice": 1.25, "noul": 2}})
    }

    #[test]
    fn reads_and_defaults() {
        let config = Config::from_json(&base()).unwrap();
        assert_eq!(config.letter_token_ids[25], 57);
        assert_eq!(
            config.temperature,
            Temperatures {
                choice: 1.25,
                noul: 2.0,
                score: 1.0
            }
        );
        assert_eq!(
            config.wide_choice,
            WideChoice {
                group: 25,
                keep: 3,
                residual: 0.001
            }
        );
        let mut with = base();
        with["wide_choice"] = json!({"group": 5, "keep": 2});
        assert_eq!(
            Config::from_json(&with).unwrap().wide_choice,
            WideChoice {
                group: 5,
                keep: 2,
                residual: 0.001
            }
        );
    }

    #[test]
    fn refuses_what_it_cannot_mean() {
        for (key, value, at) in [
            (
                "letter_token_ids",
                json!((0..25).collect::<Vec<u32>>()),
                "letter_token_ids",
            ),
            ("letter_token_ids", json!(vec![0; 26]), "letter_token_ids"),
            ("letter_token_ids", json!(vec![-1; 26]), "letter_token_ids"),
            ("letter_token_ids", Value::Null, "letter_token_ids"),
            ("temperature_by_type", json!([1.0]), "temperature_by_type"),
            (
                "temperature_by_type",
                json!({"score": 0}),
                "temperature_by_type.score",
            ),
            (
                "temperature_by_type",
                json!({"noul": "1"}),
                "temperature_by_type.noul",
            ),
            (
                "temperature_by_type",
                json!({"choice": null}),
                "temperature_by_type.choice",
            ),
            ("wide_choice", json!({"group": 2.5}), "wide_choice.group"),
            ("wide_choice", json!({"residual": 1}), "wide_choice.residual"),
            ("wide_choice", json!({"group": 27}), "wide_choice"),
            ("wide_choice", json!({"group": 0}), "wide_choice"),
            ("wide_choice", json!({"keep": 0}), "wide_choice"),
            ("wide_choice", json!({"keep": 14}), "wide_choice"),
        ] {
            let mut config = base();
            config[key] = value.clone();
            match Config::from_json(&config) {
                Err(FamilyError::Config { key, .. }) => assert_eq!(key, at, "{value}"),
                other => assert!(other.is_err(), "{key} {value}: {other:?}"),
            }
        }
        let mut missing = base();
        missing.as_object_mut().unwrap().remove("temperature_by_type");
        assert!(Config::from_json(&missing).is_err());
        assert!(Config::from_json(&Value::Null).is_err());
    }
}
