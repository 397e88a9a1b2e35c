//! Looks which model a body names, before it is parsed by the rules of that model's family.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The `model` of a body; the last one counts. `Err` when the body is no JSON object: the parser says what is wrong.
pub(super) fn model(body: &[u8]) -> Result<Option<String>, Unreadable> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let model = reader.deserialize_map(Find).map_err(|_| Unreadable)?;
    reader.end().map_err(|_| Unreadable)?;
    Ok(model.filter(|name| !name.is_empty()))
}

/// The body could not be looked through.
pub(super) struct Unreadable;

struct Find;

impl<'de> Visitor<'de> for Find {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut model = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "model" {
                // A model that is no string is the parser's to refuse.
                model = map.next_value::<serde_json::Value>()?.as_str().map(str::to_owned);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn the_last_string_counts() {
        let peek = |body: &str| model(body.as_bytes()).ok();
        assert_eq!(
            peek(r#"{"model":"a","state":{"model":"b"}}"#),
            Some(Some("a".into()))
        );
        assert_eq!(peek(r#"{"model":"a","model":"b"}"#), Some(Some("b".into())));
        assert_eq!(peek(r#"{"model":7,"x":1e400}"#), Some(None));
        assert_eq!(peek(r#"{"model":""}"#), Some(None));
        for bad in ["", "[]", "{", r#"{"model":"a"}x"#, r#""model""#] {
            assert_eq!(peek(bad), None, "{bad}");
        }
    }
}
