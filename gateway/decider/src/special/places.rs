//! Every text of a request, with its field.

use serde_json::Value;

use crate::{Content, Criteria, DecisionRequest, PathSegment, Shown};

/// A field of a request that holds text of the caller. Numbers are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    State,
    Id(usize),
    Instructions(usize),
    OptionName(usize, usize),
    Description(usize, usize),
    Level(usize, usize),
    WhenTrue(usize),
    WhenFalse(usize),
}

impl Place {
    /// What a family has to show for this field to be in its prompts.
    pub(super) fn shown(self) -> Shown {
        match self {
            Place::State => Shown::State,
            Place::Id(_) => Shown::QuestionIds,
            _ => Shown::Questions,
        }
    }

    /// In the names of `deltagate.v1`.
    pub(super) fn path(self) -> Vec<PathSegment> {
        let within =
            |question: usize, rest: &[PathSegment]| [&["questions".into(), question.into()], rest].concat();
        match self {
            Place::State => vec!["state".into()],
            Place::Id(q) => within(q, &["id".into()]),
            Place::Instructions(q) => within(q, &["instructions".into()]),
            Place::OptionName(q, o) => {
                within(q, &["choice".into(), "options".into(), o.into(), "name".into()])
            }
            Place::Description(q, o) => within(
                q,
                &["choice".into(), "options".into(), o.into(), "description".into()],
            ),
            Place::Level(q, level) => within(q, &["score".into(), "levels".into(), level.into()]),
            Place::WhenTrue(q) => within(q, &["noul".into(), "true_description".into()]),
            Place::WhenFalse(q) => within(q, &["noul".into(), "false_description".into()]),
        }
    }
}

/// Shows every text, keys of JSON documents too, field by field in request order.
pub(super) fn each_text(request: &DecisionRequest, see: &mut dyn FnMut(Place, &str)) {
    let content = |place: Place, content: Option<&Content>, see: &mut dyn FnMut(Place, &str)| match content {
        None => {}
        Some(Content::Text(text)) => see(place, text),
        Some(Content::Json(value)) => each_in(value, &mut |text| see(place, text)),
    };
    content(Place::State, request.state.as_ref(), see);
    for (q, question) in request.questions.iter().enumerate() {
        see(Place::Id(q), &question.id);
        content(Place::Instructions(q), question.instructions.as_ref(), see);
        match &question.criteria {
            Criteria::Choice(options) => {
                for (o, option) in options.iter().enumerate() {
                    see(Place::OptionName(q, o), &option.name);
                    content(Place::Description(q, o), option.description.as_ref(), see);
                }
            }
            Criteria::Score(levels) => {
                for (index, level) in levels.iter().enumerate() {
                    content(Place::Level(q, index), Some(level), see);
                }
            }
            Criteria::Noul {
                when_true,
                when_false,
            } => {
                content(Place::WhenTrue(q), when_true.as_ref(), see);
                content(Place::WhenFalse(q), when_false.as_ref(), see);
            }
        }
    }
}

fn each_in(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_in(item, see)),
        Value::Object(map) => {
            for (key, value) in map {
                see(key);
                each_in(value, see);
            }
        }
    }
}
