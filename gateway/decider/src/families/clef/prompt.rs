//! Request -> fragments of text. Each fragment is tokenised alone, so that spans of tokens are exact; their concatenation
//! would give other tokens.

use serde_json::{Map, Value};

use crate::json::Dialect;
use crate::{Content, Criteria, Question};

/// Before the state.
pub const PREFIX: &str = "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be exactly one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n";
/// After the questions.
pub const SUFFIX: &str =
    "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:";
const TRUE: &str = "The proposition is true or the answer is yes.";
const FALSE: &str = "The proposition is false or the answer is no.";

/// A piece of the text after the state.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    /// Its text.
    pub text: String,
    /// What its tokens are to the head.
    pub mark: Mark,
}

/// What the tokens of a fragment are to the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing in particular.
    None,
    /// What a question asks.
    Question,
    /// An option of the question before it.
    Option,
}

/// An option as the prompt shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Where it stands in the request.
    pub index: usize,
    /// Its name, its level, `true` or `false`.
    pub id: String,
    /// When it fits.
    pub description: Option<Value>,
}

/// Which row of the head's type embedding a question has, and its name in the prompt.
pub fn kind(criteria: &Criteria) -> (u32, &'static str) {
    match criteria {
        Criteria::Noul { .. } => (0, "noul"),
        Criteria::Choice(_) => (1, "choice"),
        Criteria::Score(_) => (2, "score"),
    }
}

/// Options in the order of the prompt: those of a choice sorted by name, levels as they are, true before false.
pub fn options(criteria: &Criteria) -> Vec<Listed> {
    let described = |content: &Content| Some(content.to_value()).filter(|value| !value.is_null());
    match criteria {
        Criteria::Choice(options) => {
            let listed = |(index, option): (usize, &crate::ChoiceOption)| Listed {
                index,
                id: option.name.clone(),
                description: option.description.as_ref().and_then(described),
            };
            let mut listed: Vec<Listed> = options.iter().enumerate().map(listed).collect();
            // UTF-8 sorts by bytes as by code points.
            listed.sort_by(|a, b| a.id.cmp(&b.id));
            listed
        }
        Criteria::Score(levels) => levels
            .iter()
            .enumerate()
            .map(|(index, level)| Listed {
                index,
                id: index.to_string(),
                description: described(level),
            })
            .collect(),
        Criteria::Noul {
            when_true,
            when_false,
        } => [("true", when_true, TRUE), ("false", when_false, FALSE)]
            .into_iter()
            .enumerate()
            .map(|(index, (id, side, default))| Listed {
                index,
                id: id.to_owned(),
                // An explicit null takes the default away.
                description: side
                    .as_ref()
                    .map_or_else(|| Some(Value::from(default)), described),
            })
            .collect(),
    }
}

/// The state, or an instruction: a string as it is, anything else as compact JSON.
pub fn render(content: &Content) -> String {
    match content.as_text() {
        Some(text) => text.to_owned(),
        None => Dialect::COMPACT.render(&content.to_value()),
    }
}

/// What a question asks: its id where nothing is said.
pub fn instruction(question: &Question) -> String {
    let said = question.instructions.as_ref().filter(|said| !said.is_null());
    let text = said.map(render).unwrap_or_default();
    if text.is_empty() {
        question.id.clone()
    } else {
        text
    }
}

/// Everything between state and suffix.
pub fn schema(questions: &[Question]) -> Vec<Fragment> {
    let mut fragments = Vec::new();
    let mut add = |text: String, mark| fragments.push(Fragment { text, mark });
    add("\n\nSCHEMA FIELDS:\n".to_owned(), Mark::None);
    for (index, question) in questions.iter().enumerate() {
        let (_, kind) = kind(&question.criteria);
        let head = format!(
            "\nFIELD {}\nID: {}\nTYPE: {kind}\nINSTRUCTION: ",
            index + 1,
            question.id
        );
        add(head, Mark::None);
        add(instruction(question), Mark::Question);
        add("\nALLOWED OPTIONS:\n".to_owned(), Mark::None);
        for (number, option) in (1..).zip(options(&question.criteria)) {
            add(format!("OPTION {number}: "), Mark::None);
            let mut meant = Map::new();
            meant.insert("option_id".to_owned(), option.id.into());
            if let Some(description) = option.description {
                meant.insert("description".to_owned(), description);
            }
            add(Dialect::COMPACT.render(&meant.into()), Mark::Option);
            add("\n".to_owned(), Mark::None);
        }
        add("END FIELD\n".to_owned(), Mark::None);
    }
    fragments
}
