//! The checkpoint's own tokenizer.json, and the brake that keeps a request's tokenising within its deadline.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use deltagate_decider::{TokenizeError, Tokenizer};

/// A Hugging Face tokenizer. Text that spells a special token is parsed as that token; none is added.
pub struct HfTokenizer(tokenizers::Tokenizer);

/// Why a tokenizer.json cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// It is not a tokenizer that the `tokenizers` crate reads.
    #[error("tokenizer.json cannot be read")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Its cutting could not be switched off.
    #[error("tokenizer.json cuts text and cannot be told not to")]
    Truncating,
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
        Ok(Self(tokenizer))
    }
}

impl Tokenizer for HfTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        // The error of the crate may quote the text, so it is not carried on.
        let encoding = self.0.encode_fast(text, false).map_err(|_| TokenizeError)?;
        Ok(encoding.get_ids().to_vec())
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
