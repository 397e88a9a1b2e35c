//! What is asked of the engine, and whether this model can do it.

use deltagate_checkpoint::ModelConfig;
use deltagate_kernels_api::{JointQuestion, QUESTION_TYPES};

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

/// What is computed from the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The row itself.
    Hidden,
    /// Its products with these rows of the output embedding.
    OutputEmbedding(Vec<u32>),
    /// Its products with these rows of the decision head.
    DecisionHead(Vec<u32>),
    /// A logit for each option of these questions, decided together from every row of the sequence: one row of values.
    JointHead(Vec<JointQuestion>),
}

impl Projection {
    /// Values of a row that it gives.
    pub(crate) fn width(&self, hidden_size: usize) -> usize {
        match self {
            Self::Hidden => hidden_size,
            Self::OutputEmbedding(rows) | Self::DecisionHead(rows) => rows.len(),
            Self::JointHead(questions) => questions.iter().map(|question| question.options.len()).sum(),
        }
    }
}

/// What a model has beside its backbone: tables by their number of rows, 0 for one that it does not have, and a joint head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    pub(super) output_embedding: usize,
    pub(super) decision_head: usize,
    pub(super) joint_head: bool,
}

impl SequencePlan {
    /// Positions of the rows that are given back.
    pub(super) fn answered(&self) -> Vec<u32> {
        let last = || vec![self.token_ids.len().saturating_sub(1) as u32];
        match (&self.projection, self.positions()) {
            (Projection::JointHead(_), _) => last(),
            (_, Some(positions)) => positions,
            (_, None) => (0..self.token_ids.len() as u32).collect(),
        }
    }

    /// Positions that are read, in order; none when it is every row.
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
            Projection::JointHead(questions) => {
                joint(questions, sequence, tables).map_err(|reason| invalid(field("projection"), reason))?;
                continue;
            }
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

/// Refuses questions that a joint head cannot be asked of this sequence.
fn joint(questions: &[JointQuestion], sequence: &SequencePlan, tables: Tables) -> Result<(), &'static str> {
    if !tables.joint_head {
        return Err("the model has no joint head");
    }
    if sequence.rows != RowSelection::All {
        return Err("the joint head reads every row");
    }
    if questions.is_empty() || questions.iter().any(|question| question.options.is_empty()) {
        return Err("no question is asked, or one without options");
    }
    if questions.iter().any(|question| question.kind >= QUESTION_TYPES) {
        return Err("a type is beyond the type embedding");
    }
    let tokens = sequence.token_ids.len();
    let mut spans = questions
        .iter()
        .flat_map(|question| question.options.iter().chain([&question.span]));
    if spans.any(|span| span.is_empty() || span.end > tokens) {
        return Err("a span is empty or beyond the last token");
    }
    Ok(())
}

fn invalid(field: String, reason: impl Into<String>) -> EngineError {
    EngineError::InvalidPlan {
        field,
        reason: reason.into(),
    }
}
