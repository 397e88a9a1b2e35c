//! Request -> text.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use crate::chat::chat;
use crate::json::{Dialect, python_number};
use crate::python::strip;
use crate::{Content, Criteria, Question};

/// Stands where a field's answer would be.
pub const MARKER: &str = "<decision>";

/// Names of a field's options, in order.
#[rustfmt::skip]
pub const SYMBOLS: [&str; 62] = [
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U", "V", "W",
    "X", "Y", "Z", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t",
    "u", "v", "w", "x", "y", "z", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9",
];

const SYSTEM: &str = "You are a careful decision assistant. Use the state and decision schema in the user message to make the requested decisions. For every field, choose exactly one answer symbol (e.g. A, B, C, ...) from its listed options and return one valid JSON object mapping each field name to its chosen symbol. Use the field names and symbols exactly as given. Do not include explanations, Markdown, or extra text.";
const NO: &str = "The answer is no (negative, or disagree with the claim).";
const YES: &str = "The answer is yes (affirmative, or align with the claim).";

/// Value and description of each option, in symbol order.
pub fn options(question: &Question) -> Vec<(String, String)> {
    let side = |given: &Option<Content>, default: &str| {
        given.as_ref().map_or_else(|| default.to_owned(), python_str)
    };
    match &question.criteria {
        Criteria::Choice(options) => options
            .iter()
            .map(|option| {
                let text = option
                    .description
                    .as_ref()
                    .map_or_else(|| "None".to_owned(), python_str);
                (option.name.clone(), text)
            })
            .collect(),
        Criteria::Score(levels) => levels
            .iter()
            .enumerate()
            .map(|(level, text)| (level.to_string(), python_str(text)))
            .collect(),
        Criteria::Noul {
            when_true,
            when_false,
        } => vec![
            ("no".to_owned(), side(when_false, NO)),
            ("yes".to_owned(), side(when_true, YES)),
        ],
    }
}

/// How many options a question has.
pub fn option_count(question: &Question) -> usize {
    match &question.criteria {
        Criteria::Choice(options) => options.len(),
        Criteria::Score(levels) => levels.len(),
        Criteria::Noul { .. } => 2,
    }
}

/// The state: JSON of two spaces a level, so that a string is quoted.
pub fn state_text(state: Option<&Content>) -> String {
    let value = state.map_or(Value::Null, Content::to_value);
    Dialect::indented(2).render(&value)
}

/// The lines of one field.
pub fn field_text(question: &Question) -> String {
    let asked = question.instructions.as_ref().map(python_str).unwrap_or_default();
    let mut text = format!("{}: {asked}", question.id);
    for (symbol, (value, description)) in SYMBOLS.iter().zip(options(question)) {
        text.push_str(&format!("\n    {symbol} = {value}: {description}"));
    }
    text
}

/// The whole prompt, given its parts and the names of its fields.
pub fn prompt<'q>(state: &str, fields: &[String], names: impl Iterator<Item = &'q str>) -> String {
    let user = format!(
        "Return one answer for every field using the supplied answer symbols.\n\n## State\n{state}\n## Decision schema\n{}",
        fields.join("\n")
    );
    let skeleton: Map<String, Value> = names.map(|name| (name.to_owned(), MARKER.into())).collect();
    let mut text = chat(Some(SYSTEM), &user);
    text.push_str(strip(&Dialect::indented(4).render(&Value::Object(skeleton))));
    text.push_str("<|im_end|>\n");
    text
}

/// Python's `str()`.
fn python_str(content: &Content) -> String {
    match content {
        Content::Text(text) | Content::Json(Value::String(text)) => text.clone(),
        Content::Json(value) => python_repr(value),
    }
}

fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => python_number(number),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python_repr).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let item = |(key, value): (&String, &Value)| format!("{}: {}", quoted(key), python_repr(value));
            let items: Vec<String> = map.iter().map(item).collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

/// A string literal as Python's `repr` writes it: double quotes only around a single quote without double ones.
fn quoted(text: &str) -> String {
    // What Python calls not printable: other and separator characters, except the space.
    #[expect(clippy::expect_used, reason = "a constant pattern, compiled by the tests")]
    static HIDDEN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\A[\p{C}\p{Z}]\z").expect("the pattern is valid"));
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c if !HIDDEN.is_match(c.encode_utf8(&mut [0; 4])) => out.push(c),
            _ if code < 0x100 => out.push_str(&format!("\\x{code:02x}")),
            _ if code < 0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
            _ => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out.push(quote);
    out
}
