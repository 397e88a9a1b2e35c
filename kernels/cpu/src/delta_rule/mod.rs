//! `delta_rule`: the gates, and two ways to the same numbers.

mod chunked;
mod gates;
mod input;
mod recurrent;

pub use chunked::Chunked;
pub use recurrent::Recurrent;

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Shape, Tensor, bail};
use deltagate_kernels_api::{Beta, Decay, DeltaRuleShape, Gates, LogDecay, OpError};
use half::bf16;
use rayon::prelude::*;

use crate::{
    buffer::output,
    element::{Element, Rows, dtype},
    rows::column_strips,
    space::{device, expect_matrix, expect_shape},
};
use input::Input;

/// What the two ways differ in: the outputs of one key head and of the value heads that share it.
trait Method: Send + Sync {
    const NAME: &'static str;

    /// `out[h][t]` is the row of value head `h` of the group, at token `t`.
    fn group<E: Element>(input: &Input<'_, E>, key_head: usize, out: Vec<Vec<&mut [E]>>);
}

fn apply<M: Method>(qkv: &Tensor, gates: &Gates<Tensor>, shape: &DeltaRuleShape) -> Result<Tensor, OpError> {
    let Decay::Log(LogDecay(decay)) = &gates.decay else {
        return Err(OpError::WrongDecay {
            expected: "its logarithm",
        });
    };
    let Beta(beta) = &gates.beta;
    let (tokens, _) = expect_matrix("qkv", qkv)?;
    expect_shape("qkv", qkv, &[tokens, shape.qkv_columns()])?;
    expect_shape("decay", decay, &[tokens, shape.value_heads])?;
    expect_shape("beta", beta, &[tokens, shape.value_heads])?;
    if shape.key_heads == 0 || !shape.value_heads.is_multiple_of(shape.key_heads) {
        let expected = vec![shape.key_heads];
        return Err(OpError::Shape {
            argument: "value heads",
            expected,
            found: vec![shape.value_heads],
        });
    }
    let op = Rule::<M> {
        shape: *shape,
        method: std::marker::PhantomData,
    };
    qkv.apply_op3_no_bwd(decay, beta, &op).map_err(device)
}

struct Rule<M> {
    shape: DeltaRuleShape,
    method: std::marker::PhantomData<M>,
}

impl<M: Method> CustomOp3 for Rule<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_l: &Layout,
        decay: &CpuStorage,
        decay_l: &Layout,
        beta: &CpuStorage,
        beta_l: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (decay, beta) = (Rows::<f32>::of(decay, decay_l)?, Rows::<f32>::of(beta, beta_l)?);
        match dtype(qkv) {
            DType::F32 => run::<M, f32>(Input {
                shape: self.shape,
                qkv: Rows::of(qkv, qkv_l)?,
                decay,
                beta,
            }),
            DType::BF16 => run::<M, bf16>(Input {
                shape: self.shape,
                qkv: Rows::of(qkv, qkv_l)?,
                decay,
                beta,
            }),
            other => bail!("dtype {other:?} is not served"),
        }
    }
}

/// All key heads, in parallel; each writes the column strip of its value heads.
fn run<M: Method, E: Element>(input: Input<'_, E>) -> candle_core::Result<(CpuStorage, Shape)> {
    let columns = input.shape.value_columns();
    let mut out = output::<E>(input.tokens() * columns);
    let mut strips = column_strips(&mut out, input.shape.value_heads, input.shape.value_dim).into_iter();
    let groups: Vec<Vec<_>> = (0..input.shape.key_heads)
        .map(|_| strips.by_ref().take(input.group()).collect())
        .collect();
    groups
        .into_par_iter()
        .enumerate()
        .for_each(|(key_head, out)| M::group(&input, key_head, out));
    Ok((E::to_cpu_storage_owned(out), (input.tokens(), columns).into()))
}
