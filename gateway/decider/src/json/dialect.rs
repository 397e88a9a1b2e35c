//! The four spellings of JSON in prompts. All are `json.dumps(..., ensure_ascii=False)` of Python.

use serde_json::{Map, Value};

use super::number::python_number;

/// A spelling of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    item_separator: &'static str,
    key_separator: &'static str,
    sort_keys: bool,
    indent: Option<usize>,
}

impl Dialect {
    /// J-plain: `{"b": 1, "a": [2, 3]}`, keys as received.
    pub const PLAIN: Dialect = Dialect {
        item_separator: ", ",
        key_separator: ": ",
        sort_keys: false,
        indent: None,
    };

    /// J-sorted: as [`Self::PLAIN`], keys sorted by code points at every depth.
    pub const SORTED: Dialect = Dialect {
        sort_keys: true,
        ..Self::PLAIN
    };

    /// J-compact: `{"a":[2,3],"b":1}`, keys sorted.
    pub const COMPACT: Dialect = Dialect {
        item_separator: ",",
        key_separator: ":",
        ..Self::SORTED
    };

    /// J-indent(n): one item a line, `n` spaces a level, keys as received; `[]` and `{}` when empty.
    pub const fn indented(n: usize) -> Dialect {
        Dialect {
            item_separator: ",",
            indent: Some(n),
            ..Self::PLAIN
        }
    }

    /// The value in this spelling. Strings are quoted: inserting them raw is the family's business.
    pub fn render(&self, value: &Value) -> String {
        let mut out = String::new();
        self.write(value, 0, &mut out);
        out
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Number(number) => out.push_str(&python_number(number)),
            Value::String(text) => write_string(text, out),
            Value::Array(items) if items.is_empty() => out.push_str("[]"),
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.write_gap(index, depth, out);
                    self.write(item, depth + 1, out);
                }
                self.write_break(depth, out);
                out.push(']');
            }
            Value::Object(map) if map.is_empty() => out.push_str("{}"),
            Value::Object(map) => {
                out.push('{');
                for (index, (key, item)) in self.entries(map).into_iter().enumerate() {
                    self.write_gap(index, depth, out);
                    write_string(key, out);
                    out.push_str(self.key_separator);
                    self.write(item, depth + 1, out);
                }
                self.write_break(depth, out);
                out.push('}');
            }
        }
    }

    fn entries<'v>(&self, map: &'v Map<String, Value>) -> Vec<(&'v String, &'v Value)> {
        let mut entries: Vec<_> = map.iter().collect();
        if self.sort_keys {
            // Byte order of UTF-8 is the order of code points.
            entries.sort_by(|a, b| a.0.cmp(b.0));
        }
        entries
    }

    fn write_gap(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(self.item_separator);
        }
        self.write_break(depth + 1, out);
    }

    fn write_break(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spellings() {
        let value = json!({"b": [1, {}, []], "a": {"d": null, "c": "é\u{1}\u{7f}/"}});
        assert_eq!(
            Dialect::PLAIN.render(&value),
            "{\"b\": [1, {}, []], \"a\": {\"d\": null, \"c\": \"é\\u0001\u{7f}/\"}}"
        );
        assert_eq!(
            Dialect::SORTED.render(&value),
            "{\"a\": {\"c\": \"é\\u0001\u{7f}/\", \"d\": null}, \"b\": [1, {}, []]}"
        );
        assert_eq!(
            Dialect::COMPACT.render(&value),
            "{\"a\":{\"c\":\"é\\u0001\u{7f}/\",\"d\":null},\"b\":[1,{},[]]}"
        );
        assert_eq!(
            Dialect::indented(2).render(&value),
            "{\n  \"b\": [\n    1,\n    {},\n    []\n  ],\n  \"a\": {\n    \"d\": null,\n    \"c\": \"é\\u0001\u{7f}/\"\n  }\n}"
        );
    }
}
