//! Reads keys of one object of `config.json`, and notes what is wrong with them under their dotted path.

use serde_json::{Map, Value};

use crate::ConfigError;

/// An object of the document, with the dotted path that leads to it.
pub(crate) struct Scope<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) object: &'a Map<String, Value>,
    pub(crate) errors: &'a mut Vec<ConfigError>,
}

impl<'a> Scope<'a> {
    pub(crate) fn refuse(&mut self, key: &str, reason: &str) {
        self.errors.push(ConfigError {
            key: format!("{}{key}", self.prefix),
            reason: reason.to_owned(),
        });
    }

    /// The value unless it is missing or null, which mean the same in these files.
    pub(crate) fn present(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Refuses keys that are in none of the lists. What a new key means is not known, so it may change the answer.
    pub(crate) fn known(&mut self, lists: &[&[&str]]) {
        let object = self.object;
        for (key, value) in object {
            if !value.is_null() && !lists.iter().any(|list| list.contains(&key.as_str())) {
                self.refuse(key, "is a key that this version does not know");
            }
        }
    }

    /// Checks of what may stand at either level.
    pub(crate) fn shared(&mut self) {
        self.only(
            "quantization_config",
            &Value::Null,
            "quantised weights are not implemented",
        );
        self.only(
            "is_encoder_decoder",
            &Value::Bool(false),
            "only decoders are implemented",
        );
    }

    /// Refuses every other value than this one.
    pub(crate) fn only(&mut self, key: &str, value: &Value, reason: &str) {
        if self.present(key).is_some_and(|found| found != value) {
            self.refuse(key, &format!("has a value that is not supported: {reason}"));
        }
    }

    pub(crate) fn string(&mut self, key: &str) -> Option<&'a str> {
        let value = self.present(key).and_then(Value::as_str);
        if value.is_none() {
            self.refuse(key, "is missing or not a string");
        }
        value
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.present(key)?;
        if !value.is_boolean() {
            self.refuse(key, "is neither true nor false");
        }
        value.as_bool()
    }

    pub(crate) fn number(&mut self, key: &str) -> Option<f64> {
        let value = self
            .present(key)
            .and_then(Value::as_f64)
            .filter(|value| value.is_finite());
        if value.is_none() {
            self.refuse(key, "is missing or not a number");
        }
        value
    }

    pub(crate) fn size(&mut self, key: &str, limit: u64) -> Option<usize> {
        let size = self
            .present(key)
            .and_then(Value::as_u64)
            .filter(|size| (1..=limit).contains(size));
        if size.is_none() {
            self.refuse(key, &format!("is missing or not an integer from 1 to {limit}"));
        }
        size.and_then(|size| usize::try_from(size).ok())
    }

    /// Takes an optional number that may have been read elsewhere; false if it is unusable or another one.
    pub(crate) fn agree(&mut self, key: &str, known: &mut Option<f64>) -> bool {
        if self.present(key).is_none() {
            return true;
        }
        let Some(value) = self.number(key) else {
            return false;
        };
        if known.is_some_and(|known| known != value) {
            self.refuse(key, "has two different values");
            return false;
        }
        *known = Some(value);
        true
    }

    pub(crate) fn divides(&mut self, key: &str, part: Option<usize>, whole_key: &str, whole: Option<usize>) {
        if let (Some(part), Some(whole)) = (part, whole)
            && !whole.is_multiple_of(part)
        {
            self.refuse(key, &format!("does not divide `{whole_key}`"));
        }
    }
}
