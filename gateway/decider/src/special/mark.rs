//! Cuts special-token text by a mark.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::places::{Place, each_text};
use super::violations;
use crate::{
    ChoiceOption, Content, Criteria, DecisionRequest, Family, MAX_VIOLATIONS, Question, RequestError,
    RequestErrorKind, Shown, Tokenizer,
};

/// Where the mark is taken from: the cuneiform signs. They are assigned letters, so that every spelling of a text (JSON,
/// Python's `repr`) leaves them as they are, nothing normalises or strips them, and hardly any request has even one.
const MARKS: std::ops::RangeInclusive<char> = '\u{12000}'..='\u{12399}';

const CANNOT: &str = "the text spells a special token of the model and cannot be encoded as ordinary text";

/// The request with marks in all of its special text, and the mark. `found` is where there is some.
///
/// Refuses what cannot be cut: a token of one character, a name that marks would make longer than is allowed, and every
/// field of a request that holds all possible marks.
pub(super) fn marked(
    request: &DecisionRequest,
    family: &dyn Family,
    tokenizer: &dyn Tokenizer,
    found: &[Place],
) -> Result<(DecisionRequest, char), RequestError> {
    let Some(mark) = unused(request) else {
        return Err(refused(found));
    };
    let mut stuck = Vec::new();
    each_text(request, &mut |place, text| {
        if found.contains(&place) && stuck.last() != Some(&place) && cuts(text, tokenizer).is_none() {
            stuck.push(place);
        }
    });
    if !stuck.is_empty() {
        return Err(refused(&stuck));
    }
    let marker = Marker {
        tokenizer,
        mark,
        shows: family.shows(),
    };
    let marked = marker.request(request);
    let limits = family.systemone_rules().limits;
    each_text(&marked, &mut |place, text| {
        let long = match place {
            Place::Id(_) => text.len() > limits.max_question_id_bytes,
            Place::OptionName(..) => text.chars().count() > limits.max_option_name_chars,
            _ => false,
        };
        if long && text.contains(mark) {
            stuck.push(place);
        }
    });
    if stuck.is_empty() {
        Ok((marked, mark))
    } else {
        Err(refused(&stuck))
    }
}

fn refused(places: &[Place]) -> RequestError {
    let mut violations = violations(places, CANNOT);
    violations.truncate(MAX_VIOLATIONS);
    RequestError {
        kind: RequestErrorKind::Unanswerable,
        violations,
    }
}

/// The first mark that stands nowhere in the request.
fn unused(request: &DecisionRequest) -> Option<char> {
    let mut used = BTreeSet::new();
    each_text(request, &mut |_, text| {
        used.extend(text.chars().filter(|c| MARKS.contains(c)));
    });
    MARKS.into_iter().find(|mark| !used.contains(mark))
}

/// Where a text has to be cut so that no piece of it has special text: byte positions inside of it. `None` where that
/// cannot be: a character alone spells a token.
fn cuts(text: &str, tokenizer: &dyn Tokenizer) -> Option<BTreeSet<usize>> {
    let mut cuts = BTreeSet::new();
    // What is left of one token may spell another, so that pieces are searched again.
    let whole = 0..text.len();
    let mut pieces = vec![whole];
    while let Some(piece) = pieces.pop() {
        let mut start = piece.start;
        for range in tokenizer.added_text(text.get(piece.clone())?) {
            let (from, to) = (piece.start + range.start, piece.start + range.end);
            let at = from + text.get(from..to)?.chars().next()?.len_utf8();
            if at >= to {
                return None;
            }
            cuts.insert(at);
            pieces.push(start..at);
            start = at;
        }
        if start > piece.start {
            pieces.push(start..piece.end);
        }
    }
    Some(cuts)
}

/// A text with a mark at each of these positions.
fn insert(text: &str, cuts: &BTreeSet<usize>, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + cuts.len() * mark.len_utf8());
    let mut start = 0;
    for cut in cuts {
        out.push_str(text.get(start..*cut).unwrap_or_default());
        out.push(mark);
        start = *cut;
    }
    out.push_str(text.get(start..).unwrap_or_default());
    out
}

struct Marker<'t> {
    tokenizer: &'t dyn Tokenizer,
    mark: char,
    shows: Shown,
}

impl Marker<'_> {
    fn request(&self, request: &DecisionRequest) -> DecisionRequest {
        let mut marked = request.clone();
        marked.state = self.maybe(request.state.as_ref());
        if self.shows >= Shown::QuestionIds {
            let ids: Vec<&str> = request.questions.iter().map(|q| q.id.as_str()).collect();
            let ids = self.siblings(&ids);
            for (question, id) in marked.questions.iter_mut().zip(ids) {
                question.id = id;
            }
        }
        if self.shows >= Shown::Questions {
            marked
                .questions
                .iter_mut()
                .for_each(|question| self.question(question));
        }
        marked
    }

    fn question(&self, question: &mut Question) {
        question.instructions = self.maybe(question.instructions.as_ref());
        match &mut question.criteria {
            Criteria::Choice(options) => self.options(options),
            Criteria::Score(levels) => levels.iter_mut().for_each(|level| *level = self.content(level)),
            Criteria::Noul {
                when_true,
                when_false,
            } => {
                *when_true = self.maybe(when_true.as_ref());
                *when_false = self.maybe(when_false.as_ref());
            }
        }
    }

    fn options(&self, options: &mut [ChoiceOption]) {
        let names: Vec<&str> = options.iter().map(|option| option.name.as_str()).collect();
        let names = self.siblings(&names);
        for (option, name) in options.iter_mut().zip(names) {
            option.name = name;
            option.description = self.maybe(option.description.as_ref());
        }
    }

    fn maybe(&self, content: Option<&Content>) -> Option<Content> {
        content.map(|content| self.content(content))
    }

    fn content(&self, content: &Content) -> Content {
        match content {
            Content::Text(text) => Content::Text(self.text(text)),
            Content::Json(value) => Content::Json(self.value(value)),
        }
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => {
                let keys: Vec<&str> = map.keys().map(String::as_str).collect();
                let values = map.values().map(|value| self.value(value));
                self.siblings(&keys)
                    .into_iter()
                    .zip(values)
                    .collect::<Map<_, _>>()
                    .into()
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        insert(text, &self.cuts(text), self.mark)
    }

    fn cuts(&self, text: &str) -> BTreeSet<usize> {
        // What cannot be cut has been refused.
        cuts(text, self.tokenizer).unwrap_or_default()
    }

    /// Texts that a family may sort: keys of an object, names of options. They keep their order, because where one is cut,
    /// those that begin like it are cut too.
    fn siblings(&self, texts: &[&str]) -> Vec<String> {
        let mut cuts: Vec<BTreeSet<usize>> = texts.iter().map(|text| self.cuts(text)).collect();
        if cuts.iter().any(|cuts| !cuts.is_empty()) {
            // In order, all that begin alike are neighbours: a cut walks from one to the next, forwards, then backwards.
            let mut order: Vec<usize> = (0..texts.len()).collect();
            order.sort_by_key(|index| texts.get(*index));
            let forwards: Vec<(usize, usize)> = order.windows(2).map(|pair| (pair[0], pair[1])).collect();
            let backwards = forwards.iter().rev().map(|(a, b)| (*b, *a));
            for (from, to) in forwards.iter().copied().chain(backwards) {
                let (a, b) = (texts[from].as_bytes(), texts[to].as_bytes());
                let alike = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                // A cut is inside of a text; at its end there is nothing to compare.
                let shared: Vec<usize> = cuts[from]
                    .range(..=alike)
                    .copied()
                    .filter(|cut| *cut < b.len())
                    .collect();
                cuts[to].extend(shared);
            }
        }
        texts
            .iter()
            .zip(&cuts)
            .map(|(text, cuts)| insert(text, cuts, self.mark))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::special::AddedTokens;
    use crate::{TokenizeError, json::Dialect};
    use serde_json::json;
    use std::ops::Range;

    struct Finds(AddedTokens);

    impl Tokenizer for Finds {
        fn encode(&self, _: &str) -> Result<Vec<u32>, TokenizeError> {
            Err(TokenizeError)
        }

        fn added_text(&self, text: &str) -> Vec<Range<usize>> {
            self.0.find(text)
        }
    }

    fn finds(tokens: &[&str]) -> Finds {
        Finds(AddedTokens::new(tokens).unwrap())
    }

    fn at(cuts: Option<BTreeSet<usize>>) -> Option<Vec<usize>> {
        cuts.map(|cuts| cuts.into_iter().collect())
    }

    #[test]
    fn every_token_is_cut_also_those_inside_of_others() {
        let tokens = finds(&["<|a|>", "|a|>", "éx", "  "]);
        assert_eq!(at(cuts("..<|a|>.éx", &tokens)), Some(vec![3, 4, 10]));
        assert_eq!(at(cuts("   ", &tokens)), Some(vec![1, 2]));
        assert_eq!(at(cuts("<|a|", &tokens)), Some(vec![]));
        assert_eq!(at(cuts("a\nb", &finds(&["\n"]))), None);
    }

    #[test]
    fn sorted_keys_keep_their_order() {
        let tokens = finds(&["<|a|>"]);
        let marker = Marker {
            tokenizer: &tokens,
            mark: '\u{12000}',
            shows: Shown::QuestionIds,
        };
        let value = json!({"<|a|>": 1, "<zz": 2, "<": 3, "é": {"b<|a|>": 0, "b<|": 1}, "<|a|>!": 4, "<\u{10ffff}": 5, "=": 6});
        let marked = marker.value(&value);
        let clean = |text: &str| text.replace('\u{12000}', "");
        assert_eq!(
            clean(&marked.to_string()),
            value.to_string(),
            "the order of the request stays"
        );
        assert!(marked.to_string().contains("<\u{12000}|a|>\""));
        let sorted = Dialect::SORTED.render(&marked);
        assert_eq!(clean(&sorted), Dialect::SORTED.render(&value));
        assert!(!sorted.contains("<|a|>") && sorted.contains("\"<\":"), "{sorted}");
    }
}
