//! Finds the added tokens of a tokenizer in a text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::FamilyError;

/// The added tokens of a tokenizer, to be searched for all at once.
#[derive(Clone, Debug)]
pub struct AddedTokens(Option<AhoCorasick>);

impl AddedTokens {
    /// Of these contents; empty ones match nothing.
    pub fn new<T: AsRef<str>>(contents: impl IntoIterator<Item = T>) -> Result<Self, FamilyError> {
        let contents: Vec<T> = contents
            .into_iter()
            .filter(|content| !content.as_ref().is_empty())
            .collect();
        if contents.is_empty() {
            return Ok(AddedTokens(None));
        }
        let contents = contents.iter().map(AsRef::as_ref);
        // Of several tokens that begin at one place a tokenizer takes the longest.
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(contents)
            .map_err(|_| FamilyError::Tokenizer {
                reason: "it has too many added tokens to search for".into(),
            })?;
        Ok(AddedTokens(Some(search)))
    }

    /// Where they stand: byte ranges, left to right, without overlap.
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        match &self.0 {
            None => Vec::new(),
            Some(search) => search.find_iter(text).map(|found| found.range()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_longest_of_those_that_begin_first_is_found() {
        let tokens = AddedTokens::new(["<a>", "<a><b>", "b>", ""]).unwrap();
        assert_eq!(tokens.find("é<a><b><a>b>"), [2..8, 8..11, 11..13]);
        assert!(tokens.find("< a>").is_empty());
        assert!(AddedTokens::new([""]).unwrap().find("").is_empty());
    }
}
