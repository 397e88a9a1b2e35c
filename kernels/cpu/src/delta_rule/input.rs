//! The arguments of the delta rule, read head by head.

use deltagate_kernels_api::DeltaRuleShape;

use crate::{
    element::{Element, Rows},
    vector::{dispatch, scale_into, sum_of_squares},
};

/// Added to the sum of squares of q and k; not the config's epsilon.
const L2_EPSILON: f32 = 1e-6;

pub(super) struct Input<'a, E> {
    pub(super) shape: DeltaRuleShape,
    pub(super) qkv: Rows<'a, E>,
    pub(super) decay: Rows<'a, f32>,
    pub(super) beta: Rows<'a, f32>,
}

impl<E: Element> Input<'_, E> {
    pub(super) const fn tokens(&self) -> usize {
        self.qkv.count()
    }

    /// Value heads per key head.
    pub(super) const fn group(&self) -> usize {
        self.shape.value_heads / self.shape.key_heads
    }

    /// Normalised query of a key head, scaled by `Dk^-0.5`.
    pub(super) fn query(&self, token: usize, key_head: usize, to: &mut [f32], scratch: &mut Vec<f32>) {
        let dim = self.shape.key_dim;
        let x = self.qkv.read(token, key_head * dim, dim, scratch);
        dispatch(
            #[inline(always)]
            || unit(to, x, 1.0 / (dim as f32).sqrt()),
        );
    }

    /// Normalised key of a key head.
    pub(super) fn key(&self, token: usize, key_head: usize, to: &mut [f32], scratch: &mut Vec<f32>) {
        let dim = self.shape.key_dim;
        let x = self
            .qkv
            .read(token, self.shape.key_columns() + key_head * dim, dim, scratch);
        dispatch(
            #[inline(always)]
            || unit(to, x, 1.0),
        );
    }

    /// Value of a value head.
    pub(super) fn value<'s>(
        &'s self,
        token: usize,
        value_head: usize,
        scratch: &'s mut Vec<f32>,
    ) -> &'s [f32] {
        let dim = self.shape.value_dim;
        self.qkv.read(
            token,
            2 * self.shape.key_columns() + value_head * dim,
            dim,
            scratch,
        )
    }
}

#[inline(always)]
fn unit(to: &mut [f32], x: &[f32], factor: f32) {
    let scale = factor / (sum_of_squares(x) + L2_EPSILON).sqrt();
    scale_into(to, x, scale);
}
