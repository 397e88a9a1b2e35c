//! All rows of a request, in tokens that fit.

use super::config::Config;
use super::labels::LABELS;
use super::prompt::{Fragment, Row, context_text, fragments, rows};
use super::{MAX_REQUEST_TOKENS, MAX_TOKENS, limits};
use crate::families::encoded::too_long;
use crate::{DeciderError, DecisionRequest, FamilyContext, RequestError, Violation};

/// A request's rows behind their context.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) context_text: String,
    pub(super) context: Vec<u32>,
    /// Tokens of the context that were cut off.
    pub(super) truncated: u64,
    /// Each row with its own tokens.
    pub(super) rows: Vec<(Row, Vec<u32>)>,
}

impl Encoded {
    /// Validates, renders and encodes. Too long is an error that names both numbers, unless the state may be cut to fit.
    pub(super) fn new(
        config: &Config,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Self, DeciderError> {
        limits().check(request)?;
        let (mut plain, mut found) = (Vec::new(), Vec::new());
        for (index, question) in request.questions.iter().enumerate() {
            match rows(index, question) {
                Ok(rows) => plain.extend(rows),
                Err(violation) => found.push(violation),
            }
        }
        RequestError::unless_empty(found)?;
        let mut encoded = Vec::with_capacity(plain.len());
        for row in plain {
            let ids = encode(&row, cx)?;
            encoded.push((row, ids));
        }
        let context_text = context_text(request.state.as_ref());
        let mut context = cx.tokenizer.encode(&context_text)?;
        let truncated = fit(&mut context, &encoded, request.truncate_state, config, cx)?;
        let total: usize = encoded.iter().map(|(_, ids)| context.len() + ids.len()).sum();
        if total > MAX_REQUEST_TOKENS {
            let message = format!(
                "the prompts of all questions have {total} tokens, the limit is {MAX_REQUEST_TOKENS}"
            );
            return Err(refused(None, message));
        }
        Ok(Encoded {
            context_text,
            context,
            truncated,
            rows: encoded,
        })
    }

    /// Tokens of all rows, with what all begin with counted once.
    pub(super) fn input_tokens(&self) -> u64 {
        let own = |common: usize| {
            self.rows
                .iter()
                .map(|(_, ids)| (ids.len() - common) as u64)
                .sum::<u64>()
        };
        let [(_, first), rest @ ..] = &self.rows[..] else {
            return 0;
        };
        if rest.is_empty() {
            return (self.context.len() + first.len()) as u64;
        }
        let common = rest.iter().fold(first.len(), |most, (_, ids)| {
            first
                .iter()
                .zip(ids)
                .take(most)
                .take_while(|(a, b)| a == b)
                .count()
        });
        (self.context.len() + common) as u64 + own(common)
    }
}

/// Cuts the context where that is allowed; gives the number of tokens that are gone.
fn fit(
    context: &mut Vec<u32>,
    rows: &[(Row, Vec<u32>)],
    truncate_state: bool,
    config: &Config,
    cx: &FamilyContext,
) -> Result<u64, DeciderError> {
    let max = cx.max_tokens.min(MAX_TOKENS);
    let longest = rows.iter().max_by_key(|(_, ids)| ids.len());
    let (question, row) = longest.map_or((0, 0), |(row, ids)| (row.question, ids.len()));
    let room = max.saturating_sub(row).min(config.max_state_tokens);
    let count = context.len();
    if count <= room {
        return Ok(0);
    }
    // A prompt without a token of the state would say that there is none.
    let heading = cx.tokenizer.encode(&context_text(None))?.len();
    if truncate_state && room > heading {
        context.truncate(room);
        return Ok((count - room) as u64);
    }
    if count + row > max {
        return Err(refused(Some(question), too_long(count + row, max)));
    }
    let message = format!(
        "the context has {count} tokens, the limit is {}",
        config.max_state_tokens
    );
    Err(refused(None, message))
}

fn refused(question: Option<usize>, message: String) -> DeciderError {
    let violation = match question {
        Some(question) => Violation::in_question(question, &[], "PROMPT_TOO_LONG", message),
        None => Violation::new([], "PROMPT_TOO_LONG", message),
    };
    RequestError::unanswerable(violation).into()
}

fn encode(row: &Row, cx: &FamilyContext) -> Result<Vec<u32>, DeciderError> {
    let mut ids = Vec::new();
    for fragment in fragments(row) {
        match fragment {
            Fragment::Text(text) => ids.extend(cx.tokenizer.encode(&text)?),
            // One token each, which is checked when the model is loaded.
            Fragment::Label(label) => {
                ids.extend(
                    cx.tokenizer
                        .encode(LABELS.get(label).copied().unwrap_or_default())?,
                );
            }
        }
    }
    Ok(ids)
}
