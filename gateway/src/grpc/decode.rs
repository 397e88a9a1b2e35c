//! From `ClassifyRequest` to a decision request, strictly: what the proto comments promise is checked here.

use deltagate_decider::{
    ChoiceOption, Content, Criteria, DecisionRequest, JsonLimits, Limits, MAX_VIOLATIONS, PathSegment,
    Question, RequestError, Violation, parse_json, python,
};
use deltagate_proto::v1;

/// Checks and converts. What is missing or unreadable is named first, all of it; then what is outside the limits.
pub(super) fn decode(request: v1::ClassifyRequest, limits: &Limits) -> Result<DecisionRequest, RequestError> {
    let mut found = Found::default();
    let state = request.state.and_then(|state| found.state(state));
    let questions = request
        .questions
        .into_iter()
        .enumerate()
        .filter_map(|(index, question)| found.question(question, &["questions".into(), index.into()]));
    let decoded = DecisionRequest {
        questions: questions.collect(),
        state,
        truncate_state: request.truncate_state,
    };
    RequestError::unless_empty(found.0)?;
    limits.check(&decoded)?;
    Ok(decoded)
}

/// What is wrong so far.
#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, path: &[PathSegment], reason: &'static str, message: impl Into<String>) {
        if self.0.len() < MAX_VIOLATIONS {
            self.0.push(Violation::new(path.iter().cloned(), reason, message));
        }
    }

    fn state(&mut self, state: v1::Content) -> Option<Content> {
        let path = ["state".into()];
        let content = self.content(state, &path)?;
        let empty = content.is_null()
            || content
                .as_text()
                .is_some_and(|text| python::strip(text).is_empty());
        if empty {
            self.add(&path, "EMPTY_STATE", "the state is empty");
        }
        Some(content)
    }

    fn question(&mut self, question: v1::Question, path: &[PathSegment]) -> Option<Question> {
        let instructions = question
            .instructions
            .and_then(|content| self.content(content, &under(path, ["instructions"])));
        let criteria = match question.criteria {
            None => {
                self.add(path, "MISSING", "one of choice, score, noul is required");
                return None;
            }
            Some(v1::question::Criteria::Choice(choice)) => {
                let path = under(path, ["choice", "options"]);
                Criteria::Choice(self.options(choice.options, &path))
            }
            Some(v1::question::Criteria::Score(score)) => {
                let path = under(path, ["score", "levels"]);
                Criteria::Score(self.each(score.levels, &path))
            }
            Some(v1::question::Criteria::Noul(noul)) => {
                let mut side = |content: Option<v1::Content>, name| {
                    content.and_then(|content| self.content(content, &under(path, ["noul", name])))
                };
                Criteria::Noul {
                    when_true: side(noul.true_description, "true_description"),
                    when_false: side(noul.false_description, "false_description"),
                }
            }
        };
        Some(Question {
            id: question.id,
            instructions,
            criteria,
        })
    }

    fn options(&mut self, options: Vec<v1::ChoiceOption>, path: &[PathSegment]) -> Vec<ChoiceOption> {
        let mut decoded = Vec::with_capacity(options.len());
        for (index, option) in options.into_iter().enumerate() {
            let description = option.description.and_then(|content| {
                let mut path = path.to_vec();
                path.extend([index.into(), "description".into()]);
                self.content(content, &path)
            });
            decoded.push(ChoiceOption {
                name: option.name,
                description,
            });
        }
        decoded
    }

    fn each(&mut self, contents: Vec<v1::Content>, path: &[PathSegment]) -> Vec<Content> {
        let mut decoded = Vec::with_capacity(contents.len());
        for (index, content) in contents.into_iter().enumerate() {
            let mut path = path.to_vec();
            path.push(index.into());
            decoded.extend(self.content(content, &path));
        }
        decoded
    }

    fn content(&mut self, content: v1::Content, path: &[PathSegment]) -> Option<Content> {
        match content.kind {
            None => {
                self.add(path, "MISSING", "one of text, json is required");
                None
            }
            Some(v1::content::Kind::Text(text)) => Some(Content::Text(text)),
            Some(v1::content::Kind::Json(text)) => match parse_json(&text, &JsonLimits::STRICT) {
                Ok(value) => Some(Content::Json(value)),
                Err(error) => {
                    self.add(&under(path, ["json"]), error.kind.reason(), error.to_string());
                    None
                }
            },
        }
    }
}

fn under<const N: usize>(path: &[PathSegment], keys: [&'static str; N]) -> Vec<PathSegment> {
    path.iter()
        .cloned()
        .chain(keys.into_iter().map(PathSegment::from))
        .collect()
}
