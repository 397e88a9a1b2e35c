//! The joint head: a small one with the head size, the ratios and the numbers of layers of the model's, over random questions.

use std::{collections::HashMap, ops::Range};

use candle_core::Tensor;
use deltagate_kernels_api::{
    Agreement, JointHead, JointHeadShape, JointHeadTensors, JointQuestion, ProbeCase, QUESTION_TYPES, Random,
    Readout, Refusal, compare,
};
use deltagate_kernels_reference as reference;
use deltagate_kernels_weights::{Dtype, TensorView};

use super::{
    Context, run,
    sample::{Sample, rounded, widened},
};
use crate::{Cpu, CpuDtype, Loader, Matrix};

/// Cuts: columns of the rows, heads and their size, columns of the feed-forward layers, layers of a kind, rows of the table.
const HIDDEN: usize = 160;
const HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const FEEDFORWARD: usize = 160;
const LAYERS: usize = 2;
const TABLE: usize = 128;

/// One forward of the head. Its questions and options are fewer where the sequence is short: a single token still has a question with
/// an option, which then are the same token.
pub(super) fn check(
    op: &dyn Readout<Cpu>,
    context: &Context,
    shape: JointHeadShape,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let random = &mut Random::new(case.seed ^ 0x4a48);
    let (shape, hidden) = (cut(shape), context.shapes.hidden.min(HIDDEN));
    let sizes = reference::JointHeadShape {
        hidden,
        width: shape.width,
        routing_layers: shape.routing_layers,
        layers: shape.layers,
        heads: shape.heads,
        feedforward: shape.feedforward,
    };
    let mut tensors = Tensors::random(random, &sizes, context.dtype);
    let head = JointHead::load(shape, hidden, &mut tensors)?;
    let rows = Sample::random(random, case.tokens, hidden, 2.0, context.dtype)?;
    let vocabulary = context.shapes.vocabulary.min(TABLE);
    let table = Sample::random(random, vocabulary, hidden, 1.0, context.dtype)?;
    let ids: Vec<u32> = (0..case.tokens)
        .map(|_| random.below(vocabulary) as u32)
        .collect();
    let questions = questions(random, case.tokens);
    let actual = run(|| op.joint(&rows.tensor, &ids, &table.tensor, &head, &questions))?;
    let exact = tensors
        .values
        .iter()
        .map(|(name, values)| (name.clone(), widened(values)));
    let asked: Vec<_> = questions
        .into_iter()
        .map(|question| reference::JointQuestion {
            kind: question.kind,
            span: question.span,
            options: question.options,
        })
        .collect();
    let expected = reference::joint_head(&sizes, &exact.collect(), &rows.exact, &table.exact, &ids, &asked);
    compare(&actual, &expected.logits)
}

fn cut(shape: JointHeadShape) -> JointHeadShape {
    let heads = shape.heads.min(HEADS);
    let head_dim = (shape.width / shape.heads.max(1)).min(HEAD_DIM);
    JointHeadShape {
        width: heads * head_dim,
        routing_layers: shape.routing_layers.min(LAYERS),
        layers: shape.layers.min(LAYERS),
        heads,
        feedforward: shape.feedforward.min(FEEDFORWARD),
    }
}

/// One to four questions of every type, with one to five options, of one token up to a quarter of the sequence. The last token is
/// always part of one.
fn questions(random: &mut Random, tokens: usize) -> Vec<JointQuestion> {
    let count = 1 + random.below(4.min(tokens));
    let mut questions: Vec<JointQuestion> = (0..count)
        .map(|at| JointQuestion {
            kind: (at + random.below(2)) % QUESTION_TYPES,
            span: span(random, tokens),
            options: (0..=random.below(5)).map(|_| span(random, tokens)).collect(),
        })
        .collect();
    if let Some(option) = questions.last_mut().and_then(|last| last.options.last_mut()) {
        *option = tokens - 1..tokens;
    }
    questions
}

fn span(random: &mut Random, tokens: usize) -> Range<usize> {
    let length = 1 + random.below(tokens.div_ceil(4));
    let start = random.below(tokens - length + 1);
    start..start + length
}

/// The tensors of a head, by name.
struct Tensors {
    values: HashMap<String, Vec<f32>>,
    dtype: CpuDtype,
}

impl Tensors {
    /// Weights that keep the size of what they multiply; norms around one.
    fn random(random: &mut Random, shape: &reference::JointHeadShape, dtype: CpuDtype) -> Self {
        let values = reference::joint_head_tensors(shape)
            .into_iter()
            .map(|(name, dims)| {
                let count = dims.iter().product();
                let values = match *dims {
                    [_, inputs] => {
                        let range = (3.0 / inputs as f64).sqrt();
                        rounded(random.values(count, -range, range), dtype)
                    }
                    [_] if name.ends_with("weight") => random.values(count, 0.5, 1.5),
                    _ => random.values(count, -0.5, 0.5),
                };
                (name, values)
            })
            .collect();
        Self { values, dtype }
    }

    fn part<R>(
        &self,
        name: &str,
        elements: Range<usize>,
        shape: &[usize],
        load: impl FnOnce(&TensorView<'_>) -> Result<R, crate::LoadError>,
    ) -> Result<R, Refusal> {
        let part = self.values.get(name).and_then(|values| values.get(elements));
        let part = part.ok_or_else(|| Refusal(format!("no tensor `{name}`")))?;
        let bytes: Vec<u8> = part.iter().flat_map(|v| v.to_le_bytes()).collect();
        load(&TensorView {
            name: "probe",
            dtype: Dtype::F32,
            shape,
            bytes: &bytes,
        })
        .map_err(Refusal::new)
    }
}

impl JointHeadTensors<Cpu> for Tensors {
    type Error = Refusal;

    fn matrix(&mut self, name: &str, rows: Range<usize>, inputs: usize) -> Result<Matrix, Refusal> {
        let shape = [rows.len(), inputs];
        let elements = rows.start * inputs..rows.end * inputs;
        self.part(name, elements, &shape, |view| {
            Loader::new(self.dtype).matrix(&[*view], inputs)
        })
    }

    fn vector(&mut self, name: &str, elements: Range<usize>) -> Result<Tensor, Refusal> {
        let shape = [elements.len()];
        self.part(name, elements, &shape, |view| {
            Loader::new(self.dtype).vector(view, shape[0])
        })
    }

    fn scalar(&mut self, name: &str) -> Result<f32, Refusal> {
        let value = self.values.get(name).and_then(|values| values.first());
        value
            .copied()
            .ok_or_else(|| Refusal(format!("no tensor `{name}`")))
    }
}
