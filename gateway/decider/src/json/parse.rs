//! A strict JSON parser (RFC 8259) that sees duplicate keys and keeps the digits of numbers.
//!
//! serde_json's own parser is not used for text of requests: it drops duplicates before anyone can look, and with
//! `arbitrary_precision` it takes an object with one reserved key for a number.

use serde_json::{Map, Number, Value};

use super::policy::{DuplicateKeys, JsonError, JsonErrorKind, JsonLimits};

/// Parses one document. Key order and the digits of numbers are kept.
pub fn parse_json(text: &str, limits: &JsonLimits) -> Result<Value, JsonError> {
    let mut parser = Parser {
        text,
        bytes: text.as_bytes(),
        at: 0,
        limits: *limits,
    };
    parser.limits.max_depth = parser.limits.max_depth.min(256);
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < parser.bytes.len() {
        return Err(parser.error(JsonErrorKind::TrailingText));
    }
    Ok(value)
}

struct Parser<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    limits: JsonLimits,
}

impl Parser<'_> {
    fn error(&self, kind: JsonErrorKind) -> JsonError {
        JsonError {
            kind,
            offset: self.at,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `byte` if it is next, after white space.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn unexpected(&self) -> JsonError {
        let kind = if self.at < self.bytes.len() {
            JsonErrorKind::UnexpectedCharacter
        } else {
            JsonErrorKind::UnexpectedEnd
        };
        self.error(kind)
    }

    /// A value inside `depth` containers.
    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.skip_space();
        match self.peek() {
            Some(b'{' | b'[') if depth >= self.limits.max_depth => Err(self.error(JsonErrorKind::TooDeep)),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b'N' | b'I') => Err(self.error(JsonErrorKind::NotFinite)),
            _ => Err(self.unexpected()),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, JsonError> {
        if !self
            .bytes
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(word.as_bytes()))
        {
            return Err(self.error(JsonErrorKind::UnexpectedCharacter));
        }
        self.at += word.len();
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected());
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut map = Map::new();
        if self.take(b'}') {
            return Ok(Value::Object(map));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected());
            }
            let key_at = self.at;
            let key = self.string()?;
            if self.limits.duplicate_keys == DuplicateKeys::Reject && map.contains_key(&key) {
                return Err(JsonError {
                    kind: JsonErrorKind::DuplicateKey,
                    offset: key_at,
                });
            }
            if !self.take(b':') {
                return Err(self.unexpected());
            }
            // Inserting a key again replaces the value and keeps the position.
            let value = self.value(depth)?;
            map.insert(key, value);
            if self.take(b'}') {
                return Ok(Value::Object(map));
            }
            if !self.take(b',') {
                return Err(self.unexpected());
            }
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        let mut from = self.at;
        loop {
            match self.peek() {
                None => return Err(self.error(JsonErrorKind::UnexpectedEnd)),
                Some(b'"') => {
                    out.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[from..self.at]);
                    out.push(self.escape()?);
                    from = self.at;
                }
                Some(0..=0x1f) => return Err(self.error(JsonErrorKind::ControlCharacter)),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.at;
        let fail = |kind| JsonError { kind, offset: start };
        let letter = self.bytes.get(self.at + 1).copied();
        self.at += 2;
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => {
                let first = self.hex4().ok_or_else(|| fail(JsonErrorKind::MalformedEscape))?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    let lone = fail(JsonErrorKind::LoneSurrogate);
                    if !self
                        .bytes
                        .get(self.at..)
                        .is_some_and(|rest| rest.starts_with(b"\\u"))
                    {
                        return Err(lone);
                    }
                    self.at += 2;
                    match self.hex4().ok_or_else(|| fail(JsonErrorKind::MalformedEscape))? {
                        second @ 0xdc00..0xe000 => 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                        _ => return Err(lone),
                    }
                } else {
                    first
                };
                char::from_u32(code).ok_or_else(|| fail(JsonErrorKind::LoneSurrogate))?
            }
            _ => return Err(fail(JsonErrorKind::MalformedEscape)),
        })
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        let mut code = 0;
        for digit in digits {
            code = code * 16 + char::from(*digit).to_digit(16)?;
        }
        self.at += 4;
        Some(code)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Number, JsonError> {
        let start = self.at;
        let fail = |kind| JsonError { kind, offset: start };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'I') {
            return Err(fail(JsonErrorKind::NotFinite));
        }
        let leading_zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 || (leading_zero && whole > 1) {
            return Err(fail(JsonErrorKind::MalformedNumber));
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            if self.digits() == 0 {
                return Err(fail(JsonErrorKind::MalformedNumber));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            float = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(fail(JsonErrorKind::MalformedNumber));
            }
        }
        let spelling = &self.text[start..self.at];
        if float && !spelling.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(fail(JsonErrorKind::NumberOverflow));
        }
        spelling.parse().map_err(|_| fail(JsonErrorKind::MalformedNumber))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kind(text: &str) -> JsonErrorKind {
        parse_json(text, &JsonLimits::STRICT).unwrap_err().kind
    }

    #[test]
    fn duplicate_keys_follow_the_policy() {
        let text = r#"{"a":1,"b":2,"a":{"k":3}}"#;
        assert_eq!(
            parse_json(text, &JsonLimits::STRICT).unwrap_err(),
            JsonError {
                kind: JsonErrorKind::DuplicateKey,
                offset: 13
            }
        );
        let value = parse_json(text, &JsonLimits::LAST_WINS).unwrap();
        assert_eq!(value.to_string(), r#"{"a":{"k":3},"b":2}"#);
        assert_eq!(kind(r#"{"a":1,"\u0061":2}"#), JsonErrorKind::DuplicateKey);
        assert_eq!(kind(r#"[{"x":{"a":1,"a":2}}]"#), JsonErrorKind::DuplicateKey);
    }

    #[test]
    fn depth_is_limited() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse_json(&nested(64), &JsonLimits::STRICT).is_ok());
        assert_eq!(kind(&nested(65)), JsonErrorKind::TooDeep);
        assert_eq!(kind(&"[".repeat(1_000_000)), JsonErrorKind::TooDeep);
        assert_eq!(kind(&"{\"a\":".repeat(1_000_000)), JsonErrorKind::TooDeep);
        let wide = JsonLimits {
            max_depth: usize::MAX,
            ..JsonLimits::STRICT
        };
        assert_eq!(
            parse_json(&nested(1_000_000), &wide).unwrap_err().kind,
            JsonErrorKind::TooDeep
        );
    }

    #[test]
    fn numbers_keep_their_spelling() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "1e+5",
            "2.50",
            "12345678901234567890123",
            "1.7976931348623157e+308",
            "1e-400",
        ] {
            assert_eq!(parse_json(text, &JsonLimits::STRICT).unwrap().to_string(), text);
        }
        // Only the form of the exponent is serde_json's: it has one for all.
        assert_eq!(
            parse_json("[1E5,1e-05]", &JsonLimits::STRICT)
                .unwrap()
                .to_string(),
            "[1e+5,1e-05]"
        );
        assert_eq!(kind("1e309"), JsonErrorKind::NumberOverflow);
        assert_eq!(kind("[-Infinity]"), JsonErrorKind::NotFinite);
        assert_eq!(kind("NaN"), JsonErrorKind::NotFinite);
        assert_eq!(kind("-01"), JsonErrorKind::MalformedNumber);
    }

    #[test]
    fn surrogates_come_in_pairs() {
        assert_eq!(
            parse_json(r#""\ud83c\udf89""#, &JsonLimits::STRICT).unwrap(),
            "🎉"
        );
        for text in [
            r#""\ud83c""#,
            r#""\udf89""#,
            r#""\ud83cx""#,
            r#""\ud83c\u0041""#,
            r#""\ud83c\n""#,
        ] {
            assert_eq!(kind(text), JsonErrorKind::LoneSurrogate, "{text}");
        }
        assert_eq!(kind(r#""\ud83c\u00""#), JsonErrorKind::MalformedEscape);
    }

    #[test]
    fn a_reserved_key_of_serde_json_is_a_key() {
        let text = r#"{"$serde_json::private::Number":"7"}"#;
        assert!(parse_json(text, &JsonLimits::STRICT).unwrap().is_object());
        let text = r#"{"$serde_json::private::RawValue":"[1"}"#;
        assert!(parse_json(text, &JsonLimits::STRICT).unwrap().is_object());
    }

    #[test]
    fn errors_hold_no_text() {
        let error = parse_json(r#"{"secret": hunter2}"#, &JsonLimits::STRICT).unwrap_err();
        assert_eq!(error.to_string(), "unexpected character in JSON at byte 11");
    }
}
