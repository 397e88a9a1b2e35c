//! One entry of `questions`.

use serde_json::{Map, Value};

use super::{LevelKeys, Rules};
use crate::json::python_number;
use crate::{ChoiceOption, Content, Criteria, PathSegment, Question, Violation, python};

/// Where a question goes wrong: its position, to which the field is added.
struct At(usize);

impl At {
    fn field(&self, field: &'static str, reason: &'static str, message: impl Into<String>) -> Violation {
        Violation::in_question(self.0, &[field.into()], reason, message)
    }

    fn criteria(&self, reason: &'static str, message: impl Into<String>) -> Violation {
        self.field("criteria", reason, message)
    }

    fn criterion(&self, index: usize, reason: &'static str, message: impl Into<String>) -> Violation {
        let path: [PathSegment; 2] = ["criteria".into(), index.into()];
        Violation::in_question(self.0, &path, reason, message)
    }
}

/// Parses question number `index`.
pub(super) fn parse(index: usize, id: String, value: Value, rules: &Rules) -> Result<Question, Violation> {
    let at = At(index);
    let Value::Object(mut fields) = value else {
        return Err(Violation::in_question(
            index,
            &[],
            "WRONG_TYPE",
            "a question must be an object",
        ));
    };
    let kind = match fields.remove("type") {
        None => "choice".to_owned(),
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(at.field("type", "WRONG_TYPE", "type must be a string")),
    };
    if let Some(field) = rules.not_true(&fields) {
        return Err(at.field(field, "UNSUPPORTED_VALUE", "only true is supported"));
    }
    // A field that is there counts, even as null: the other name is looked at only when it is not.
    let instructions = either(&mut fields, "instructions", "question").map(Content::from);
    let criteria = either(&mut fields, "criteria", "options");
    let criteria = match kind.as_str() {
        "choice" => choice(&at, criteria, rules)?,
        "score" => score(&at, criteria, rules)?,
        "noul" | "bool" => noul(&at, criteria, rules)?,
        _ => return Err(at.field("type", "UNSUPPORTED_TYPE", "type must be choice, score or noul")),
    };
    Ok(Question {
        id,
        instructions,
        criteria,
    })
}

fn either(fields: &mut Map<String, Value>, name: &str, alias: &str) -> Option<Value> {
    fields.remove(name).or_else(|| fields.remove(alias))
}

/// A value that null leaves out.
fn described(value: Value) -> Option<Content> {
    (!value.is_null()).then(|| Content::from(value))
}

fn choice(at: &At, criteria: Option<Value>, rules: &Rules) -> Result<Criteria, Violation> {
    match criteria {
        Some(Value::Object(map)) => Ok(Criteria::Choice(
            map.into_iter()
                .map(|(name, value)| ChoiceOption {
                    name,
                    description: described(value),
                })
                .collect(),
        )),
        Some(Value::Array(_)) if rules.listed_options.is_empty() => {
            Err(at.criteria("WRONG_TYPE", "criteria of a choice must be an object"))
        }
        Some(Value::Array(items)) => {
            let mut options: Vec<ChoiceOption> = Vec::with_capacity(items.len());
            let mut seen = std::collections::HashSet::new();
            for (index, item) in items.into_iter().enumerate() {
                let name = listed_name(at, index, item)?;
                // The names become the keys of an object in the families' servers: a repeated one is one option.
                if seen.insert(name.clone()) {
                    options.push(ChoiceOption {
                        name,
                        description: None,
                    });
                }
            }
            let (count, allowed) = (options.len(), &rules.listed_options);
            if !allowed.contains(&count) {
                let (min, max) = (allowed.start(), allowed.end());
                let message = format!("a list of names has {min} to {max} different options, got {count}");
                return Err(at.criteria("OPTION_COUNT", message));
            }
            Ok(Criteria::Choice(options))
        }
        None | Some(Value::Null) => {
            Err(at.criteria("MISSING", "criteria are required for a choice question"))
        }
        Some(_) => Err(at.criteria(
            "WRONG_TYPE",
            "criteria of a choice must be an object or a list of names",
        )),
    }
}

/// Python's `str(item)`, for what has an unambiguous one.
fn listed_name(at: &At, index: usize, item: Value) -> Result<String, Violation> {
    match item {
        Value::String(name) => Ok(name),
        Value::Number(number) => Ok(python_number(&number)),
        Value::Bool(true) => Ok("True".to_owned()),
        Value::Bool(false) => Ok("False".to_owned()),
        Value::Null => Ok("None".to_owned()),
        Value::Array(_) | Value::Object(_) => {
            Err(at.criterion(index, "WRONG_TYPE", "a listed option must be a name"))
        }
    }
}

fn score(at: &At, criteria: Option<Value>, rules: &Rules) -> Result<Criteria, Violation> {
    match criteria {
        Some(Value::Array(levels)) => Ok(Criteria::Score(levels.into_iter().map(Content::from).collect())),
        Some(Value::Object(map)) if rules.level_keys == LevelKeys::Counted => {
            let wrong = (0..)
                .zip(map.keys())
                .find(|(level, key)| level.to_string() != **key);
            if let Some((index, _)) = wrong {
                let message = "the keys of levels must be 0, 1, 2 and so on, in order";
                return Err(at.criterion(index, "INVALID_LEVEL_KEY", message));
            }
            let levels = map.into_iter().map(|(_, level)| Content::from(level));
            Ok(Criteria::Score(levels.collect()))
        }
        Some(Value::Object(map)) => sorted_levels(at, map, rules).map(Criteria::Score),
        None | Some(Value::Null) => Err(at.criteria("MISSING", "criteria are required for a score question")),
        Some(_) => Err(at.criteria(
            "WRONG_TYPE",
            "criteria of a score must be a list of levels or an object",
        )),
    }
}

/// Levels in the numeric order of their keys, if every key is a number; otherwise as given, where that is allowed.
fn sorted_levels(at: &At, map: Map<String, Value>, rules: &Rules) -> Result<Vec<Content>, Violation> {
    let mut keys = Vec::with_capacity(map.len());
    for (index, key) in map.keys().enumerate() {
        if python::has_other_digits(key) {
            return Err(at.criterion(
                index,
                "INVALID_LEVEL_KEY",
                "digits of a level's key must be 0 to 9",
            ));
        }
        let number = python::float(key);
        if number.is_none() && rules.level_keys == LevelKeys::Sorted {
            return Err(at.criterion(index, "INVALID_LEVEL_KEY", "a level's key must be a number"));
        }
        keys.push(number);
    }
    let mut levels: Vec<Content> = map.into_iter().map(|(_, value)| Content::from(value)).collect();
    let Some(keys) = keys.into_iter().collect::<Option<Vec<f64>>>() else {
        return Ok(levels);
    };
    if let Some(index) = keys.iter().position(|key| key.is_nan()) {
        return Err(at.criterion(index, "INVALID_LEVEL_KEY", "a level's key must not be NaN"));
    }
    let mut order: Vec<(f64, Content)> = keys.into_iter().zip(levels).collect();
    // Not total_cmp: -0 and 0 are equal and keep their order. There is no NaN.
    order.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
    levels = order.into_iter().map(|(_, level)| level).collect();
    Ok(levels)
}

fn noul(at: &At, criteria: Option<Value>, rules: &Rules) -> Result<Criteria, Violation> {
    let mut sides = match criteria {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(_) => {
            return Err(at.criteria(
                "WRONG_TYPE",
                "criteria of a noul must be an object with true and false",
            ));
        }
    };
    let other = sides
        .keys()
        .position(|key| !["true", "false"].contains(&key.as_str()));
    if let Some(index) = other.filter(|_| rules.only_noul_sides) {
        return Err(at.criterion(
            index,
            "UNKNOWN_KEY",
            "criteria of a noul have the keys true and false only",
        ));
    }
    let mut side = |names: [&str; 3]| {
        let [name, ..] = names;
        let key = if rules.noul_words {
            let is_one = |key: &&String| names.contains(&key.to_lowercase().as_str());
            sides.keys().find(is_one).cloned()
        } else {
            Some(name.to_owned())
        };
        key.and_then(|key| sides.shift_remove(&key)).map(Content::from)
    };
    Ok(Criteria::Noul {
        when_true: side(["true", "yes", "1"]),
        when_false: side(["false", "no", "0"]),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn one(text: &str) -> Result<Question, Violation> {
        parse(
            3,
            "q".into(),
            serde_json::from_str(text).unwrap(),
            &Rules {
                listed_options: 2..=26,
                ..Rules::default()
            },
        )
    }

    #[test]
    fn other_words_for_the_sides_and_counted_levels_where_a_family_has_them() {
        let rules = Rules {
            level_keys: LevelKeys::Counted,
            noul_words: true,
            ..Rules::default()
        };
        let with = |text: &str| parse(0, "q".into(), serde_json::from_str(text).unwrap(), &rules);
        let sides = |text: &str| match with(text).unwrap().criteria {
            Criteria::Noul {
                when_true,
                when_false,
            } => [when_true, when_false].map(|side| side.map(|side| side.to_value())),
            _ => panic!(),
        };
        let json = |text: &str| Some(Value::from(text));
        assert_eq!(
            sides(r#"{"type":"noul","criteria":{"No":"n","YES":"y","true":"late","0":"late"}}"#),
            [json("y"), json("n")]
        );
        assert_eq!(
            sides(r#"{"type":"noul","criteria":{"1":null,"other":"x"}}"#),
            [Some(Value::Null), None]
        );
        let levels = with(r#"{"type":"score","criteria":{"0":"a","1":"b"}}"#).unwrap();
        assert!(matches!(levels.criteria, Criteria::Score(levels) if levels.len() == 2));
        for wrong in [
            r#"{"1":"a","0":"b"}"#,
            r#"{"0":"a","2":"b"}"#,
            r#"{"0.0":"a","1":"b"}"#,
        ] {
            let error = with(&format!(r#"{{"type":"score","criteria":{wrong}}}"#)).unwrap_err();
            assert_eq!(error.reason, "INVALID_LEVEL_KEY");
        }
        let sorted = Rules {
            level_keys: LevelKeys::Sorted,
            ..Rules::default()
        };
        let with = |text: &str| parse(0, "q".into(), serde_json::from_str(text).unwrap(), &sorted);
        let error = with(r#"{"type":"score","criteria":{"1":"a","low":"b"}}"#).unwrap_err();
        assert_eq!(
            (error.reason, error.field().as_str()),
            ("INVALID_LEVEL_KEY", "questions[0].criteria[1]")
        );
        let levels = with(r#"{"type":"score","criteria":{"2":"b","-1":"a"}}"#)
            .unwrap()
            .criteria;
        assert_eq!(
            levels,
            Criteria::Score(vec![Content::Text("a".into()), Content::Text("b".into())])
        );
    }

    fn names(text: &str) -> Vec<String> {
        match one(text).unwrap().criteria {
            Criteria::Choice(options) => options.into_iter().map(|option| option.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn levels(criteria: &str) -> Vec<Value> {
        match one(&format!(r#"{{"type":"score","criteria":{criteria}}}"#))
            .unwrap()
            .criteria
        {
            Criteria::Score(levels) => levels.iter().map(Content::to_value).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn listed_names_are_pythons_str() {
        assert_eq!(
            names(r#"{"criteria":["a",1,1.50,true,null,"1","a"]}"#),
            ["a", "1", "1.5", "True", "None"]
        );
        let error = one(r#"{"criteria":["a",[1]]}"#).unwrap_err();
        assert_eq!(error.field(), "questions[3].criteria[1]");
        assert_eq!(
            one(r#"{"criteria":["a","a"]}"#).unwrap_err().reason,
            "OPTION_COUNT"
        );
    }

    #[test]
    fn a_field_that_is_null_hides_its_alias() {
        let question = one(r#"{"type":"noul","instructions":null,"question":"?"}"#).unwrap();
        assert_eq!(question.instructions, Some(Content::Json(Value::Null)));
        assert_eq!(
            one(r#"{"criteria":null,"options":["a","b"]}"#)
                .unwrap_err()
                .reason,
            "MISSING"
        );
    }

    #[test]
    fn level_keys_sort_as_numbers() {
        assert_eq!(
            levels(r#"{"10":"c","-1":"a","1_0":"d","1.5":"b"}"#),
            ["a", "b", "c", "d"]
        );
        assert_eq!(levels(r#"{"0":"a","-0":"b","inf":"c"}"#), ["a", "b", "c"]);
        assert_eq!(
            levels(r#"{"2":"a","x":null,"1":7}"#),
            [Value::from("a"), Value::Null, Value::from(7)]
        );
        for key in ["nan", "\u{661}"] {
            let error = one(&format!(r#"{{"type":"score","criteria":{{"1":1,"{key}":2}}}}"#)).unwrap_err();
            assert_eq!(
                (error.reason, error.field().as_str()),
                ("INVALID_LEVEL_KEY", "questions[3].criteria[1]")
            );
        }
    }

    #[test]
    fn types() {
        for (text, reason) in [
            (r#""box""#, "UNSUPPORTED_TYPE"),
            ("null", "WRONG_TYPE"),
            (r#""Choice""#, "UNSUPPORTED_TYPE"),
        ] {
            let error = one(&format!(r#"{{"type":{text},"criteria":["a","b"]}}"#)).unwrap_err();
            assert_eq!(
                (error.reason, error.field().as_str()),
                (reason, "questions[3].type")
            );
        }
        let sides = one(r#"{"type":"bool","criteria":{"false":{"k":1},"true":null,"maybe":1}}"#)
            .unwrap()
            .criteria;
        let when_false = Some(Content::Json(serde_json::json!({"k": 1})));
        assert_eq!(
            sides,
            Criteria::Noul {
                when_true: Some(Content::Json(Value::Null)),
                when_false
            }
        );
    }
}
