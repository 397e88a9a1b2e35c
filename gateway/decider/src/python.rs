//! Text rules of Python that prompts depend on, where Rust's own differ.

/// What is white space to `str.strip` and not to Unicode.
const SEPARATORS: std::ops::RangeInclusive<char> = '\u{1c}'..='\u{1f}';

/// White space of `str.strip` and of `\s`: Unicode White_Space and U+001C to U+001F.
pub fn is_whitespace(c: char) -> bool {
    c.is_whitespace() || SEPARATORS.contains(&c)
}

/// `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_whitespace)
}

/// `float(text)`, for text of ASCII characters and white space around them; `None` where Python raises ValueError.
///
/// Python also reads the decimal digits of other scripts. Such text is `None` here: see [`has_other_digits`].
pub fn float(text: &str) -> Option<f64> {
    // Not `strip`: the four separators that `str.strip` takes are no white space to `float`.
    let text = text.trim_matches(|c| is_whitespace(c) && !SEPARATORS.contains(&c));
    if !text.contains('_') {
        return text.parse().ok();
    }
    let bytes = text.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let between_digits =
        |(at, byte): (usize, &u8)| *byte != b'_' || (digit(at.checked_sub(1)) && digit(at.checked_add(1)));
    if !bytes.iter().enumerate().all(between_digits) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// True if the text has a numeric character that is not ASCII, so that [`float`] may differ from Python's.
pub fn has_other_digits(text: &str) -> bool {
    text.chars().any(|c| !c.is_ascii() && c.is_numeric())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn strip_knows_the_separators_that_rust_does_not() {
        assert_eq!(
            strip("\u{1c}\u{1d}\u{1e}\u{1f}\u{a0}\u{3000}\u{2028}\u{85} a \t"),
            "a"
        );
        assert_eq!(strip("\u{200b}\u{feff}"), "\u{200b}\u{feff}");
        assert_eq!(strip("\u{180e}"), "\u{180e}");
    }

    #[test]
    fn white_space_is_exactly_pythons() {
        let all: Vec<u32> = (0..0x11_0000)
            .filter(|c| char::from_u32(*c).is_some_and(is_whitespace))
            .collect();
        let mut want: Vec<u32> = (0x9..=0xd)
            .chain(0x1c..=0x20)
            .chain([0x85, 0xa0, 0x1680])
            .collect();
        want.extend((0x2000..=0x200a).chain([0x2028, 0x2029, 0x202f, 0x205f, 0x3000]));
        assert_eq!(all, want);
    }

    #[test]
    fn float_reads_what_python_reads() {
        for (text, value) in [
            (" 1.5\n", 1.5),
            ("1_000", 1000.0),
            ("-.5", -0.5),
            ("1.", 1.0),
            ("+1e-2", 0.01),
            ("1_0.0_1", 10.01),
        ] {
            assert_eq!(float(text), Some(value), "{text}");
        }
        for text in [
            "", "high", "\u{1c}1", "1__0", "_1", "1_", "1_.0", ".", "e5", "0x10", "1 2", "i_nf",
        ] {
            assert_eq!(float(text), None, "{text}");
        }
        assert_eq!(float("-Infinity"), Some(f64::NEG_INFINITY));
        assert!(float("nan").unwrap().is_nan());
        assert!(has_other_digits("١") && !has_other_digits("1é"));
    }
}
