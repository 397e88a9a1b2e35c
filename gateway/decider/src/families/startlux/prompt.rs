//! Questions -> prompts, byte for byte as the models were trained ("render version 3").

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::chat::chat;
use crate::families::index_annotation::annotate;
use crate::json::Dialect;
use crate::python::{is_whitespace, strip};
use crate::{ChoiceOption, Content, Criteria, Question, Violation};

/// Names of options in a prompt, in order.
pub const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

const SYSTEM: &str =
    "Apply the criterion to the evidence. Choose exactly one listed option. Answer with its letter only.";
const NOUL_INSTRUCTIONS: &str = "Which answer fits the evidence?";

/// A question, reduced to what a prompt shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether bare ids of options may be left out: only in choices.
    pub hides_bare_ids: bool,
    /// Stripped, not empty.
    pub instructions: String,
    /// In request order; noul: true, false.
    pub options: Vec<RecordOption>,
}

/// An option, reduced to what a prompt shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOption {
    /// Name of a choice, `"0"`... of a score, `true` and `false` of a noul.
    pub id: String,
    /// As shown: the id, but `yes` and `no` in a noul.
    pub name: String,
    /// Stripped, not empty.
    pub criterion: Option<String>,
}

impl Record {
    /// Of question number `index`.
    pub fn new(index: usize, question: &Question) -> Result<Self, Violation> {
        let instructions = question.instructions.as_ref().and_then(text);
        let instructions = match (&question.criteria, instructions) {
            (_, Some(instructions)) => instructions,
            (Criteria::Noul { .. }, None) => NOUL_INSTRUCTIONS.to_owned(),
            (Criteria::Choice(_) | Criteria::Score(_), None) => {
                let message = "instructions are required for a choice or score question";
                return Err(Violation::in_question(
                    index,
                    &["instructions".into()],
                    "MISSING",
                    message,
                ));
            }
        };
        let option = |id: &str, name: &str, criterion: Option<&Content>| RecordOption {
            id: id.to_owned(),
            name: name.to_owned(),
            criterion: criterion.and_then(text),
        };
        let (hides_bare_ids, options) = match &question.criteria {
            Criteria::Choice(options) => {
                let shown = |o: &ChoiceOption| option(&o.name, &o.name, o.description.as_ref());
                (true, options.iter().map(shown).collect())
            }
            Criteria::Score(levels) => {
                let shown =
                    |(i, level): (usize, &Content)| option(&i.to_string(), &i.to_string(), Some(level));
                (false, levels.iter().enumerate().map(shown).collect())
            }
            Criteria::Noul {
                when_true,
                when_false,
            } => (
                false,
                vec![
                    option("true", "yes", when_true.as_ref()),
                    option("false", "no", when_false.as_ref()),
                ],
            ),
        };
        Ok(Record {
            hides_bare_ids,
            instructions,
            options,
        })
    }
}

/// The state as a prompt shows it, before `(none)` stands in for a blank one.
pub fn state_text(state: Option<&Content>) -> String {
    match state {
        None => String::new(),
        Some(content) => match (content.as_text(), content) {
            (Some(text), _) => text.to_owned(),
            (None, Content::Json(value)) if !is_empty(value) => Dialect::PLAIN.render(&annotate(value)),
            _ => String::new(),
        },
    }
}

/// The user's turn: the options of `record` that `options` names, lettered in that order.
pub fn user_text(state: &str, record: &Record, options: &[usize]) -> String {
    let options: Vec<&RecordOption> = options
        .iter()
        .filter_map(|option| record.options.get(*option))
        .collect();
    let hide = record.hides_bare_ids && options.iter().all(|o| is_bare(&o.id) && o.criterion.is_some());
    let evidence = if strip(state).is_empty() { "(none)" } else { state };
    let mut out = format!(
        "Evidence:\n{evidence}\n\nQuestion: {}\nOptions:\n",
        record.instructions
    );
    for (index, (letter, option)) in LETTERS.chars().zip(options).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        out.push(letter);
        out.push_str(") ");
        match &option.criterion {
            Some(criterion) if hide => out.push_str(criterion),
            Some(criterion) if normal(criterion) != normal(&option.name) => {
                out.push_str(&option.name);
                out.push_str(": ");
                out.push_str(criterion);
            }
            _ => out.push_str(&option.name),
        }
    }
    out
}

/// The whole prompt.
pub fn prompt(state: &str, record: &Record, options: &[usize]) -> String {
    chat(Some(SYSTEM), &user_text(state, record, options))
}

/// A prompt to try the letters on.
pub(super) fn probe() -> String {
    let option = |id: &str, name: &str| RecordOption {
        id: id.to_owned(),
        name: name.to_owned(),
        criterion: None,
    };
    let options = vec![option("true", "yes"), option("false", "no")];
    prompt(
        "s",
        &Record {
            hides_bare_ids: false,
            instructions: "q".to_owned(),
            options,
        },
        &[0, 1],
    )
}

/// Text of an instruction or a criterion; `None` if there is none in it.
fn text(content: &Content) -> Option<String> {
    let text = match (content.as_text(), content) {
        (Some(text), _) => strip(text).to_owned(),
        (None, Content::Json(Value::Null)) => return None,
        (None, content) => strip(&Dialect::PLAIN.render(&content.to_value())).to_owned(),
    };
    (!text.is_empty()).then_some(text)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Lower case, with runs of white space, `_` and `-` as one space.
fn normal(text: &str) -> String {
    let separator = |c: char| is_whitespace(c) || c == '_' || c == '-';
    text.split(separator)
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .to_lowercase()
}

/// An id that says nothing and could be taken for an answer's letter: `a`, `(B)`, `12.`, `option_3`.
fn is_bare(id: &str) -> bool {
    // İ, ı, ſ and K (Kelvin) are what Python's IGNORECASE adds to the ASCII letters.
    #[expect(clippy::expect_used, reason = "a constant pattern, compiled by the tests")]
    static BARE: LazyLock<Regex> = LazyLock::new(|| {
        let letter = r"\(?[A-Za-z\u{130}\u{131}\u{17f}\u{212a}][).]?";
        let number = r"\(?\d{1,3}[).]?";
        let option = r"[oO][pP][tT](?:[iI\u{130}\u{131}][oO][nN])?[_ ]?\d{1,3}";
        Regex::new(&format!(r"\A(?:{letter}|{number}|{option})\z")).expect("the pattern is valid")
    });
    BARE.is_match(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bare_ids() {
        for id in [
            "a",
            "Z",
            "(b",
            "c)",
            "(d.",
            "7",
            "(123)",
            "999.",
            "option1",
            "Option_22",
            "OPT 333",
            "opt4",
            "\u{212a})",
            "opt\u{131}on1",
        ] {
            assert!(is_bare(id), "{id}");
        }
        for id in [
            "",
            "ab",
            "1000",
            "é",
            "a).",
            "((a",
            "option",
            "option__1",
            "opt-1",
            "a ",
            "optio1",
            "option1)",
        ] {
            assert!(!is_bare(id), "{id}");
        }
    }

    #[test]
    fn names_and_criteria_compare_after_normalising() {
        assert_eq!(normal(" Re-open__the\u{1f}\u{3000}CASE- "), "re open the case");
        assert_eq!(normal("-_-"), "");
    }

    #[test]
    fn long_arrays_show_indices() {
        let eight = json!({"a": [{"k": 1}, 2, [], {"_index": "own", "z": 0}, {"y": 1, "_index": 9}, null, "s", [1]], "b": [1]});
        assert_eq!(
            state_text(Some(&Content::Json(eight))),
            concat!(
                r#"{"a": [{"_index": 0, "k": 1}, {"_index": 1, "value": 2}, {"_index": 2, "value": []}, {"_index": "own", "z": 0}, "#,
                r#"{"_index": 9, "y": 1}, {"_index": 5, "value": null}, {"_index": 6, "value": "s"}, {"_index": 7, "value": [1]}], "b": [1]}"#
            )
        );
    }

    #[test]
    fn empty_states() {
        for state in [
            None,
            Some(json!(null)),
            Some(json!({})),
            Some(json!([])),
            Some(json!("")),
        ] {
            assert_eq!(
                state_text(state.clone().map(Content::Json).as_ref()),
                "",
                "{state:?}"
            );
        }
        assert_eq!(state_text(Some(&Content::Json(json!([[]])))), "[[]]");
        assert_eq!(state_text(Some(&Content::Json(json!(false)))), "false");
        assert_eq!(state_text(Some(&Content::Json(json!(" raw ")))), " raw ");
    }
}
