//! Numbers as Python prints them.

use serde_json::Number;

/// `json.dumps` of a number: integers as they are spelled (`-0` is `0`), all else as [`python_float`].
pub fn python_number(number: &Number) -> String {
    let spelling = number.as_str();
    if !spelling.contains(['.', 'e', 'E']) {
        return if spelling == "-0" {
            "0".to_owned()
        } else {
            spelling.to_owned()
        };
    }
    // The parser refuses what overflows, so this is finite for every number that came in through it.
    spelling
        .parse()
        .map_or_else(|_| spelling.to_owned(), python_float)
}

/// `repr` of a float: the shortest digits that round-trip, fixed for `1e-4 <= |x| < 1e16`, scientific beyond.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    let sign = if x.is_sign_negative() { "-" } else { "" };
    if x.is_infinite() {
        return format!("{sign}Infinity");
    }
    if x == 0.0 {
        return format!("{sign}0.0");
    }
    let scientific = shortest(x.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = mantissa.replace('.', "");
    if (-4..16).contains(&exponent) {
        let Ok(point) = usize::try_from(exponent + 1) else {
            return format!(
                "{sign}0.{}{digits}",
                "0".repeat(exponent.unsigned_abs() as usize - 1)
            );
        };
        if point == 0 {
            return format!("{sign}0.{digits}");
        }
        let whole: String = digits.chars().chain(std::iter::repeat('0')).take(point).collect();
        let fraction: String = digits.chars().skip(point).collect();
        let fraction = if fraction.is_empty() { "0" } else { &fraction };
        return format!("{sign}{whole}.{fraction}");
    }
    let sign_of_exponent = if exponent < 0 { '-' } else { '+' };
    format!(
        "{sign}{mantissa}e{sign_of_exponent}{:02}",
        exponent.unsigned_abs()
    )
}

/// The shortest digits that round-trip, as `d.ddde-7`; of two that are equally near the even one, where Rust takes the
/// larger: 563000000000000.25 is `5.630000000000002e14`.
fn shortest(x: f64) -> String {
    let rust = format!("{x:e}");
    let digits = rust.split('e').next().unwrap_or_default().len().saturating_sub(2);
    let even = format!("{x:.digits$e}");
    let same = even.len() == rust.len() && even.parse() == Ok(x);
    if same { even } else { rust }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn floats_are_pythons() {
        for (text, want) in [
            ("1e5", "100000.0"),
            ("-0.0", "-0.0"),
            ("1e-7", "1e-07"),
            ("0.00001", "1e-05"),
            ("0.0001", "0.0001"),
            ("0.01", "0.01"),
            ("0.1", "0.1"),
            ("1e16", "1e+16"),
            ("1e15", "1000000000000000.0"),
            ("12345678901234567.0", "1.2345678901234568e+16"),
            ("5e-324", "5e-324"),
            ("2.5E+3", "2500.0"),
            ("1e22", "1e+22"),
            ("-123.456", "-123.456"),
            ("563000000000000.25", "563000000000000.2"),
            ("563000000000000.75", "563000000000000.8"),
            ("9007199254740993.0", "9007199254740992.0"),
            ("-1.5e-300", "-1.5e-300"),
        ] {
            assert_eq!(python_number(&text.parse().unwrap()), want);
        }
        assert_eq!(python_float(f64::NEG_INFINITY), "-Infinity");
    }

    #[test]
    fn integers_keep_their_digits() {
        for (text, want) in [
            ("-0", "0"),
            ("0", "0"),
            ("-7", "-7"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(python_number(&text.parse().unwrap()), want);
        }
    }
}
