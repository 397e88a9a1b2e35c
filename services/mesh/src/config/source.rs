//! The two sources that figment does not have as we need them: the environment without empty variables, and flags.

use figment::{
    Error, Metadata, Profile, Provider,
    value::{Dict, Map, Tag, Value},
};

use super::{PREFIX, RESERVED};

/// Environment variables with the prefix, `__` between the parts of a key.
pub(super) struct Environment(Dict);

/// Name of the metadata of [`Environment`].
pub(super) const ENVIRONMENT: &str = "environment variable";
/// Name of the metadata of [`CommandLine`].
pub(super) const COMMAND_LINE: &str = "command line";

impl Environment {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut dict = Dict::new();
        let mut variables: Vec<_> = variables
            .into_iter()
            .filter(|(name, value)| {
                name.starts_with(PREFIX) && !value.trim().is_empty() && !RESERVED.contains(&name.as_str())
            })
            .collect();
        variables.sort();
        for (name, value) in variables {
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            let parts: Vec<&str> = key.split("__").collect();
            // figment's own syntax: numbers, booleans, `[a,b]`, `{k=v}`; anything else is a string.
            let Ok(value) = value.parse::<Value>();
            insert(&mut dict, &parts, value);
        }
        Self(dict)
    }
}

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        Metadata::named(ENVIRONMENT)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

/// Overrides from the command line.
pub(super) struct CommandLine(Dict);

impl CommandLine {
    pub(super) fn new(overrides: &[(String, serde_json::Value)]) -> Self {
        let mut dict = Dict::new();
        for (key, value) in overrides {
            insert(&mut dict, &key.split('.').collect::<Vec<_>>(), from_json(value));
        }
        Self(dict)
    }
}

impl Provider for CommandLine {
    fn metadata(&self) -> Metadata {
        Metadata::named(COMMAND_LINE)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.0.clone()))
    }
}

fn insert(dict: &mut Dict, path: &[&str], value: Value) {
    match path {
        [] => {}
        [last] => {
            dict.insert((*last).to_owned(), value);
        }
        [first, rest @ ..] => {
            let entry = dict
                .entry((*first).to_owned())
                .or_insert_with(|| Value::Dict(Tag::Default, Dict::new()));
            if !matches!(entry, Value::Dict(..)) {
                // `A=1` beside `A__B=2`: the deeper key wins, and the other is reported where it does not fit.
                *entry = Value::Dict(Tag::Default, Dict::new());
            }
            if let Value::Dict(_, inner) = entry {
                insert(inner, rest, value);
            }
        }
    }
}

/// By hand, because serde_json's arbitrary-precision numbers serialise as maps into anything but serde_json.
fn from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Empty(Tag::Default, figment::value::Empty::None),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(u), _, _) => Value::from(u),
            (_, Some(i), _) => Value::from(i),
            (_, _, Some(f)) => Value::from(f),
            _ => Value::from(n.to_string()),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::Array(Tag::Default, items.iter().map(from_json).collect()),
        Json::Object(map) => Value::Dict(
            Tag::Default,
            map.iter().map(|(k, v)| (k.clone(), from_json(v))).collect(),
        ),
    }
}
