//! What is asked of the engine, and whether this model can do it.

use deltagate_checkpoint::ModelConfig;

use super::EngineError;

/// Sequences to run, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPlan {
    /// At least one.
    pub sequences: Vec<SequencePlan>,
    /// Full-attention layers see the whole sequence; delta-rule layers stay causal.
    pub noncausal_full_attention: bool,
}

/// One sequence and what is read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencePlan {
    /// Token ids, 1 to the model's limit.
    pub token_ids: Vec<u32>,
    /// Which final-norm rows.
    pub rows: RowSelection,
    /// What is computed from each row.
    pub projection: Projection,
}

/// Which rows are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// The last one.
    Last,
    /// Those at these positions, in this order.
    Positions(Vec<u32>),
    /// Every one.
    All,
}

/// What is computed from each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The row itself.
    Hidden,
    /// Its products with these rows of the output embedding.
    OutputEmbedding(Vec<u32>),
    /// Its products with these rows of the decision head.
    DecisionHead(Vec<u32>),
}

impl Projection {
    /// Values that it gives for a row.
    pub(crate) fn width(&self, hidden_size: usize) -> usize {
        match self {
            Self::Hidden => hidden_size,
            Self::OutputEmbedding(rows) | Self::DecisionHead(rows) => rows.len(),
        }
    }
}

/// Tables that a model has beside its backbone, by their number of rows; 0 for one that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    pub(super) output_embedding: usize,
    pub(super) decision_head: usize,
}

impl SequencePlan {
    /// Positions that are read, in the order of the answer; none when it is every row.
    pub(super) fn positions(&self) -> Option<Vec<u32>> {
        match &self.rows {
            RowSelection::All => None,
            RowSelection::Last => Some(vec![self.token_ids.len().saturating_sub(1) as u32]),
            RowSelection::Positions(positions) => Some(positions.clone()),
        }
    }
}

/// Refuses what this model cannot run.
pub(super) fn validate(plan: &ForwardPlan, config: &ModelConfig, tables: Tables) -> Result<(), EngineError> {
    if plan.sequences.is_empty() {
        return Err(invalid("sequences".to_owned(), "there is none"));
    }
    for (index, sequence) in plan.sequences.iter().enumerate() {
        let field = |name: &str| format!("sequences[{index}].{name}");
        let tokens = sequence.token_ids.len();
        if tokens == 0 || tokens > config.max_position_embeddings {
            let reason = format!(
                "{tokens} tokens, 1 to {} can be run",
                config.max_position_embeddings
            );
            return Err(invalid(field("token_ids"), reason));
        }
        let known = |id: &u32| (*id as usize) < config.vocab_size;
        if !sequence.token_ids.iter().all(known) {
            return Err(invalid(field("token_ids"), "an id is outside of the vocabulary"));
        }
        if let RowSelection::Positions(positions) = &sequence.rows {
            if positions.is_empty() {
                return Err(invalid(field("rows"), "there is no position"));
            }
            if positions.iter().any(|position| *position as usize >= tokens) {
                return Err(invalid(field("rows"), "a position is beyond the last token"));
            }
        }
        let (rows, there, what) = match &sequence.projection {
            Projection::Hidden => continue,
            Projection::OutputEmbedding(ids) => (ids, tables.output_embedding, "output embedding"),
            Projection::DecisionHead(rows) => (rows, tables.decision_head, "decision head"),
        };
        if there == 0 {
            return Err(invalid(field("projection"), format!("the model has no {what}")));
        }
        if rows.is_empty() {
            return Err(invalid(field("projection"), "no row is asked for"));
        }
        if !rows.iter().all(|row| (*row as usize) < there) {
            return Err(invalid(
                field("projection"),
                format!("a row is beyond the {what}"),
            ));
        }
    }
    Ok(())
}

fn invalid(field: String, reason: impl Into<String>) -> EngineError {
    EngineError::InvalidPlan {
        field,
        reason: reason.into(),
    }
}
