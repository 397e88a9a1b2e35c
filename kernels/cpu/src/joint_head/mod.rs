//! The joint head: all questions of a sequence decided together. Everything computes in f32, also over bf16 rows and weights.
//!
//! The formulas are those of `deltagate_kernels_reference::joint_head`. Rows are normed block by block, so that the largest thing in
//! memory is the memory of the head, `[T, W]`, with its keys and values.

mod attention;
mod dense;
mod score;
mod spans;

use candle_core::{DType, Tensor};
use deltagate_kernels_api::{JointHead, JointQuestion, LayerNorm, OpError, QUESTION_TYPES, Space};

use crate::{
    Cpu,
    buffer::output,
    projection::multiply_wide,
    space::{device, expect_matrix},
    vector::{add_scaled, decay, dispatch, dot, largest, sum},
};

use attention::attend;
use dense::{add, feedforward, layer_norm, vector};
use spans::{check, mean};

/// Rows that are normed at a time.
const BLOCK: usize = 256;

/// See `Readout::joint`.
pub(crate) fn joint_head(
    rows: &Tensor,
    ids: &[u32],
    table: &Tensor,
    head: &JointHead<Cpu>,
    questions: &[JointQuestion],
) -> Result<Vec<f32>, OpError> {
    let (tokens, hidden) = expect_matrix("rows", rows)?;
    let (vocabulary, columns) = expect_matrix("table", table)?;
    if columns != hidden || ids.len() != tokens || tokens == 0 {
        return Err(OpError::Shape {
            argument: "table and ids",
            expected: vec![vocabulary, hidden, tokens.max(1)],
            found: vec![vocabulary, columns, ids.len()],
        });
    }
    check(questions, tokens)?;
    let width = head.shape.width;
    let read = Rows {
        rows,
        norm: &head.hidden_norm,
    };

    let mut memory = Vec::with_capacity(tokens * width);
    for start in (0..tokens).step_by(BLOCK) {
        let block = read.normed(start, BLOCK.min(tokens - start))?;
        memory.extend(multiply_wide(&block, &head.memory)?);
    }
    let last = read.normed(tokens - 1, 1)?;

    // Means over spans; options are numbered over all questions.
    let own: Vec<usize> = questions
        .iter()
        .enumerate()
        .flat_map(|(at, question)| question.options.iter().map(move |_| at))
        .collect();
    let spans = || questions.iter().flat_map(|question| &question.options);
    let context = |span: &std::ops::Range<usize>| mean(&read.normed(span.start, span.len())?, hidden);
    let lexical = |span: &std::ops::Range<usize>| {
        let meant = ids.get(span.clone()).unwrap_or_default();
        mean(&wide(&Cpu::rows(table, meant)?)?, hidden)
    };
    let asked = gathered(questions.iter().map(|question| context(&question.span)))?;
    let contexts = gathered(spans().map(context))?;
    let lexical = gathered(spans().map(lexical))?;
    let asked_of_own: Vec<f32> = own
        .iter()
        .flat_map(|&at| &asked[at * hidden..(at + 1) * hidden])
        .copied()
        .collect();

    let mut options = multiply_wide(&contexts, &head.option_context)?;
    add(&mut options, &multiply_wide(&lexical, &head.option_lexical)?);
    add(
        &mut options,
        &multiply_wide(&asked_of_own, &head.option_question)?,
    );
    for layer in &head.evidence {
        let query = layer_norm(&options, &layer.query_norm)?;
        let keys = layer_norm(&memory, &layer.memory_norm)?;
        add(
            &mut options,
            &attend(&query, &keys, &layer.attention, &head.shape)?,
        );
        let normed = layer_norm(&options, &layer.feedforward_norm)?;
        add(&mut options, &feedforward(&normed, &layer.feedforward)?);
    }

    let mut decided = multiply_wide(&asked, &head.question)?;
    let summaries = summaries(&decided, &options, questions, width);
    add(&mut decided, &layer_norm(&summaries, &head.option_summary_norm)?);
    let global = multiply_wide(&last, &head.global)?;
    for (row, question) in decided.chunks_exact_mut(width).zip(questions) {
        add(row, &global);
        let kind = head.types.get(question.kind).ok_or(OpError::Index {
            index: question.kind as u64,
            limit: QUESTION_TYPES as u64,
        })?;
        add(row, &vector(kind, width)?);
    }
    for layer in &head.questions {
        let normed = layer_norm(&decided, &layer.self_norm)?;
        add(
            &mut decided,
            &attend(&normed, &normed, &layer.self_attention, &head.shape)?,
        );
        let normed = layer_norm(&decided, &layer.memory_norm)?;
        add(
            &mut decided,
            &attend(&normed, &memory, &layer.memory_attention, &head.shape)?,
        );
        let normed = layer_norm(&decided, &layer.feedforward_norm)?;
        add(&mut decided, &feedforward(&normed, &layer.feedforward)?);
    }
    let scored = score::Scored {
        own: &own,
        asked: &asked,
        last: &last,
        lexical: &lexical,
        questions: &layer_norm(&decided, &head.question_norm)?,
        options: &layer_norm(&options, &head.option_norm)?,
    };
    scored.logits(head, hidden)
}

/// The rows of the sequence, normed as they are read.
struct Rows<'a> {
    rows: &'a Tensor,
    norm: &'a LayerNorm<Cpu>,
}

impl Rows<'_> {
    fn normed(&self, start: usize, count: usize) -> Result<Vec<f32>, OpError> {
        let rows = self.rows.narrow(0, start, count).map_err(device)?;
        layer_norm(&wide(&rows)?, self.norm)
    }
}

/// All elements, as f32.
fn wide(tensor: &Tensor) -> Result<Vec<f32>, OpError> {
    tensor
        .to_dtype(DType::F32)
        .and_then(|tensor| tensor.flatten_all())
        .and_then(|tensor| tensor.to_vec1())
        .map_err(device)
}

fn gathered(rows: impl Iterator<Item = Result<Vec<f32>, OpError>>) -> Result<Vec<f32>, OpError> {
    Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Each question's options, weighted by how well they fit it: `[Q, W]`.
fn summaries(asked: &[f32], options: &[f32], questions: &[JointQuestion], width: usize) -> Vec<f32> {
    let mut out = output::<f32>(asked.len());
    let mut rest = options.chunks_exact(width);
    let rows = out.chunks_exact_mut(width).zip(asked.chunks_exact(width));
    for ((row, asked), question) in rows.zip(questions) {
        let options: Vec<&[f32]> = rest.by_ref().take(question.options.len()).collect();
        dispatch(
            #[inline(always)]
            || {
                let scale = 1.0 / (width as f32).sqrt();
                let mut weights: Vec<f32> = options.iter().map(|option| scale * dot(option, asked)).collect();
                let highest = largest(&weights);
                weights.iter_mut().for_each(|s| *s = decay(*s - highest));
                let total = 1.0 / sum(&weights);
                row.fill(0.0);
                for (option, weight) in options.iter().zip(&weights) {
                    add_scaled(row, option, weight * total);
                }
            },
        );
    }
    out
}
