//! What a decider asks of the executor, and what it gets back.

use crate::Answers;

/// Most sequences that one [`Plan`] holds: a larger step is cut into several plans.
pub const MAX_SEQUENCES_PER_PLAN: usize = 256;

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Run this, and call `step` again with its outputs.
    Run(Plan),
    /// The request is answered.
    Done(Answers),
}

/// Sequences to run, in any order or at once; outputs are returned in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// 1 to [`MAX_SEQUENCES_PER_PLAN`] sequences.
    pub sequences: Vec<PlannedSequence>,
    /// Full-attention layers see the whole sequence instead of the past only.
    pub noncausal_full_attention: bool,
}

impl Plan {
    /// Tokens of all sequences.
    pub fn input_tokens(&self) -> u64 {
        self.sequences
            .iter()
            .map(|sequence| sequence.token_ids.len() as u64)
            .sum()
    }
}

/// One sequence, and what to read from its final-norm hidden rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSequence {
    /// Token ids, at least one.
    pub token_ids: Vec<u32>,
    /// Which rows.
    pub read: RowSelection,
    /// What is computed from each.
    pub projection: Projection,
}

/// Rows of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// The last one.
    Last,
    /// Those at these positions.
    Positions(Vec<u32>),
    /// Every one.
    All,
}

/// What is computed from a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The row itself: `hidden_size` values.
    Hidden,
    /// Dot products with the rows of the output embedding at these token ids, in this order.
    OutputEmbedding(Vec<u32>),
}

/// Readout of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceOutput {
    /// One per row that was asked for, in that order; each holds the values of the projection.
    pub rows: Vec<Vec<f32>>,
}
