//! Cuts the end of a state so that a prompt fits.

use crate::python::is_whitespace;
use crate::{FamilyContext, TokenizeError};

/// The cut is not looked for more closely than this many tokens.
const SLACK: usize = 4;
/// Nor with more tries: a text whose tokens are of very uneven length may lose somewhat more.
const TRIES: usize = 24;

/// The prompt with as much of the beginning of `state` as fits, and its tokens. `None` when nothing of it fits.
///
/// `whole` is the count of tokens with all of it. Where the tokens of a text end is known only to the tokenizer, so the
/// cut is searched: where it would be if all tokens were of the same length, then nearer, every third time halfway.
pub(in crate::families) fn truncate(
    state: &str,
    whole: usize,
    cx: &FamilyContext,
    render: &dyn Fn(&str) -> String,
) -> Result<Option<(String, Vec<u32>)>, TokenizeError> {
    let encode = |end: usize| {
        let text = render(state.get(..end).unwrap_or_default());
        cx.tokenizer.encode(&text).map(|ids| (text, ids))
    };
    // A prompt without a visible character of the state would say that there is none.
    let Some((at, first)) = state.char_indices().find(|(_, c)| !is_whitespace(*c)) else {
        return Ok(None);
    };
    let mut end = at + first.len_utf8();
    let mut best = encode(end)?;
    if best.1.len() > cx.max_tokens {
        return Ok(None);
    }
    let (mut beyond, mut beyond_count) = (state.len(), whole);
    for attempt in 1..=TRIES {
        let (count, span) = (best.1.len(), beyond - end);
        let (room, excess) = (cx.max_tokens - count, beyond_count.saturating_sub(count));
        if room <= SLACK || excess == 0 {
            break;
        }
        let ahead = if attempt % 3 == 0 {
            span / 2
        } else {
            (span as f64 * (room as f64 / excess as f64)) as usize
        };
        let mut next = state.floor_char_boundary(end + ahead.clamp(1, span));
        if next <= end {
            next = state.ceil_char_boundary(end + 1);
        }
        if next >= beyond {
            next = state.floor_char_boundary(beyond - 1);
        }
        if next <= end {
            break;
        }
        let tried = encode(next)?;
        if tried.1.len() > cx.max_tokens {
            (beyond, beyond_count) = (next, tried.1.len());
        } else {
            (end, best) = (next, tried);
        }
    }
    Ok(Some(best))
}
