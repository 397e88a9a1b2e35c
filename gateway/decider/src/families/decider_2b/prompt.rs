//! Questions -> rows, and rows -> fragments of text that are encoded one by one.

use std::sync::LazyLock;

use regex::Regex;

use super::labels::LABELS;
use crate::families::index_annotation::annotate;
use crate::json::Dialect;
use crate::{Content, Criteria, PathSegment, Question, Violation};

const NOUL_INSTRUCTIONS: &str = "Which answer fits the context?";
/// Most options that are written as one text. Of more, each label is put in as a token.
const NARROW: usize = 10;

/// One pass: a question with options, of which one is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of the question in the request.
    pub question: usize,
    /// The level that is judged, in a score.
    pub level: Option<usize>,
    /// What is asked.
    pub text: String,
    /// In label order.
    pub options: Vec<String>,
}

/// A piece of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Encoded by itself.
    Text(String),
    /// The token of this label.
    Label(usize),
}

/// The rows of question number `index`: one, or one for each level of a score.
pub fn rows(index: usize, question: &Question) -> Result<Vec<Row>, Violation> {
    let missing =
        |rest: &[PathSegment], message: &str| Violation::in_question(index, rest, "MISSING", message);
    let asked = question.instructions.as_ref();
    let row = |level, text, options| Row {
        question: index,
        level,
        text,
        options,
    };
    let required = || {
        let text = asked.map(shown).filter(|text| !text.is_empty());
        text.ok_or_else(|| {
            missing(
                &["instructions".into()],
                "instructions are required for a choice or score question",
            )
        })
    };
    match &question.criteria {
        Criteria::Choice(options) => {
            if options.len() < 2 {
                let message = format!(
                    "a choice has 2 to {} options, got {}",
                    LABELS.len(),
                    options.len()
                );
                let path = ["choice".into(), "options".into()];
                return Err(Violation::in_question(index, &path, "OPTION_COUNT", message));
            }
            let named = options
                .iter()
                .map(|option| named(&option.name, option.description.as_ref()));
            Ok(vec![row(None, required()?, named.collect())])
        }
        Criteria::Score(levels) => {
            let asked = required()?;
            let judged = levels.iter().enumerate().map(|(level, content)| {
                let proposed = shown(content);
                let proposed = without_number(&proposed);
                let text = format!("{asked}\nProposed answer: {proposed}\nDoes the proposed answer fit?");
                row(Some(level), text, vec!["no".to_owned(), "yes".to_owned()])
            });
            Ok(judged.collect())
        }
        Criteria::Noul {
            when_true,
            when_false,
        } => {
            let text = match asked.filter(|asked| !is_blank(asked)) {
                Some(asked) => shown(asked),
                None if [when_true, when_false].into_iter().flatten().all(is_blank) => {
                    let message = "instructions, or a description of a side, are required";
                    return Err(missing(&["instructions".into()], message));
                }
                None => NOUL_INSTRUCTIONS.to_owned(),
            };
            let options = vec![named("no", when_false.as_ref()), named("yes", when_true.as_ref())];
            Ok(vec![row(None, text, options)])
        }
    }
}

/// The state, before every row.
pub fn context_text(state: Option<&Content>) -> String {
    let state = match state {
        None => String::new(),
        Some(content) => match content.as_text() {
            Some(text) => text.to_owned(),
            None => Dialect::PLAIN.render(&annotate(&content.to_value())),
        },
    };
    format!("Context:\n{state}")
}

/// What follows the context, in order.
pub fn fragments(row: &Row) -> Vec<Fragment> {
    let head = format!("\n\nQuestion: {}\nOptions:", row.text);
    let tail = "\nAnswer: (";
    if row.options.len() <= NARROW {
        let mut text = head;
        for (label, option) in LABELS.iter().zip(&row.options) {
            text.push_str(&format!("\n({label}) {option}"));
        }
        text.push_str(tail);
        return vec![Fragment::Text(text)];
    }
    let mut out = vec![Fragment::Text(head)];
    for (label, option) in row.options.iter().enumerate() {
        out.push(Fragment::Text("\n(".to_owned()));
        out.push(Fragment::Label(label));
        out.push(Fragment::Text(format!(") {option}")));
    }
    out.push(Fragment::Text(tail.to_owned()));
    out
}

/// Text as it is; anything else, null included, as JSON in its own order.
pub fn shown(content: &Content) -> String {
    match content.as_text() {
        Some(text) => text.to_owned(),
        None => Dialect::PLAIN.render(&content.to_value()),
    }
}

fn named(name: &str, description: Option<&Content>) -> String {
    match description.filter(|content| !is_blank(content)) {
        None => name.to_owned(),
        Some(content) => format!("{name}: {}", shown(content)),
    }
}

/// Null or the empty string.
fn is_blank(content: &Content) -> bool {
    content.is_null() || content.as_text() == Some("")
}

/// Legends often carry the number of a level; a level that is judged alone must not.
fn without_number(text: &str) -> &str {
    // Python's white space has four separators that Unicode's has not.
    #[expect(clippy::expect_used, reason = "a constant pattern, compiled by the tests")]
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\A[\s\x1c-\x1f]*-?\d+[\s\x1c-\x1f]*:[\s\x1c-\x1f]*").expect("the pattern is valid")
    });
    NUMBER
        .find(text)
        .and_then(|number| text.get(number.end()..))
        .unwrap_or(text)
}
