//! `open_jev_export.json` of Open-Jev.

use serde_json::{Map, Value};

use crate::FamilyError;
use crate::families::keys::{fault, number, positive, required, root};

/// The one format of exports.
pub const FORMAT: &str = "open-jev-text-merged/1";
/// Longest prompt that an export may ask for, in tokens.
pub const MAX_LENGTH_LIMIT: usize = 16_384;
/// Longest prompt of an export that does not say.
const DEFAULT_MAX_LENGTH: usize = 4_096;
/// Where an export comes from.
const ORIGINS: [&str; 3] = ["model_id", "base_revision", "checkpoint_revision"];

/// What the family needs to know of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The base model's name, and the name under which the family's own server answers.
    pub model_id: String,
    /// Revision of the base model.
    pub base_revision: String,
    /// Before the user's text.
    pub chat_prefix: String,
    /// After it.
    pub chat_suffix: String,
    /// Longest prompt, in tokens.
    pub max_length: usize,
    /// Of all questions.
    pub temperature: f64,
    /// The decision head; none without a model.
    pub head: Option<Head>,
}

/// A linear map from a hidden row to a logit.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// One weight per hidden value.
    pub weight: Vec<f64>,
    /// Added to the sum.
    pub bias: f64,
}

impl Head {
    /// The logit of a hidden row of the same length. Summed in f64, in order, and rounded once: so do the models' servers.
    pub fn logit(&self, hidden: &[f32]) -> f32 {
        let sum: f64 = self
            .weight
            .iter()
            .zip(hidden)
            .map(|(w, h)| w * f64::from(*h))
            .sum();
        (sum + self.bias) as f32
    }
}

impl Default for Config {
    /// What holds for the published sizes, without a head.
    fn default() -> Self {
        Config {
            model_id: String::new(),
            base_revision: String::new(),
            chat_prefix: "<|im_start|>user\n".to_owned(),
            chat_suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
            max_length: DEFAULT_MAX_LENGTH,
            temperature: 1.0,
            head: None,
        }
    }
}

impl Config {
    /// Reads the export. All keys but `max_length` are required, and there are no others.
    pub fn from_json(config: &Value) -> Result<Self, FamilyError> {
        let config = root(config)?;
        // First: another format may mean anything by the other keys.
        if text(config, "format")? != FORMAT {
            return Err(fault(
                "format",
                format!("is not {FORMAT}, the only one that this version knows"),
            ));
        }
        for key in ORIGINS {
            if text(config, key)?.is_empty() {
                return Err(fault(key, "is empty"));
            }
        }
        let known = [
            "format",
            "temperature",
            "max_length",
            "chat_prefix",
            "chat_suffix",
            "head_weight",
            "head_bias",
        ];
        let unknown = |key: &&String| !known.contains(&key.as_str()) && !ORIGINS.contains(&key.as_str());
        if let Some(key) = config.keys().find(unknown) {
            return Err(fault(key, "is a key that this version does not know"));
        }
        let temperature = positive(required(config, "temperature")?)
            .ok_or_else(|| fault("temperature", "is not a finite number above 0"))?;
        let bias = head_number(required(config, "head_bias")?)
            .ok_or_else(|| fault("head_bias", "is not a finite f32 number"))?;
        Ok(Config {
            model_id: text(config, "model_id")?.to_owned(),
            base_revision: text(config, "base_revision")?.to_owned(),
            chat_prefix: text(config, "chat_prefix")?.to_owned(),
            chat_suffix: text(config, "chat_suffix")?.to_owned(),
            max_length: max_length(config)?,
            temperature,
            head: Some(Head {
                weight: weight(config)?,
                bias,
            }),
        })
    }
}

fn text<'c>(config: &'c Map<String, Value>, key: &str) -> Result<&'c str, FamilyError> {
    required(config, key)?
        .as_str()
        .ok_or_else(|| fault(key, "is not a string"))
}

fn max_length(config: &Map<String, Value>) -> Result<usize, FamilyError> {
    let Some(value) = config.get("max_length") else {
        return Ok(DEFAULT_MAX_LENGTH);
    };
    value
        .as_u64()
        .and_then(|length| usize::try_from(length).ok())
        .filter(|length| (1..=MAX_LENGTH_LIMIT).contains(length))
        .ok_or_else(|| {
            fault(
                "max_length",
                format!("is not an integer from 1 to {MAX_LENGTH_LIMIT}"),
            )
        })
}

fn weight(config: &Map<String, Value>) -> Result<Vec<f64>, FamilyError> {
    let key = "head_weight";
    required(config, key)?
        .as_array()
        .filter(|weights| !weights.is_empty())
        .and_then(|weights| weights.iter().map(head_number).collect())
        .ok_or_else(|| fault(key, "is not a list of finite f32 numbers"))
}

/// A number that the head can hold. A larger one would make every logit infinite.
fn head_number(value: &Value) -> Option<f64> {
    number(value).filter(|number| (*number as f32).is_finite())
}
