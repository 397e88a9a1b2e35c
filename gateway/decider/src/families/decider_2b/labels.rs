//! Names of options in a prompt.

pub use crate::families::codes::CODES as LABELS;
use crate::{FamilyContext, FamilyError};

/// Each label is one token, and no two share one.
pub(super) fn check(cx: &FamilyContext) -> Result<(), FamilyError> {
    let mut ids = Vec::with_capacity(LABELS.len());
    for label in LABELS {
        ids.push((cx.one_token(label, &format!("label {label}"))?, label));
    }
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => {
            let reason = format!("labels {} and {} share a token", pair[0].1, pair[1].1);
            Err(FamilyError::Tokenizer { reason })
        }
    }
}
