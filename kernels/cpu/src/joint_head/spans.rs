//! Spans of tokens: whether they are some, and their means.

use std::ops::Range;

use deltagate_kernels_api::{JointQuestion, OpError};

/// Refuses a question without options, and a span that is empty or outside of the sequence.
pub(super) fn check(questions: &[JointQuestion], tokens: usize) -> Result<(), OpError> {
    let inside = |span: &Range<usize>| {
        if span.start < span.end && span.end <= tokens {
            return Ok(());
        }
        Err(OpError::Shape {
            argument: "span",
            expected: vec![0, tokens],
            found: vec![span.start, span.end],
        })
    };
    for question in questions {
        if question.options.is_empty() {
            return Err(OpError::Device("a question without options".to_owned()));
        }
        inside(&question.span)?;
        question.options.iter().try_for_each(inside)?;
    }
    Ok(())
}

/// Mean of rows, `[_, columns]` -> `[columns]`. Long spans lose nothing: the sum is f64.
pub(super) fn mean(rows: &[f32], columns: usize) -> Result<Vec<f32>, OpError> {
    let count = rows.len().checked_div(columns).unwrap_or(0);
    if count == 0 {
        return Err(OpError::Device("an empty span has no mean".to_owned()));
    }
    let mut sums = vec![0.0f64; columns];
    for row in rows.chunks_exact(columns) {
        sums.iter_mut().zip(row).for_each(|(s, v)| *s += f64::from(*v));
    }
    Ok(sums.iter().map(|sum| (sum / count as f64) as f32).collect())
}
