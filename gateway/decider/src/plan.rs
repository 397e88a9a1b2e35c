//! What a decider asks of the executor, and what it gets back.

use std::ops::Range;

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
    /// Token ids that stand before those of every sequence; empty when the sequences have nothing in common. Positions
    /// count from its first token.
    pub prefix: Vec<u32>,
    /// 1 to [`MAX_SEQUENCES_PER_PLAN`] sequences.
    pub sequences: Vec<PlannedSequence>,
    /// Full-attention layers see the whole sequence instead of the past only.
    pub noncausal_full_attention: bool,
}

impl Plan {
    /// A plan whose prefix is what all sequences begin with, but for the last token of the shortest one.
    pub fn sharing(mut sequences: Vec<PlannedSequence>, noncausal_full_attention: bool) -> Self {
        let mut prefix = Vec::new();
        if let [first, second, rest @ ..] = &sequences[..] {
            let others = || {
                std::iter::once(second)
                    .chain(rest)
                    .map(|sequence| &sequence.token_ids)
            };
            let shortest = others().map(Vec::len).chain([first.token_ids.len()]).min();
            let most = shortest.unwrap_or_default().saturating_sub(1);
            let common = |n: usize, ids: &Vec<u32>| {
                let same = first.token_ids.iter().zip(ids).take(n);
                same.take_while(|(a, b)| a == b).count()
            };
            let shared = others().fold(most, common);
            prefix.extend(first.token_ids.iter().take(shared));
        }
        for sequence in &mut sequences {
            sequence.token_ids.drain(..prefix.len());
        }
        Plan {
            prefix,
            sequences,
            noncausal_full_attention,
        }
    }

    /// The same plan without a prefix: each sequence has all of its tokens.
    pub fn unshared(mut self) -> Self {
        let prefix = std::mem::take(&mut self.prefix);
        for sequence in &mut self.sequences {
            sequence.token_ids.splice(..0, prefix.iter().copied());
        }
        self
    }

    /// Tokens of all sequences, the prefix counted with each: what policy and the executor's bounds see.
    pub fn input_tokens(&self) -> u64 {
        let lengths = self.sequences.iter().map(|sequence| self.length(sequence));
        lengths.sum()
    }

    /// Tokens of one of its sequences, with the prefix.
    pub fn length(&self, sequence: &PlannedSequence) -> u64 {
        (self.prefix.len() + sequence.token_ids.len()) as u64
    }
}

/// One sequence, and what to read from its final-norm hidden rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSequence {
    /// Token ids after the plan's prefix, at least one.
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

/// What is computed from the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The row itself: `hidden_size` values.
    Hidden,
    /// Dot products with the rows of the output embedding at these token ids, in this order.
    OutputEmbedding(Vec<u32>),
    /// Dot products with these rows of the model's decision head, in this order.
    DecisionHead(Vec<u32>),
    /// One row of logits from every row of the sequence: the model's joint head decides these questions together. A logit
    /// per option, in the order of questions and options. [`RowSelection::All`] must be read.
    JointHead(Vec<JointQuestion>),
}

impl Projection {
    /// Values of a row that it gives; `hidden` is how many a row itself has.
    pub fn width(&self, hidden: usize) -> usize {
        match self {
            Projection::Hidden => hidden,
            Projection::OutputEmbedding(rows) | Projection::DecisionHead(rows) => rows.len(),
            Projection::JointHead(questions) => questions.iter().map(|question| question.options.len()).sum(),
        }
    }
}

/// A question for a joint head, by where it stands in the sequence. Positions count from the first token of the plan's
/// prefix; no span is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointQuestion {
    /// Row of the head's type embedding: less than 3.
    pub kind: u32,
    /// Tokens of the question.
    pub span: Range<u32>,
    /// Tokens of each option.
    pub options: Vec<Range<u32>>,
}

/// Readout of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceOutput {
    /// One per row that was asked for, in that order; each holds the values of the projection.
    pub rows: Vec<Vec<f32>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharing(ids: &[&[u32]]) -> Plan {
        let sequence = |ids: &&[u32]| PlannedSequence {
            token_ids: ids.to_vec(),
            read: RowSelection::Last,
            projection: Projection::Hidden,
        };
        Plan::sharing(ids.iter().map(sequence).collect(), false)
    }

    #[test]
    fn what_all_begin_with_is_the_prefix_and_each_keeps_a_token() {
        let cases: [(&[&[u32]], &[u32]); 6] = [
            (&[&[1, 2, 3]], &[]),
            (&[&[1, 2, 3], &[1, 2, 4]], &[1, 2]),
            (&[&[1, 2, 3], &[1, 2]], &[1]),
            (&[&[1], &[1]], &[]),
            (&[&[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 9, 3, 4]], &[1]),
            (&[&[7, 2], &[1, 2]], &[]),
        ];
        for (ids, prefix) in cases {
            let plan = sharing(ids);
            assert_eq!(plan.prefix, prefix, "{ids:?}");
            assert_eq!(
                plan.input_tokens(),
                ids.iter().map(|ids| ids.len() as u64).sum::<u64>()
            );
            let whole = plan.unshared().sequences.into_iter().map(|s| s.token_ids);
            assert_eq!(whole.collect::<Vec<_>>(), ids);
        }
    }
}
