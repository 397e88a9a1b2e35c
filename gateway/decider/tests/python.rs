//! What is said to be Python's, against Python itself: the JSON dialects, `repr`, `round`, `float` and `strip`.
//!
//! Needs `python3` and fails without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, OnceLock},
};

use deltagate_decider::{
    JsonLimits,
    json::{Dialect, python_float},
    parse_json,
    probability::round_decimal,
    python,
};
use proptest::prelude::*;

/// Answers one line for each line: words, all but the first in hexadecimal UTF-8.
const SERVER: &str = r#"
import json, struct, sys
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
DIALECTS = [
    dict(separators=(", ", ": ")),
    dict(separators=(", ", ": "), sort_keys=True),
    dict(separators=(",", ":"), sort_keys=True),
    dict(indent=2),
    dict(indent=4),
]
bits = lambda x: struct.pack(">d", x).hex()
for line in sys.stdin:
    name, *words = line.split()
    if name == "json":
        value = json.loads(bytes.fromhex(words[0]).decode())
        out = [json.dumps(value, ensure_ascii=False, **d).encode().hex() for d in DIALECTS]
    elif name == "float":
        x, = struct.unpack(">d", bytes.fromhex(words[0]))
        out = [repr(x).encode().hex()] + [bits(round(x, n)) for n in (1, 2, 4)]
    elif name == "text":
        text = bytes.fromhex(words[0]).decode()[:-1]
        try:
            number = bits(float(text))
        except ValueError:
            number = "-"
        out = [(text.strip() + ".").encode().hex(), number]
    print(*out, flush=True)
"#;

const DIALECTS: [Dialect; 5] = [
    Dialect::PLAIN,
    Dialect::SORTED,
    Dialect::COMPACT,
    Dialect::indented(2),
    Dialect::indented(4),
];

struct Python {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn start() -> Python {
    let mut child = Command::new("python3")
        .args(["-X", "utf8", "-c", SERVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("these tests compare with Python: python3 must be installed");
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    Python {
        _child: child,
        input,
        output: BufReader::new(output),
    }
}

/// One line to Python, one line back. The child ends with the end of its input, when this process does.
fn ask(line: &str) -> Vec<String> {
    static PYTHON: OnceLock<Mutex<Python>> = OnceLock::new();
    let mut python = PYTHON.get_or_init(|| Mutex::new(start())).lock().unwrap();
    writeln!(python.input, "{line}").unwrap();
    python.input.flush().unwrap();
    let mut answer = String::new();
    python.output.read_line(&mut answer).unwrap();
    let words: Vec<String> = answer.split_whitespace().map(str::to_owned).collect();
    assert!(!words.is_empty(), "python3 ended at the line {line:?}");
    words
}

fn text(word: &str) -> String {
    String::from_utf8(hex::decode(word).unwrap()).unwrap()
}

fn bits(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap()
}

/// Numbers as people and programs spell them, none beyond f64.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        "-?(0|[1-9][0-9]{0,40})",
        "-?[1-9][0-9]{390,400}",
        any::<f64>()
            .prop_filter("JSON has no others", |x| x.is_finite())
            .prop_map(|x| format!("{x:e}")),
        "-?(0|[1-9][0-9]{0,17})\\.[0-9]{1,20}([eE][+-]?[0-9]{1,2})?",
        "-?(0|[1-9][0-9]{0,3})[eE][+-]?[0-9]{1,2}",
        (-330i32..=303, 1u32..99_999).prop_map(|(e, m)| format!("{m}E{e:+04}")),
    ]
}

/// A string with some of its characters escaped, needed or not.
fn string() -> impl Strategy<Value = String> {
    let plain = any::<char>().prop_filter("must be escaped", |c| !matches!(c, '\0'..='\x1f' | '"' | '\\'));
    let short = prop::sample::select(vec!["\\\"", "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"]);
    let long = any::<char>().prop_map(|c| {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units);
        units
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect::<String>()
    });
    let control = (0u32..0xa0).prop_map(|c| format!("\\u{c:04X}"));
    let piece = prop_oneof![
        6 => plain.prop_map(String::from),
        1 => "[a-z0-9 _]{1,12}",
        1 => short.prop_map(str::to_owned),
        1 => long,
        1 => control,
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// The text of a document, with white space where it may stand and keys that may repeat.
fn document() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec!["null", "true", "false", "[]", "{}", "[ ]", "{\n}"]);
    let leaf = prop_oneof![1 => word.prop_map(str::to_owned), 2 => number(), 2 => string()];
    leaf.prop_recursive(6, 48, 6, |inner| {
        let key = prop_oneof![3 => string(), 1 => "\"[ab]\""];
        let space = "[ \t\n\r]{0,2}";
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..6), space)
                .prop_map(|(items, space)| format!("[{space}{}]", items.join(&format!("{space},")))),
            (prop::collection::vec((key, inner), 0..6), space).prop_map(|(entries, space)| {
                let entries: Vec<_> = entries
                    .into_iter()
                    .map(|(key, value)| format!("{key}{space}:{space}{value}"))
                    .collect();
                format!("{{{}{space}}}", entries.join(&format!(",{space}")))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn json_is_spelled_as_json_dumps_spells_it(source in document()) {
        let value = parse_json(&source, &JsonLimits::LAST_WINS).unwrap();
        let theirs = ask(&format!("json {}", hex::encode(&source)));
        prop_assert_eq!(theirs.len(), DIALECTS.len());
        for (dialect, theirs) in DIALECTS.iter().zip(&theirs) {
            prop_assert_eq!(dialect.render(&value), text(theirs), "{:?}", dialect);
        }
    }

    #[test]
    fn floats_are_printed_as_repr_prints_them(any in any::<u64>(), digits in 0u64..10_000_000, shift in 0i32..12) {
        for x in [f64::from_bits(any), digits as f64 / 10f64.powi(shift), digits as f64 / 2f64.powi(shift)] {
            if x.is_finite() {
                let theirs = ask(&format!("float {:016x}", x.to_bits()));
                prop_assert_eq!(python_float(x), text(&theirs[0]));
            }
        }
    }

    #[test]
    fn rounding_is_pythons(any in any::<u64>(), tie in 0u32..1 << 20, decimals in 0u32..1_000_000, negative: bool) {
        let sign = if negative { -1.0 } else { 1.0 };
        // Any double; exact ties (binary fractions); decimals that end in 5 and are no exact ties; probabilities.
        for x in [
            f64::from_bits(any),
            f64::from(tie) / 32.0,
            (f64::from(decimals) * 10.0 + 5.0) / 1e5,
            f64::from(decimals) / 1e6,
        ] {
            let x = x * sign;
            if x.is_finite() {
                let theirs = ask(&format!("float {:016x}", x.to_bits()));
                for (digits, theirs) in [1, 2, 4].into_iter().zip(&theirs[1..]) {
                    prop_assert_eq!(round_decimal(x, digits).to_bits(), bits(theirs), "{} to {}", x, digits);
                }
            }
        }
    }

    #[test]
    fn numbers_and_white_space_of_texts_are_pythons(
        any in any::<String>(),
        number in "[ \t\u{1c}\u{a0}]?[+-]?[0-9_.]{0,9}([eE][+-]?[0-9_]{0,3})?[ \n\u{1f}\u{3000}]?",
        word in "[+-]?(inf|Infinity|nan|INF|iNfInItY|infinit|NaN)_?",
    ) {
        for given in [any, number, word] {
            let theirs = ask(&format!("text {}", hex::encode(format!("{given}."))));
            prop_assert_eq!(format!("{}.", python::strip(&given)), text(&theirs[0]));
            if !python::has_other_digits(&given) {
                let ours = python::float(&given);
                let theirs = (theirs[1] != "-").then(|| f64::from_bits(bits(&theirs[1])));
                let same = match (ours, theirs) {
                    (Some(a), Some(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
                    (None, None) => true,
                    _ => false,
                };
                prop_assert!(same, "{:?}: {:?} and not {:?}", given, ours, theirs);
            }
        }
    }
}
