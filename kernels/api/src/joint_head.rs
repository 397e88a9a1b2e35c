//! A head that decides all questions of a sequence together: its weights, and what it is asked.
//!
//! Sizes: H hidden, W width, F inside of the feed-forward layers. Vectors are f32; a norm here is a layer norm,
//! `(x − mean) · rsqrt(variance + 1e-5) · weight + bias`.

use std::ops::Range;

use crate::Space;

/// Sizes of a joint head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointHeadShape {
    /// W.
    pub width: usize,
    /// Layers in which options look up evidence.
    pub routing_layers: usize,
    /// Layers of the decoder over questions.
    pub layers: usize,
    /// Heads of every attention; W is a multiple of it.
    pub heads: usize,
    /// F.
    pub feedforward: usize,
}

/// Rows of the type embedding.
pub const QUESTION_TYPES: usize = 3;

/// A question, by where its text and its options stand in the sequence. Spans may overlap; none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointQuestion {
    /// Row of the type embedding, below [`QUESTION_TYPES`].
    pub kind: usize,
    /// Tokens of the question.
    pub span: Range<usize>,
    /// Tokens of each option; at least one option.
    pub options: Vec<Range<usize>>,
}

/// `x · Wᵀ + b`.
pub struct Affine<S: Space> {
    /// [N, K].
    pub weight: S::Matrix,
    /// [N].
    pub bias: S::Tensor,
}

/// A layer norm.
pub struct LayerNorm<S: Space> {
    /// [D], as it is.
    pub weight: S::Tensor,
    /// [D].
    pub bias: S::Tensor,
}

/// Multi-head attention of all queries over all keys, scale `(W / heads)^-0.5`.
pub struct MultiHead<S: Space> {
    /// [W, W].
    pub query: Affine<S>,
    /// key | value, [2 W, W].
    pub key_value: Affine<S>,
    /// [W, W].
    pub output: Affine<S>,
}

/// `outer(gelu(inner(x)))`, with the exact gelu.
pub struct FeedForward<S: Space> {
    /// [F, W].
    pub inner: Affine<S>,
    /// [W, F].
    pub outer: Affine<S>,
}

/// Options look up evidence in the normed memory.
pub struct EvidenceLayer<S: Space> {
    /// Before the attention, of the options.
    pub query_norm: LayerNorm<S>,
    /// Before the attention, of the memory.
    pub memory_norm: LayerNorm<S>,
    /// Options over memory.
    pub attention: MultiHead<S>,
    /// Before the feed-forward layer.
    pub feedforward_norm: LayerNorm<S>,
    /// The feed-forward layer.
    pub feedforward: FeedForward<S>,
}

/// Questions see each other, then the memory as it is.
pub struct QuestionLayer<S: Space> {
    /// Before the attention over questions.
    pub self_norm: LayerNorm<S>,
    /// Questions over questions.
    pub self_attention: MultiHead<S>,
    /// Before the attention over the memory, of the questions.
    pub memory_norm: LayerNorm<S>,
    /// Questions over memory.
    pub memory_attention: MultiHead<S>,
    /// Before the feed-forward layer.
    pub feedforward_norm: LayerNorm<S>,
    /// The feed-forward layer.
    pub feedforward: FeedForward<S>,
}

/// The weights of a joint head.
pub struct JointHead<S: Space> {
    /// Its sizes.
    pub shape: JointHeadShape,
    /// Of the rows, [H].
    pub hidden_norm: LayerNorm<S>,
    /// Normed rows to memory, [W, H].
    pub memory: S::Matrix,
    /// Question to its token, [W, H].
    pub question: S::Matrix,
    /// Question to each of its options, [W, H].
    pub option_question: S::Matrix,
    /// Last row to every question, [W, H].
    pub global: S::Matrix,
    /// Option, as the rows say it, [W, H].
    pub option_context: S::Matrix,
    /// Option, as the output embedding says it, [W, H].
    pub option_lexical: S::Matrix,
    /// One [W] per type of question.
    pub types: Vec<S::Tensor>,
    /// Layers over options.
    pub evidence: Vec<EvidenceLayer<S>>,
    /// Of the weighted options of a question.
    pub option_summary_norm: LayerNorm<S>,
    /// Layers over questions.
    pub questions: Vec<QuestionLayer<S>>,
    /// Of the questions, after the last layer.
    pub question_norm: LayerNorm<S>,
    /// Of the options, after their layers.
    pub option_norm: LayerNorm<S>,
    /// question | option | product | distance to what is added to the cosine: [W, 4 W], [1, W].
    pub residual_scorer: FeedForward<S>,
    /// Logarithm of the factor of the lexical cosine; counts up to ln 100.
    pub prior_logit_scale: f32,
    /// Logarithm of the factor of the learned cosine; counts up to ln 100.
    pub joint_logit_scale: f32,
    /// Its sigmoid weighs the learned score.
    pub residual_gate: f32,
}

/// Where the tensors of a head come from, by the names of their file.
pub trait JointHeadTensors<S: Space> {
    /// Why a tensor is not to be had.
    type Error;

    /// Some rows of `[_, inputs]`.
    fn matrix(&mut self, name: &str, rows: Range<usize>, inputs: usize) -> Result<S::Matrix, Self::Error>;

    /// Some of the elements, row by row, as a vector.
    fn vector(&mut self, name: &str, elements: Range<usize>) -> Result<S::Tensor, Self::Error>;

    /// A single value.
    fn scalar(&mut self, name: &str) -> Result<f32, Self::Error>;
}

impl<S: Space> JointHead<S> {
    /// Takes every tensor once, wholly.
    pub fn load<T: JointHeadTensors<S>>(
        shape: JointHeadShape,
        hidden: usize,
        tensors: &mut T,
    ) -> Result<Self, T::Error> {
        let JointHeadShape {
            width, feedforward, ..
        } = shape;
        let mut parts = Parts {
            width,
            feedforward,
            tensors,
        };
        let mut projection = |name: &str| parts.tensors.matrix(&format!("{name}.weight"), 0..width, hidden);
        let (memory, question) = (
            projection("memory_projection")?,
            projection("question_projection")?,
        );
        let option_question = projection("option_question_projection")?;
        let global = projection("global_projection")?;
        let option_context = projection("option_context_projection")?;
        let option_lexical = projection("option_lexical_projection")?;
        let types = (0..QUESTION_TYPES)
            .map(|row| {
                parts
                    .tensors
                    .vector("type_embedding.weight", row * width..(row + 1) * width)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            shape,
            hidden_norm: parts.norm("hidden_norm", hidden)?,
            memory,
            question,
            option_question,
            global,
            option_context,
            option_lexical,
            types,
            evidence: (0..shape.routing_layers)
                .map(|index| parts.evidence(&format!("evidence_layers.{index}")))
                .collect::<Result<_, _>>()?,
            option_summary_norm: parts.norm("option_summary_norm", width)?,
            questions: (0..shape.layers)
                .map(|index| parts.question(&format!("layers.{index}")))
                .collect::<Result<_, _>>()?,
            question_norm: parts.norm("field_norm", width)?,
            option_norm: parts.norm("option_norm", width)?,
            residual_scorer: FeedForward {
                inner: parts.affine("residual_scorer.0", width, 4 * width)?,
                outer: parts.affine("residual_scorer.3", 1, width)?,
            },
            prior_logit_scale: parts.tensors.scalar("prior_logit_scale")?,
            joint_logit_scale: parts.tensors.scalar("joint_logit_scale")?,
            residual_gate: parts.tensors.scalar("residual_gate")?,
        })
    }
}

struct Parts<'a, T> {
    width: usize,
    feedforward: usize,
    tensors: &'a mut T,
}

impl<T> Parts<'_, T> {
    fn norm<S: Space>(&mut self, name: &str, columns: usize) -> Result<LayerNorm<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        Ok(LayerNorm {
            weight: self.tensors.vector(&format!("{name}.weight"), 0..columns)?,
            bias: self.tensors.vector(&format!("{name}.bias"), 0..columns)?,
        })
    }

    fn affine<S: Space>(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Affine<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        Ok(Affine {
            weight: self
                .tensors
                .matrix(&format!("{name}.weight"), 0..outputs, inputs)?,
            bias: self.tensors.vector(&format!("{name}.bias"), 0..outputs)?,
        })
    }

    fn feedforward<S: Space>(&mut self, inner: &str, outer: &str) -> Result<FeedForward<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        Ok(FeedForward {
            inner: self.affine(inner, self.feedforward, self.width)?,
            outer: self.affine(outer, self.width, self.feedforward)?,
        })
    }

    fn attention<S: Space>(&mut self, name: &str) -> Result<MultiHead<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        let width = self.width;
        let mut input = |rows: Range<usize>| {
            Ok(Affine {
                weight: self
                    .tensors
                    .matrix(&format!("{name}.in_proj_weight"), rows.clone(), width)?,
                bias: self.tensors.vector(&format!("{name}.in_proj_bias"), rows)?,
            })
        };
        Ok(MultiHead {
            query: input(0..width)?,
            key_value: input(width..3 * width)?,
            output: self.affine(&format!("{name}.out_proj"), width, width)?,
        })
    }

    fn evidence<S: Space>(&mut self, at: &str) -> Result<EvidenceLayer<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        let width = self.width;
        Ok(EvidenceLayer {
            query_norm: self.norm(&format!("{at}.query_norm"), width)?,
            memory_norm: self.norm(&format!("{at}.memory_norm"), width)?,
            attention: self.attention(&format!("{at}.attention"))?,
            feedforward_norm: self.norm(&format!("{at}.feedforward_norm"), width)?,
            feedforward: self.feedforward(&format!("{at}.feedforward.0"), &format!("{at}.feedforward.3"))?,
        })
    }

    fn question<S: Space>(&mut self, at: &str) -> Result<QuestionLayer<S>, T::Error>
    where
        T: JointHeadTensors<S>,
    {
        let width = self.width;
        Ok(QuestionLayer {
            self_norm: self.norm(&format!("{at}.norm1"), width)?,
            self_attention: self.attention(&format!("{at}.self_attn"))?,
            memory_norm: self.norm(&format!("{at}.norm2"), width)?,
            memory_attention: self.attention(&format!("{at}.multihead_attn"))?,
            feedforward_norm: self.norm(&format!("{at}.norm3"), width)?,
            feedforward: self.feedforward(&format!("{at}.linear1"), &format!("{at}.linear2"))?,
        })
    }
}
