//! From the wire to a plan and back, strictly: every rule of the contract is checked here, and what the engine gives
//! back is checked against what was asked.

use deltagate_kernels_api::{JointQuestion, QUESTION_TYPES};
use deltagate_mesh::error::ServiceError;
use deltagate_proto::v1::{
    self,
    readout::{Projection as WireProjection, Rows as WireRows},
};

use crate::{
    engine::{ForwardOutput, ForwardPlan, Projection, RowSelection, SequencePlan},
    runner::ModelLimits,
};

/// Most sequences in one plan.
pub(crate) const MAX_SEQUENCES: usize = 256;
/// Most rows of the output embedding, or of the decision head, in one readout.
pub(crate) const MAX_PROJECTED: usize = 256;
/// Most questions for the joint head in one readout, and most options over all of them.
pub(crate) const MAX_JOINT_QUESTIONS: usize = 256;
pub(crate) const MAX_JOINT_OPTIONS: usize = 4096;
/// Most f32 values in the readouts of one plan: 64 MiB.
pub(crate) const MAX_READOUT_VALUES: usize = 1 << 24;
const BEYOND_VOCABULARY: &str = "a token id is outside of the vocabulary";
/// More violations than this help nobody.
const MAX_VIOLATIONS: usize = 16;

/// A plan, and its size.
#[derive(Clone, Debug)]
pub(crate) struct ValidPlan {
    /// What the engine runs.
    pub plan: ForwardPlan,
    /// Tokens over all sequences.
    pub tokens: u64,
}

/// Checks a request against the contract and the model. INVALID_ARGUMENT names every field at fault.
pub(crate) fn validate(
    request: &v1::ForwardRequest,
    limits: &ModelLimits,
) -> Result<ValidPlan, ServiceError> {
    let mut faults = Faults::default();
    if request.capability_fingerprint.is_empty() {
        faults.add(
            "capability_fingerprint",
            "REQUIRED",
            "the binding that the plan is for is needed",
        );
    }
    if request.sequences.is_empty() || request.sequences.len() > MAX_SEQUENCES {
        faults.add(
            "sequences",
            "OUT_OF_RANGE",
            format!("1 to {MAX_SEQUENCES} sequences are needed"),
        );
    }
    let prefix = &request.prefix_token_ids;
    if prefix.len() >= limits.max_tokens {
        let (most, length) = (limits.max_tokens, prefix.len());
        let description = format!("less than {most} tokens are allowed, there are {length}");
        faults.add("prefix_token_ids", "PROMPT_TOO_LONG", description);
    } else if !prefix.iter().all(|&id| in_range(id, limits.vocab_size)) {
        faults.add("prefix_token_ids", "OUT_OF_RANGE", BEYOND_VOCABULARY);
    }
    let mut sequences = Vec::with_capacity(request.sequences.len().min(MAX_SEQUENCES));
    let mut values = 0usize;
    let mut tokens = 0u64;
    for (index, sequence) in request.sequences.iter().enumerate().take(MAX_SEQUENCES) {
        if faults.full() {
            break;
        }
        let Some(plan) = validate_sequence(index, sequence, prefix, limits, &mut faults) else {
            continue;
        };
        values = values.saturating_add(expected_rows(&plan).saturating_mul(expected_width(&plan, limits)));
        tokens = tokens.saturating_add(u64::try_from(plan.token_ids.len()).unwrap_or(u64::MAX));
        sequences.push(plan);
    }
    if values > MAX_READOUT_VALUES {
        let reason = format!("the readouts have more than {MAX_READOUT_VALUES} values");
        faults.add("sequences", "READOUT_TOO_LARGE", reason);
    }
    faults.finish()?;
    Ok(ValidPlan {
        plan: ForwardPlan {
            sequences,
            noncausal_full_attention: request.noncausal_full_attention,
        },
        tokens,
    })
}

/// Checks the size of a plan against what its permit allows. PERMISSION_DENIED says which limit.
pub(crate) fn within_permit(plan: &ValidPlan, claims: &v1::PermitClaims) -> Result<(), ServiceError> {
    let refuse = |what: &str, limit: u64| {
        let message = format!("the plan has more {what} than the permit allows");
        Err(ServiceError::permission_denied("POLICY_DENIED", message).with("limit", limit.to_string()))
    };
    if plan.tokens > claims.max_plan_tokens {
        return refuse("tokens", claims.max_plan_tokens);
    }
    let sequences = u32::try_from(plan.plan.sequences.len()).unwrap_or(u32::MAX);
    if sequences > claims.max_plan_sequences {
        return refuse("sequences", u64::from(claims.max_plan_sequences));
    }
    Ok(())
}

/// The readouts on the wire. INTERNAL when a row is missing, short, or not finite: an answer is complete or none.
pub(crate) fn outputs(
    plan: &ForwardPlan,
    limits: &ModelLimits,
    output: ForwardOutput,
) -> Result<Vec<v1::SequenceOutput>, ServiceError> {
    if output.sequences.len() != plan.sequences.len() {
        return Err(short_readout());
    }
    let mut sequences = Vec::with_capacity(plan.sequences.len());
    for (asked, rows) in plan.sequences.iter().zip(output.sequences) {
        let width = expected_width(asked, limits);
        if rows.len() != expected_rows(asked) || rows.iter().any(|row| row.values.len() != width) {
            return Err(short_readout());
        }
        if rows
            .iter()
            .any(|row| row.values.iter().any(|value| !value.is_finite()))
        {
            return Err(not_finite());
        }
        let rows = rows.into_iter().map(|row| v1::ReadoutRow {
            position: row.position,
            values: row.values,
        });
        sequences.push(v1::SequenceOutput { rows: rows.collect() });
    }
    Ok(sequences)
}

/// A result held NaN or an infinity.
pub(crate) fn not_finite() -> ServiceError {
    ServiceError::internal("NOT_FINITE", "the forward pass gave a value that is not finite")
}

fn short_readout() -> ServiceError {
    ServiceError::internal(
        "KERNEL_FAILED",
        "the forward pass gave another number of values than asked for",
    )
}

fn expected_rows(plan: &SequencePlan) -> usize {
    if let Projection::JointHead(_) = plan.projection {
        return 1;
    }
    match &plan.rows {
        RowSelection::Last => 1,
        RowSelection::Positions(positions) => positions.len(),
        RowSelection::All => plan.token_ids.len(),
    }
}

fn expected_width(plan: &SequencePlan, limits: &ModelLimits) -> usize {
    plan.projection.width(limits.hidden_size)
}

fn validate_sequence(
    index: usize,
    sequence: &v1::Sequence,
    prefix: &[u32],
    limits: &ModelLimits,
    faults: &mut Faults,
) -> Option<SequencePlan> {
    let at = |field: &str| format!("sequences[{index}].{field}");
    let length = prefix.len() + sequence.token_ids.len();
    let before = faults.count();
    if sequence.token_ids.is_empty() {
        faults.add(at("token_ids"), "REQUIRED", "at least one token is needed");
    } else if length > limits.max_tokens {
        let description = format!(
            "at most {} tokens are allowed, there are {length}",
            limits.max_tokens
        );
        faults.add(at("token_ids"), "PROMPT_TOO_LONG", description);
    } else if !sequence
        .token_ids
        .iter()
        .all(|&id| in_range(id, limits.vocab_size))
    {
        faults.add(at("token_ids"), "OUT_OF_RANGE", BEYOND_VOCABULARY);
    }
    let Some(readout) = &sequence.readout else {
        faults.add(at("readout"), "REQUIRED", "what to read is needed");
        return None;
    };
    let rows = match &readout.rows {
        None => {
            faults.add(
                at("readout.rows"),
                "REQUIRED",
                "one of `last`, `positions` and `all` is needed",
            );
            None
        }
        Some(WireRows::Last(_)) => Some(RowSelection::Last),
        Some(WireRows::All(_)) => Some(RowSelection::All),
        Some(WireRows::Positions(positions)) => {
            let positions = &positions.positions;
            if positions.is_empty() || positions.len() > length {
                let description = "1 to as many positions as there are tokens are needed";
                faults.add(at("readout.positions.positions"), "OUT_OF_RANGE", description);
            } else if !positions.iter().all(|&position| in_range(position, length)) {
                faults.add(
                    at("readout.positions.positions"),
                    "OUT_OF_RANGE",
                    "a position is beyond the last token",
                );
            }
            Some(RowSelection::Positions(positions.clone()))
        }
    };
    let projection = match &readout.projection {
        None => {
            faults.add(
                at("readout.projection"),
                "REQUIRED",
                "one of `hidden`, `output_embedding`, `decision_head` and `joint_head` is needed",
            );
            None
        }
        Some(WireProjection::Hidden(_)) => Some(Projection::Hidden),
        Some(WireProjection::OutputEmbedding(rows)) => {
            let end = if limits.output_embedding {
                limits.vocab_size
            } else {
                0
            };
            let field = at("readout.output_embedding");
            check_rows(
                &rows.token_ids,
                end,
                &field,
                ("token_ids", "output embedding"),
                faults,
            );
            Some(Projection::OutputEmbedding(rows.token_ids.clone()))
        }
        Some(WireProjection::DecisionHead(rows)) => {
            let end = limits.decision_head_rows;
            let field = at("readout.decision_head");
            check_rows(&rows.rows, end, &field, ("rows", "decision head"), faults);
            Some(Projection::DecisionHead(rows.rows.clone()))
        }
        Some(WireProjection::JointHead(asked)) => {
            let field = at("readout.joint_head");
            if !limits.joint_head {
                faults.add(field, "UNSUPPORTED", "the model has no joint head");
                return None;
            }
            if !matches!(readout.rows, Some(WireRows::All(_))) {
                faults.add(
                    at("readout.rows"),
                    "OUT_OF_RANGE",
                    "the joint head needs `all`: it reads every row",
                );
            }
            Some(Projection::JointHead(joint_questions(
                &asked.questions,
                length,
                &field,
                faults,
            )))
        }
    };
    if faults.count() > before {
        return None;
    }
    Some(SequencePlan {
        token_ids: [prefix, &sequence.token_ids].concat(),
        rows: rows?,
        projection: projection?,
    })
}

/// Rows of a table of `end` rows; a model without the table has none.
fn check_rows(rows: &[u32], end: usize, field: &str, (list, table): (&str, &str), faults: &mut Faults) {
    if end == 0 {
        faults.add(field, "UNSUPPORTED", format!("the model has no {table}"));
    } else if rows.is_empty() || rows.len() > MAX_PROJECTED {
        let description = format!("1 to {MAX_PROJECTED} rows are needed");
        faults.add(format!("{field}.{list}"), "OUT_OF_RANGE", description);
    } else if !rows.iter().all(|&row| in_range(row, end)) {
        let description = format!("a row is beyond the end of the {table}");
        faults.add(format!("{field}.{list}"), "OUT_OF_RANGE", description);
    }
}

/// Questions for the joint head, each span inside of a sequence of `length` tokens.
fn joint_questions(
    asked: &[v1::JointQuestion],
    length: usize,
    field: &str,
    faults: &mut Faults,
) -> Vec<JointQuestion> {
    let options: usize = asked.iter().map(|question| question.options.len()).sum();
    if asked.is_empty() || asked.len() > MAX_JOINT_QUESTIONS || options > MAX_JOINT_OPTIONS {
        let description = format!(
            "1 to {MAX_JOINT_QUESTIONS} questions with at most {MAX_JOINT_OPTIONS} options are needed"
        );
        faults.add(format!("{field}.questions"), "OUT_OF_RANGE", description);
        return Vec::new();
    }
    let mut questions = Vec::with_capacity(asked.len());
    for (index, question) in asked.iter().enumerate() {
        let at = |part: &str| format!("{field}.questions[{index}].{part}");
        if !in_range(question.r#type, QUESTION_TYPES) {
            let description = format!("a type is less than {QUESTION_TYPES}");
            faults.add(at("type"), "OUT_OF_RANGE", description);
        }
        let mut span = |part: &str, span: Option<&v1::TokenSpan>| {
            let range = span.map(|span| (usize::try_from(span.start), usize::try_from(span.end)));
            match range {
                Some((Ok(start), Ok(end))) if start < end && end <= length => start..end,
                Some(_) => {
                    let description = "a span holds at least one token, and none beyond the last one";
                    faults.add(at(part), "OUT_OF_RANGE", description);
                    0..0
                }
                None => {
                    faults.add(at(part), "REQUIRED", "the tokens of the question are needed");
                    0..0
                }
            }
        };
        let own = span("span", question.span.as_ref());
        let options: Vec<_> = question
            .options
            .iter()
            .enumerate()
            .map(|(option, tokens)| span(&format!("options[{option}]"), Some(tokens)))
            .collect();
        if options.is_empty() {
            faults.add(at("options"), "REQUIRED", "at least one option is needed");
        }
        questions.push(JointQuestion {
            kind: usize::try_from(question.r#type).unwrap_or(usize::MAX),
            span: own,
            options,
        });
    }
    questions
}

fn in_range(value: u32, end: usize) -> bool {
    usize::try_from(value).is_ok_and(|value| value < end)
}

#[derive(Default)]
struct Faults(Vec<(String, &'static str, String)>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, reason: &'static str, description: impl Into<String>) {
        if !self.full() {
            self.0.push((field.into(), reason, description.into()));
        }
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    fn full(&self) -> bool {
        self.0.len() >= MAX_VIOLATIONS
    }

    fn finish(self) -> Result<(), ServiceError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let long = self.0.iter().all(|(_, reason, _)| *reason == "PROMPT_TOO_LONG");
        let reason = if long {
            "PROMPT_TOO_LONG"
        } else {
            "INVALID_REQUEST"
        };
        let error = ServiceError::invalid_argument(reason, "the plan is not valid");
        Err(self
            .0
            .into_iter()
            .fold(error, |error, (field, reason, description)| {
                error.field(field, reason, description)
            }))
    }
}

#[cfg(test)]
mod tests;
