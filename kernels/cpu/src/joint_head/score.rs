//! What an option scores against its question.

use deltagate_kernels_api::{JointHead, OpError};

use super::dense::feedforward;
use crate::{
    Cpu,
    buffer::output,
    vector::{dispatch, dot, sigmoid, sum_of_squares},
};

/// Everything that the logits are made of. `own` is the question of each option.
pub(super) struct Scored<'a> {
    pub(super) own: &'a [usize],
    /// Mean normed row of each question, `[Q, H]`.
    pub(super) asked: &'a [f32],
    /// The last normed row, `[H]`.
    pub(super) last: &'a [f32],
    /// Mean row of the output embedding of each option, `[O, H]`.
    pub(super) lexical: &'a [f32],
    /// Questions after their layers, `[Q, W]`.
    pub(super) questions: &'a [f32],
    /// Options after their layers, `[O, W]`.
    pub(super) options: &'a [f32],
}

impl Scored<'_> {
    /// Lexical cosine, and learned cosine and residual behind a gate: `[O]`.
    pub(super) fn logits(&self, head: &JointHead<Cpu>, hidden: usize) -> Result<Vec<f32>, OpError> {
        let width = head.shape.width;
        let pairs = self.own.iter().zip(self.options.chunks_exact(width));
        let mut paired = Vec::with_capacity(self.own.len() * 4 * width);
        for (&own, e) in pairs.clone() {
            let f = &self.questions[own * width..(own + 1) * width];
            paired.extend_from_slice(f);
            paired.extend_from_slice(e);
            paired.extend(f.iter().zip(e).map(|(f, e)| f * e));
            paired.extend(f.iter().zip(e).map(|(f, e)| (f - e).abs()));
        }
        let residual = feedforward(&paired, &head.residual_scorer)?;
        let scale = |logarithm: f32| logarithm.min(100f32.ln()).exp();
        let (prior, joint) = (scale(head.prior_logit_scale), scale(head.joint_logit_scale));
        let gate = sigmoid(head.residual_gate);
        let mut logits = output::<f32>(self.own.len());
        let lexical = self.lexical.chunks_exact(hidden);
        for ((logit, residual), ((&own, e), lexical)) in
            logits.iter_mut().zip(&residual).zip(pairs.zip(lexical))
        {
            let f = &self.questions[own * width..(own + 1) * width];
            let asked: Vec<f32> = self.asked[own * hidden..(own + 1) * hidden]
                .iter()
                .zip(self.last)
                .map(|(v, g)| v + g)
                .collect();
            let (similar, cosine) = dispatch(
                #[inline(always)]
                || {
                    (
                        dot(lexical, &asked) / (floor(length(lexical), 1e-12) * floor(length(&asked), 1e-12)),
                        dot(f, e) / floor(length(f) * length(e), 1e-8),
                    )
                },
            );
            *logit = prior * similar + gate * (joint * cosine + residual);
        }
        Ok(logits)
    }
}

#[inline(always)]
fn length(x: &[f32]) -> f32 {
    sum_of_squares(x).sqrt()
}

/// The larger of both; NaN stays NaN.
#[inline(always)]
fn floor(x: f32, least: f32) -> f32 {
    if x < least { least } else { x }
}
