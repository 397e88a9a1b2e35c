//! Indices in long arrays of a state: a question that names one by its number needs no counting.

use serde_json::{Map, Value};

/// Arrays of the state that are at least this long show the index of each element.
const ANNOTATED_LENGTH: usize = 8;

/// Writes the index of each element into the long arrays of a state. An element's own `_index` wins, in first place.
pub(super) fn annotate(value: &Value) -> Value {
    match value {
        Value::Array(items) if items.len() >= ANNOTATED_LENGTH => items
            .iter()
            .enumerate()
            .map(|(index, item)| with_index(index, annotate(item)))
            .collect(),
        Value::Array(items) => items.iter().map(annotate).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), annotate(value)))
            .collect(),
        other => other.clone(),
    }
}

fn with_index(index: usize, item: Value) -> Value {
    let mut element = Map::new();
    element.insert("_index".to_owned(), index.into());
    match item {
        // Inserting `_index` again replaces the value and keeps the position.
        Value::Object(fields) => element.extend(fields),
        other => {
            element.insert("value".to_owned(), other);
        }
    }
    Value::Object(element)
}
