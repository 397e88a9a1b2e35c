//! Limits on the shape of a request, the same for both faces of the gateway.

use std::collections::HashSet;

use crate::{Criteria, DecisionRequest, PathSegment, RequestError, Violation, python};

/// Limits on the shape of a request. The default is the contract's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Questions of one request, at least 1.
    pub max_questions: usize,
    /// UTF-8 bytes of a question's id, at least 1.
    pub max_question_id_bytes: usize,
    /// Options of a choice, at least 1.
    pub max_options: usize,
    /// Characters (code points) of an option's name.
    pub max_option_name_chars: usize,
    /// Fewest levels of a score.
    pub min_levels: usize,
    /// Most levels of a score.
    pub max_levels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_questions: 64,
            max_question_id_bytes: 200,
            max_options: 255,
            max_option_name_chars: 200,
            min_levels: 2,
            max_levels: 10,
        }
    }
}

impl Limits {
    /// Finds everything in `request` that is outside the limits.
    pub fn check(&self, request: &DecisionRequest) -> Result<(), RequestError> {
        let mut found = Vec::new();
        if request.state.is_none() {
            found.push(Violation::new(["state".into()], "MISSING", "state is required"));
        }
        let count = request.questions.len();
        if count == 0 || count > self.max_questions {
            let message = format!("1 to {} questions are allowed, got {count}", self.max_questions);
            found.push(Violation::new(["questions".into()], "QUESTION_COUNT", message));
            return RequestError::unless_empty(found);
        }
        let mut ids = HashSet::new();
        for (index, question) in request.questions.iter().enumerate() {
            let at =
                |rest: &[PathSegment], reason, message| Violation::in_question(index, rest, reason, message);
            let bytes = question.id.len();
            if bytes == 0 || bytes > self.max_question_id_bytes {
                let message = format!("an id has 1 to {} bytes, got {bytes}", self.max_question_id_bytes);
                found.push(at(&["id".into()], "INVALID_ID", message));
            } else if !ids.insert(question.id.as_str()) {
                found.push(at(
                    &["id".into()],
                    "DUPLICATE_ID",
                    "the id of an earlier question is used again".into(),
                ));
            }
            match &question.criteria {
                Criteria::Choice(options) => {
                    let names: Vec<&str> = options.iter().map(|option| option.name.as_str()).collect();
                    self.check_options(index, &names, &mut found);
                }
                Criteria::Score(levels) => {
                    let count = levels.len();
                    if count < self.min_levels || count > self.max_levels {
                        let (min, max) = (self.min_levels, self.max_levels);
                        let message = format!("a score has {min} to {max} levels, got {count}");
                        found.push(at(&["score".into(), "levels".into()], "LEVEL_COUNT", message));
                    }
                }
                Criteria::Noul { .. } => {}
            }
        }
        RequestError::unless_empty(found)
    }

    fn check_options(&self, question: usize, names: &[&str], found: &mut Vec<Violation>) {
        let list = ["choice".into(), "options".into()];
        let count = names.len();
        if count == 0 || count > self.max_options {
            let message = format!("a choice has 1 to {} options, got {count}", self.max_options);
            found.push(Violation::in_question(question, &list, "OPTION_COUNT", message));
            return;
        }
        let mut seen = HashSet::new();
        for (index, name) in names.iter().enumerate() {
            let fault = if python::strip(name).is_empty() {
                Some(("INVALID_OPTION_NAME", "an option name is blank".to_owned()))
            } else if name.contains(['\n', '\r']) {
                Some((
                    "INVALID_OPTION_NAME",
                    "an option name has a line break".to_owned(),
                ))
            } else if name.chars().count() > self.max_option_name_chars {
                let message = format!(
                    "an option name has at most {} characters",
                    self.max_option_name_chars
                );
                Some(("INVALID_OPTION_NAME", message))
            } else if !seen.insert(*name) {
                Some((
                    "DUPLICATE_OPTION",
                    "the name of an earlier option is used again".to_owned(),
                ))
            } else {
                None
            };
            if let Some((reason, message)) = fault {
                let [choice, options] = list.clone();
                let path = [choice, options, index.into(), "name".into()];
                found.push(Violation::in_question(question, &path, reason, message));
            }
        }
    }
}
