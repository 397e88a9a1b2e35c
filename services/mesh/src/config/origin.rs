//! Where each key came from, for `config show` and for errors.

use figment::{
    Figment, Metadata, Source,
    value::{Num, Value},
};
use serde_json::Value as Json;

use super::{
    PREFIX,
    source::{COMMAND_LINE, ENVIRONMENT},
};

/// One key of a loaded configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Dotted key, such as `executor.dtype`.
    pub key: String,
    /// Its value; `"<redacted>"` for secrets.
    pub value: Json,
    /// `default`, a file path, `environment variable DELTAGATE_…`, or `flag …`.
    pub origin: String,
}

/// Every leaf of the merged configuration.
pub(super) fn list(figment: &Figment) -> Vec<Origin> {
    let mut origins = Vec::new();
    // The merged document was extracted before; it is there.
    if let Ok(value) = figment.find_value("") {
        walk(figment, &mut Vec::new(), &value, &mut origins);
    }
    origins
}

fn walk(figment: &Figment, path: &mut Vec<String>, value: &Value, origins: &mut Vec<Origin>) {
    match value {
        Value::Dict(_, dict) if path.is_empty() || !dict.is_empty() => {
            for (key, value) in dict {
                path.push(key.clone());
                walk(figment, path, value, origins);
                path.pop();
            }
        }
        leaf => {
            let secret = path.last().is_some_and(|name| is_secret(name));
            let origin = match figment.get_metadata(leaf.tag()) {
                Some(metadata) => describe(metadata, path),
                None => "default".to_owned(),
            };
            let empty = matches!(leaf, Value::Empty(..));
            let value = if secret && !empty {
                Json::String("<redacted>".to_owned())
            } else {
                to_json(leaf)
            };
            origins.push(Origin {
                key: path.join("."),
                value,
                origin,
            });
        }
    }
}

/// A source in words.
pub(super) fn describe(metadata: &Metadata, path: &[String]) -> String {
    if let Some(Source::File(file)) = &metadata.source {
        return file.display().to_string();
    }
    match metadata.name.as_ref() {
        ENVIRONMENT => format!("{ENVIRONMENT} {PREFIX}{}", path.join("__").to_ascii_uppercase()),
        COMMAND_LINE => format!("flag for {}", path.join(".")),
        _ => "default".to_owned(),
    }
}

/// Values of these keys are never shown.
fn is_secret(name: &str) -> bool {
    ["_key", "_secret", "_token", "password"]
        .iter()
        .any(|end| name.ends_with(end))
        || name == "secret"
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::String(_, s) => Json::from(s.as_str()),
        Value::Char(_, c) => Json::from(c.to_string()),
        Value::Bool(_, b) => Json::from(*b),
        Value::Empty(..) => Json::Null,
        Value::Array(_, items) => Json::Array(items.iter().map(to_json).collect()),
        Value::Dict(_, dict) => Json::Object(dict.iter().map(|(k, v)| (k.clone(), to_json(v))).collect()),
        Value::Num(_, num) => number(*num),
    }
}

fn number(num: Num) -> Json {
    match num {
        Num::F32(f) => Json::from(f),
        Num::F64(f) => Json::from(f),
        other => match (other.to_u128(), other.to_i128()) {
            (Some(u), _) if u64::try_from(u).is_ok() => Json::from(u as u64),
            (_, Some(i)) if i64::try_from(i).is_ok() => Json::from(i as i64),
            _ => Json::Null,
        },
    }
}
