//! The JSON dialects and the parser against vectors made by Python, and against serde_json on arbitrary input.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_decider::json::{Dialect, python_float};
use deltagate_decider::systemone::{Rules, parse_body};
use deltagate_decider::{JsonErrorKind, JsonLimits, parse_json};
use proptest::prelude::*;
use serde_json::{Map, Number, Value};

const DIALECTS: [(&str, Dialect); 5] = [
    ("plain", Dialect::PLAIN),
    ("sorted", Dialect::SORTED),
    ("compact", Dialect::COMPACT),
    ("indent2", Dialect::indented(2)),
    ("indent4", Dialect::indented(4)),
];

#[test]
fn vectors() {
    let vectors = support::fixture("json_dialects/vectors.json");
    let cases = vectors["vectors"].as_array().unwrap();
    assert!(cases.len() >= 90);
    // Some are nested deeper than a request may be: they are about the spelling.
    let deep = JsonLimits {
        max_depth: 256,
        ..JsonLimits::LAST_WINS
    };
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let value = parse_json(case["source"].as_str().unwrap(), &deep)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for (key, dialect) in DIALECTS {
            assert_eq!(
                dialect.render(&value),
                case[key].as_str().unwrap(),
                "{name}, {key}"
            );
        }
    }
}

#[test]
fn rejected() {
    let vectors = support::fixture("json_dialects/vectors.json");
    let cases = vectors["rejected"].as_array().unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        assert!(
            parse_json(case["source"].as_str().unwrap(), &JsonLimits::LAST_WINS).is_err(),
            "{}",
            case["name"]
        );
    }
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<f64>().prop_filter_map("finite", Number::from_f64),
        (-400i32..300, 1u64..10_000).prop_map(|(e, m)| format!("{m}.5E{e}").parse().unwrap()),
        "-?[1-9][0-9]{0,40}".prop_map(|text| text.parse().unwrap()),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number().prop_map(Value::Number),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Equal up to the spelling of floats; the order of keys does not count.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.as_i64().is_none() && a.as_f64() == b.as_f64()),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        _ => a == b,
    }
}

proptest! {
    #[test]
    fn every_dialect_reads_back(value in value()) {
        for (name, dialect) in DIALECTS {
            let text = dialect.render(&value);
            let back = parse_json(&text, &JsonLimits::STRICT).unwrap();
            prop_assert!(same(&value, &back), "{name}: {text}");
            prop_assert_eq!(dialect.render(&back), text.clone());
            prop_assert!(same(&serde_json::from_str(&text).unwrap(), &back), "{name}: {text}");
        }
    }

    #[test]
    fn floats_read_back(bits in any::<u64>()) {
        let x = f64::from_bits(bits);
        prop_assume!(x.is_finite());
        prop_assert_eq!(python_float(x).parse::<f64>().unwrap().to_bits(), bits);
    }

    #[test]
    fn the_parser_accepts_what_serde_json_accepts(text in r#"[\[\]{},:"\\ untrefalsbdDx0-9E+.\n-]{0,24}"#) {
        agree(&text)?;
    }

    #[test]
    fn damaged_documents(value in value(), at in any::<prop::sample::Index>(), insert in any::<char>(), cut in any::<bool>()) {
        let text = Dialect::PLAIN.render(&value);
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        if cut { chars.remove(at); } else { chars.insert(at, insert); }
        agree(&chars.into_iter().collect::<String>())?;
    }

    #[test]
    fn arbitrary_bodies_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(parse_body(&bytes, &Rules::default()).is_err());
    }

    #[test]
    fn arbitrary_questions_do_not_panic(state in value(), question in value(), kind in "choice|score|noul|bool|box", criteria in value()) {
        let body = |question: &Value| serde_json::json!({"state": state, "questions": {"q": question}}).to_string();
        let typed = serde_json::json!({"type": kind, "criteria": criteria, "instructions": question});
        for text in [body(&question), body(&typed)] {
            if let Ok(parsed) = parse_body(text.as_bytes(), &Rules::default()) {
                let (_, cx) = support::context();
                let logits = |_, n| vec![0.0; n];
                let _ = support::drive(&*support::plain_startlux(), &parsed.request, &cx, logits).map(|_| ());
            }
        }
    }
}

/// Our parser and serde_json's take the same texts, but for what the policy refuses.
fn agree(text: &str) -> Result<(), TestCaseError> {
    let theirs: Result<Value, _> = serde_json::from_str(text);
    match (parse_json(text, &JsonLimits::LAST_WINS), theirs) {
        (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
        (Ok(_), Err(error)) => prop_assert!(false, "accepted, but {error}: {text:?}"),
        (Err(error), Ok(_)) => prop_assert_eq!(error.kind, JsonErrorKind::NumberOverflow, "{:?}", text),
        (Err(_), Err(_)) => {}
    }
    Ok(())
}
