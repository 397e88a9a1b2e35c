//! Families that mix tokens.

use std::time::Duration;

use candle_core::Tensor;
use deltagate_kernels_api::{
    Agreement, Attention, AttentionShape, AttentionWeights, Conv1d, Decay, DeltaRule, DeltaRuleShape,
    GateWeights, ProbeCase, Random, Refusal, compare,
};
use deltagate_kernels_reference as reference;

use super::{
    Context, clock, run,
    sample::{Sample, elements},
};
use crate::{Cpu, CpuDtype};

/// Cuts: channels, and heads of each kind.
const CHANNELS: usize = 384;
const KEY_HEADS: usize = 2;
/// The longest sequence whose noncausal attention is checked, too: its oracle is quadratic.
const NONCAUSAL: usize = 136;

fn convolution(
    context: &Context,
    case: &ProbeCase,
    channels: usize,
) -> Result<(Sample, Sample, Tensor), Refusal> {
    let (random, taps) = (&mut Random::new(case.seed), context.shapes.conv_taps);
    let x = Sample::random(random, case.tokens, channels, 2.0, context.dtype)?;
    let w = Sample::new(
        random.values(channels * taps, -0.7, 0.7),
        channels,
        taps,
        CpuDtype::F32,
    )?;
    // The op gets a view of wider rows, as in the model, where z, b and a stand beside the channels.
    let strange = Sample::random(random, case.tokens, 16, 9.0, context.dtype)?;
    let wide = Tensor::cat(&[&x.tensor, &strange.tensor], 1).and_then(|t| t.narrow(1, 0, channels));
    Ok((x, w, wide.map_err(Refusal::new)?))
}

pub(super) fn check_conv1d(
    op: &dyn Conv1d<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let channels = context.shapes.delta_rule.qkv_columns().min(CHANNELS);
    let (x, w, view) = convolution(context, case, channels)?;
    let actual = elements(&run(|| op.conv1d(&view, &w.tensor))?)?;
    compare(
        &actual,
        &reference::conv1d(&x.exact, &w.exact, channels, context.shapes.conv_taps),
    )
}

pub(super) fn time_conv1d(
    op: &dyn Conv1d<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let (_, w, view) = convolution(context, case, context.shapes.delta_rule.qkv_columns())?;
    clock(|| op.conv1d(&view, &w.tensor))
}

struct Rule {
    qkv: Sample,
    b: Vec<f64>,
    a: Vec<f64>,
    ba: Tensor,
    a_log: Sample,
    dt_bias: Sample,
}

/// Keys of a head resemble each other, so that they overwrite each other's values; decays reach from none to total, within one head.
fn rule(context: &Context, case: &ProbeCase, shape: &DeltaRuleShape) -> Result<Rule, Refusal> {
    let random = &mut Random::new(case.seed);
    let (columns, heads) = (shape.qkv_columns(), shape.value_heads);
    let base = random.values(columns, -0.7, 0.7);
    let noise = random.values(case.tokens * columns, -1.0, 1.0);
    let qkv = noise
        .iter()
        .enumerate()
        .map(|(at, n)| base[at % columns] + n)
        .collect();
    let qkv = Sample::new(qkv, case.tokens, columns, context.dtype)?;
    let b = Sample::random(random, case.tokens, heads, 4.0, context.dtype)?;
    let mut a = random.values(case.tokens * heads, -4.0, 4.0);
    a.iter_mut().step_by(29).for_each(|a| *a = 30.0);
    let a = Sample::new(a, case.tokens, heads, context.dtype)?;
    let ba = Tensor::cat(&[&b.tensor, &a.tensor], 1).map_err(Refusal::new)?;
    let a_log = Sample::vector(random.values(heads, -4.0, 2.0))?;
    let dt_bias = Sample::vector(random.values(heads, -3.0, 1.0))?;
    Ok(Rule {
        qkv,
        b: b.exact,
        a: a.exact,
        ba,
        a_log,
        dt_bias,
    })
}

pub(super) fn check_delta_rule(
    op: &dyn DeltaRule<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let full = context.shapes.delta_rule;
    let key_heads = full.key_heads.min(KEY_HEADS);
    let shape = DeltaRuleShape {
        key_heads,
        value_heads: key_heads * (full.value_heads / full.key_heads),
        ..full
    };
    let Rule {
        qkv,
        b,
        a,
        ba,
        a_log,
        dt_bias,
    } = rule(context, case, &shape)?;
    let (log_decay, beta) = reference::gates(&a, &b, &a_log.exact, &dt_bias.exact);
    let gates = run(|| {
        op.gates(
            &ba,
            &GateWeights {
                a_log: &a_log.tensor,
                dt_bias: &dt_bias.tensor,
            },
        )
    })?;
    let mut agreement = compare(&elements(&gates.beta.0)?, &beta)?;
    agreement = agreement.worse(match &gates.decay {
        Decay::Log(decay) => compare(&elements(&decay.0)?, &log_decay)?,
        Decay::Alpha(decay) => {
            let alpha: Vec<f64> = log_decay.iter().map(|g| g.exp()).collect();
            compare(&elements(&decay.0)?, &alpha)?
        }
    });
    // The largest log-decay is no measure for the outputs.
    agreement.largest = 0.0;
    agreement.worst_element = 0.0;

    let q_k = |from: usize| {
        let rows = qkv.exact.chunks_exact(shape.qkv_columns());
        let columns: Vec<f64> = rows
            .flat_map(|row| &row[from..from + shape.key_columns()])
            .copied()
            .collect();
        reference::l2_norm(&columns, shape.key_dim)
    };
    let values = qkv
        .exact
        .chunks_exact(shape.qkv_columns())
        .flat_map(|row| &row[2 * shape.key_columns()..]);
    let expected = reference::delta_rule(
        reference::DeltaRuleShape {
            key_heads: shape.key_heads,
            value_heads: shape.value_heads,
            key_dim: shape.key_dim,
            value_dim: shape.value_dim,
        },
        &q_k(0),
        &q_k(shape.key_columns()),
        &values.copied().collect::<Vec<_>>(),
        &log_decay,
        &beta,
        1.0 / (shape.key_dim as f64).sqrt(),
    );
    let actual = elements(&run(|| op.delta_rule(&qkv.tensor, &gates, &shape))?)?;
    Ok(agreement.worse(compare(&actual, &expected)?))
}

pub(super) fn time_delta_rule(
    op: &dyn DeltaRule<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let shape = context.shapes.delta_rule;
    let Rule {
        qkv,
        ba,
        a_log,
        dt_bias,
        ..
    } = rule(context, case, &shape)?;
    let weights = GateWeights {
        a_log: &a_log.tensor,
        dt_bias: &dt_bias.tensor,
    };
    clock(|| {
        op.gates(&ba, &weights)
            .and_then(|gates| op.delta_rule(&qkv.tensor, &gates, &shape))
    })
}

struct Attended {
    qkv: Sample,
    q_norm: Sample,
    k_norm: Sample,
}

fn attended(context: &Context, case: &ProbeCase, shape: &AttentionShape) -> Result<Attended, Refusal> {
    let random = &mut Random::new(case.seed);
    Ok(Attended {
        qkv: Sample::random(random, case.tokens, shape.input_columns(), 2.0, context.dtype)?,
        q_norm: Sample::vector(random.values(shape.head_dim, -0.5, 0.5))?,
        k_norm: Sample::vector(random.values(shape.head_dim, -0.5, 0.5))?,
    })
}

pub(super) fn check_attention(
    op: &dyn Attention<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let full = context.shapes.attention;
    let kv_heads = full.kv_heads.min(2);
    let shape = AttentionShape {
        kv_heads,
        heads: kv_heads * (full.heads / full.kv_heads).min(2),
        ..full
    };
    let Attended { qkv, q_norm, k_norm } = attended(context, case, &shape)?;
    let weights = AttentionWeights {
        q_norm: &q_norm.tensor,
        k_norm: &k_norm.tensor,
    };
    let part = |from: usize, count: usize| -> Vec<f64> {
        qkv.exact
            .chunks_exact(shape.input_columns())
            .flat_map(|row| &row[from..from + count])
            .copied()
            .collect()
    };
    let (k_from, kv) = (shape.query_gate_columns(), shape.kv_columns());
    let (query_gate, key, value) = (part(0, k_from), part(k_from, kv), part(k_from + kv, kv));
    let oracle = reference::AttentionShape {
        heads: shape.heads,
        kv_heads,
        head_dim: shape.head_dim,
        rotary_dim: shape.rotary_dim,
        rope_theta: shape.rope_theta,
        eps: shape.epsilon,
    };
    let mut agreement = Agreement::default();
    for causal in [true, false] {
        if !causal && case.tokens > NONCAUSAL {
            continue;
        }
        let actual = elements(&run(|| op.attention(&qkv.tensor, &weights, &shape, causal))?)?;
        let expected = reference::attention(
            &oracle,
            &query_gate,
            &key,
            &value,
            &q_norm.exact,
            &k_norm.exact,
            causal,
        );
        agreement = agreement.worse(compare(&actual, &expected)?);
    }
    Ok(agreement)
}

pub(super) fn time_attention(
    op: &dyn Attention<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let shape = context.shapes.attention;
    let Attended { qkv, q_norm, k_norm } = attended(context, case, &shape)?;
    let weights = AttentionWeights {
        q_norm: &q_norm.tensor,
        k_norm: &k_norm.tensor,
    };
    clock(|| op.attention(&qkv.tensor, &weights, &shape, true))
}
