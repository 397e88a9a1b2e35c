//! Whether `tokenizer.json` is of the model's vocabulary. Nothing is tokenised here: only ids are compared, so that a file of another
//! model is refused before it makes other tokens of every text.

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::{Finding, Problem};

/// Keys of `config.json` that name tokens of the text.
const SPECIAL: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// What a tokenizer must give.
pub(crate) struct Expected<'a> {
    /// Ids are less than this.
    pub(crate) vocab_size: usize,
    /// `config.json`.
    pub(crate) config: &'a Value,
    /// Tokens whose ids a family's file names.
    pub(crate) tokens: &'a [(String, u64)],
}

/// Compares the bytes of a `tokenizer.json` with what the model's own files say.
pub(crate) fn check(file: &str, bytes: &[u8], expected: &Expected<'_>, findings: &mut Vec<Finding>) {
    let tokenizer: Tokenizer = match serde_json::from_slice(bytes) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            findings.push(Finding::file(file, Problem::Json(error.to_string())));
            return;
        }
    };
    let mut refuse =
        |key: &str, reason: String| findings.push(Finding::of(file, key, Problem::Key { reason }));
    let Entries(vocabulary) = &tokenizer.model.vocab;
    if vocabulary.is_empty() {
        return refuse("model.vocab", "has no token".to_owned());
    }
    let size = expected.vocab_size as u64;
    let added = tokenizer.added_tokens.iter().map(|token| token.id);
    let levels = [
        ("model.vocab", vocabulary.values().copied().max()),
        ("added_tokens", added.clone().max()),
    ];
    for (key, largest) in levels {
        if let Some(id) = largest.filter(|id| *id >= size) {
            refuse(
                key,
                format!("has token id {id}, which is not below `vocab_size` {size} of config.json"),
            );
        }
    }
    for (token, id) in expected.tokens {
        let own = tokenizer
            .added_tokens
            .iter()
            .find(|added| added.content == *token);
        let found = own
            .map(|added| added.id)
            .or_else(|| vocabulary.get(token).copied());
        match found {
            Some(found) if found == *id => continue,
            Some(found) => refuse(
                "model.vocab",
                format!("has id {found} for `{token}`, and not {id}"),
            ),
            None => refuse(
                "model.vocab",
                format!("has no token `{token}`, which should be {id}"),
            ),
        }
        // Another vocabulary differs in all of them.
        break;
    }
    for (key, id) in special_ids(expected.config) {
        let known = added.clone().any(|added| added == id) || vocabulary.values().any(|other| *other == id);
        if id < size && !known {
            refuse(
                "added_tokens",
                format!("has no token of id {id}, which is `{key}` of config.json"),
            );
        }
    }
}

/// Dotted key and id, at the root and at the text level; lists have several.
fn special_ids(config: &Value) -> Vec<(String, u64)> {
    let levels = [("", Some(config)), ("text_config.", config.get("text_config"))];
    let mut ids = Vec::new();
    for (prefix, level) in levels {
        for key in SPECIAL {
            let Some(value) = level.and_then(|level| level.get(key)) else {
                continue;
            };
            let one = std::slice::from_ref(value);
            let values = value.as_array().map_or(one, Vec::as_slice);
            ids.extend(
                values
                    .iter()
                    .filter_map(Value::as_u64)
                    .map(|id| (format!("{prefix}{key}"), id)),
            );
        }
    }
    ids
}

#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: Entries,
}

/// Ids by token: written as an object, or as a list of pairs whose places are the ids.
struct Entries(HashMap<String, u64>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("token ids by token, or a list of tokens with their scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = HashMap::new();
                while let Some((token, id)) = map.next_entry()? {
                    entries.insert(token, id);
                }
                Ok(Entries(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
                let mut entries = HashMap::new();
                let mut id = 0;
                while let Some((token, IgnoredAny)) = list.next_element()? {
                    entries.insert(token, id);
                    id += 1;
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_any(Collect)
    }
}
