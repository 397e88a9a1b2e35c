//! The checkpoint's own tokenizer.json, and the brake that keeps a request's tokenising within its deadline.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use deltagate_decider::{FamilyError, TokenizeError, Tokenizer, special::AddedTokens};
use tokenizers::{OffsetReferential, OffsetType};

/// A Hugging Face tokenizer. Text that spells a special token is parsed as that token; none is added.
pub struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    added: Added,
}

/// How special-token text is found.
enum Added {
    /// The tokens are looked for in a text as it stands: their contents are all there is to know.
    AsWritten(AddedTokens),
    /// Some are looked for in the normalised text, which only the tokenizer knows.
    Normalized,
}

/// Why a tokenizer.json cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// It is not a tokenizer that the `tokenizers` crate reads.
    #[error("tokenizer.json cannot be read")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Its cutting could not be switched off.
    #[error("tokenizer.json cuts text and cannot be told not to")]
    Truncating,
    /// Its special tokens cannot be looked for.
    #[error(transparent)]
    AddedTokens(#[from] FamilyError),
}

impl HfTokenizer {
    /// Reads the bytes of a tokenizer.json. CPU-heavy: some 100 ms for 250,000 tokens.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(TokenizerError::Unreadable)?;
        // A file may ask for cutting and padding; both would change a prompt silently.
        tokenizer
            .with_truncation(None)
            .map_err(|_| TokenizerError::Truncating)?;
        tokenizer.with_padding(None);
        let added = Added::of(&tokenizer)?;
        Ok(Self {
            inner: tokenizer,
            added,
        })
    }
}

impl Added {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, FamilyError> {
        let tokens = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let normalizes = tokenizer.get_normalizer().is_some();
        if normalizes && tokens.values().any(|token| token.normalized) {
            return Ok(Self::Normalized);
        }
        let contents = tokens.values().map(|token| token.content.as_str());
        AddedTokens::new(contents).map(Self::AsWritten)
    }
}

impl Tokenizer for HfTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        // The error of the crate may quote the text, so it is not carried on.
        let encoding = self.inner.encode_fast(text, false).map_err(|_| TokenizeError)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn added_text(&self, text: &str) -> Vec<Range<usize>> {
        match &self.added {
            Added::AsWritten(tokens) => tokens.find(text),
            Added::Normalized => {
                let vocabulary = self.inner.get_added_vocabulary();
                let cut = vocabulary.extract_and_normalize(self.inner.get_normalizer(), text);
                cut.get_splits(OffsetReferential::Original, OffsetType::Byte)
                    .into_iter()
                    .filter(|(_, _, tokens)| tokens.is_some())
                    .map(|(_, (start, end), _)| start..end)
                    .collect()
            }
        }
    }
}

/// A tokenizer for one request: it stops between texts once the deadline passed or the caller is gone.
///
/// Tokenising many long prompts on a blocking thread could otherwise go on long after nobody waits for it.
pub(crate) struct BrakedTokenizer {
    inner: Arc<HfTokenizer>,
    deadline: Instant,
    gone: Arc<AtomicBool>,
}

impl BrakedTokenizer {
    pub(crate) fn new(inner: Arc<HfTokenizer>, deadline: Instant, gone: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            deadline,
            gone,
        }
    }
}

impl Tokenizer for BrakedTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        if self.gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline {
            return Err(TokenizeError);
        }
        self.inner.encode(text)
    }

    fn added_text(&self, text: &str) -> Vec<Range<usize>> {
        self.inner.added_text(text)
    }
}

/// Raises the flag when the caller's future is dropped.
pub(crate) struct RaiseOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TINY: &str = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
        "padding":null,
        "added_tokens":[{"id":3,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"#;

    #[test]
    fn special_text_is_its_token_and_nothing_is_added_or_cut() {
        let tokenizer = HfTokenizer::from_bytes(TINY.as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("a b <s> a").unwrap(), [0, 1, 3, 0]);
    }

    /// With this token, and NFC.
    fn with_token(content: &str, normalized: bool, strips: bool) -> HfTokenizer {
        let mut file: serde_json::Value = serde_json::from_str(TINY).unwrap();
        file["normalizer"] = serde_json::json!({"type": "NFC"});
        file["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(serde_json::json!({
                "id": 4, "content": content, "single_word": false, "lstrip": strips, "rstrip": strips,
                "normalized": normalized, "special": false,
            }));
        HfTokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
    }

    /// What is found is what becomes a token.
    fn found(tokenizer: &HfTokenizer, text: &str) -> Vec<Range<usize>> {
        let found = tokenizer.added_text(text);
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(found.len(), ids.iter().filter(|id| **id >= 3).count(), "{text:?}");
        found
    }

    #[test]
    fn special_text_is_found_where_it_becomes_a_token() {
        // Looked for before normalising: a combining mark behind the token changes nothing, and only the very bytes match.
        let written = with_token("<\u{e9}>", false, false);
        assert!(matches!(written.added, Added::AsWritten(_)));
        assert_eq!(
            found(&written, "<s>\u{338} <\u{e9}> <e\u{301}> \u{ff1c}s\u{ff1e}"),
            [0..3, 6..10]
        );
        // Looked for after normalising: both spellings match, and what composes with the last character hides the token.
        let normalized = with_token("<\u{e9}>", true, false);
        assert!(matches!(normalized.added, Added::Normalized));
        assert_eq!(
            found(&normalized, "<\u{e9}> <e\u{301}> <\u{e9}>\u{338} <s>"),
            [0..4, 5..10, 18..21]
        );
        // White space that a token swallows belongs to it.
        let strips = with_token("<t>", true, true);
        assert_eq!(found(&strips, "a  <t>\nb<t>"), [1..7, 8..11]);
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_refused() {
        assert!(matches!(
            HfTokenizer::from_bytes(b"{}"),
            Err(TokenizerError::Unreadable(_))
        ));
    }

    #[test]
    fn the_brake_holds_when_the_caller_is_gone_or_late() {
        let inner = Arc::new(HfTokenizer::from_bytes(TINY.as_bytes()).unwrap());
        let gone = Arc::new(AtomicBool::new(false));
        let later = Instant::now() + std::time::Duration::from_secs(60);
        let tokenizer = BrakedTokenizer::new(Arc::clone(&inner), later, Arc::clone(&gone));
        assert!(tokenizer.encode("a").is_ok());
        drop(RaiseOnDrop(gone));
        assert!(tokenizer.encode("a").is_err());
        let late = BrakedTokenizer::new(inner, Instant::now(), Arc::new(AtomicBool::new(false)));
        assert!(late.encode("a").is_err());
    }
}
