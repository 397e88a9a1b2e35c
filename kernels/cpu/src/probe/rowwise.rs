//! Families that treat each token by itself.

use std::time::Duration;

use deltagate_kernels_api::{
    Agreement, Embed, GatedNorm, Mlp, Norm, ProbeCase, Projection, Random, Readout, Refusal, compare,
};
use deltagate_kernels_reference as reference;

use super::{
    Context, clock, joint_head, run,
    sample::{Sample, Weight, compare_rows, elements, gather, sampled_rows},
};
use crate::Cpu;

/// Cuts: sides of matrices, and rows of tables.
const INPUTS: usize = 1024;
const OUTPUTS: usize = 256;
const TABLE: usize = 512;
const HEADS: usize = 4;

struct Lookup {
    table: Sample,
    ids: Vec<u32>,
    columns: usize,
}

fn lookup(context: &Context, count: usize, random: &mut Random) -> Result<Lookup, Refusal> {
    let (rows, columns) = (context.shapes.vocabulary.min(TABLE), context.shapes.hidden);
    let table = Sample::random(random, rows, columns, 1.0, context.dtype)?;
    // The ends of the table are always asked for.
    let ids = (0..count).map(|i| if i == 0 { rows - 1 } else if i == 1 { 0 } else { random.below(rows) } as u32).collect();
    Ok(Lookup { table, ids, columns })
}

pub(super) fn check_embed(
    op: &dyn Embed<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let Lookup { table, ids, columns } = lookup(context, case.tokens, &mut Random::new(case.seed))?;
    let actual = elements(&run(|| op.embed(&table.tensor, &ids))?)?;
    compare(&actual, &reference::embed(&ids, &table.exact, columns))
}

pub(super) fn time_embed(
    op: &dyn Embed<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let Lookup { table, ids, .. } = lookup(context, case.tokens, &mut Random::new(case.seed))?;
    clock(|| op.embed(&table.tensor, &ids))
}

struct Normed {
    x: Sample,
    delta: Sample,
    w: Sample,
}

fn normed(context: &Context, case: &ProbeCase) -> Result<Normed, Refusal> {
    let (random, columns) = (&mut Random::new(case.seed), context.shapes.hidden);
    Ok(Normed {
        x: Sample::random(random, case.tokens, columns, 2.0, context.dtype)?,
        delta: Sample::random(random, case.tokens, columns, 0.5, context.dtype)?,
        w: Sample::vector(random.values(columns, -0.5, 0.5))?,
    })
}

/// With a delta, without one, and what has become of the residual.
pub(super) fn check_norm(
    op: &dyn Norm<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let Normed { x, delta, w } = normed(context, case)?;
    let epsilon = context.shapes.epsilon;
    let mut residual = x.tensor.copy().map_err(Refusal::new)?;
    let alone = elements(&run(|| op.add_norm(&mut residual, None, &w.tensor, epsilon))?)?;
    let alone = compare(&alone, &reference::rms_norm(&x.exact, &w.exact, epsilon))?;
    let kept = compare(&elements(&residual)?, &x.exact)?;
    let added = elements(&run(|| {
        op.add_norm(&mut residual, Some(&delta.tensor), &w.tensor, epsilon)
    })?)?;
    let sum: Vec<f64> = x.exact.iter().zip(&delta.exact).map(|(x, d)| x + d).collect();
    let added = compare(&added, &reference::rms_norm(&sum, &w.exact, epsilon))?;
    let carried = compare(&elements(&residual)?, &sum)?;
    Ok(alone.worse(kept).worse(added).worse(carried))
}

pub(super) fn time_norm(
    op: &dyn Norm<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let Normed { x, delta, w } = normed(context, case)?;
    let mut residual = x.tensor;
    clock(|| {
        op.add_norm(
            &mut residual,
            Some(&delta.tensor),
            &w.tensor,
            context.shapes.epsilon,
        )
    })
}

fn product(
    context: &Context,
    case: &ProbeCase,
    random: &mut Random,
) -> Result<(Sample, Weight, usize, usize), Refusal> {
    let (inputs, outputs) = (
        context.shapes.hidden.min(INPUTS),
        context.shapes.delta_rule.qkv_columns().min(OUTPUTS),
    );
    let x = Sample::random(random, case.tokens, inputs, 1.0, context.dtype)?;
    Ok((
        x,
        Weight::random(random, outputs, inputs, context.dtype)?,
        inputs,
        outputs,
    ))
}

pub(super) fn check_projection(
    op: &dyn Projection<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let random = &mut Random::new(case.seed);
    let (x, w, inputs, outputs) = product(context, case, random)?;
    let actual = elements(&run(|| op.project(&x.tensor, &w.matrix))?)?;
    let rows = sampled_rows(random, case.tokens);
    let expected = reference::linear(&gather(&x.exact, inputs, &rows), &w.exact, inputs);
    compare_rows(&actual, outputs, &rows, &expected)
}

pub(super) fn time_projection(
    op: &dyn Projection<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let (x, w, ..) = product(context, case, &mut Random::new(case.seed))?;
    clock(|| op.project(&x.tensor, &w.matrix))
}

struct Gated {
    o: Sample,
    z: Sample,
    w: Sample,
}

fn gated(context: &Context, case: &ProbeCase, heads: usize) -> Result<Gated, Refusal> {
    let (random, dim) = (&mut Random::new(case.seed), context.shapes.delta_rule.value_dim);
    let columns = heads * dim;
    Ok(Gated {
        o: Sample::random(random, case.tokens, columns, 1.0, context.dtype)?,
        z: Sample::random(random, case.tokens, columns, 4.0, context.dtype)?,
        w: Sample::vector(random.values(dim, 0.5, 1.5))?,
    })
}

pub(super) fn check_gated_norm(
    op: &dyn GatedNorm<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let epsilon = context.shapes.epsilon;
    let Gated { o, z, w } = gated(context, case, context.shapes.delta_rule.value_heads.min(HEADS))?;
    let actual = elements(&run(|| op.gated_norm(&o.tensor, &z.tensor, &w.tensor, epsilon))?)?;
    compare(
        &actual,
        &reference::gated_norm(&o.exact, &z.exact, &w.exact, epsilon),
    )
}

pub(super) fn time_gated_norm(
    op: &dyn GatedNorm<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let Gated { o, z, w } = gated(context, case, context.shapes.delta_rule.value_heads)?;
    clock(|| op.gated_norm(&o.tensor, &z.tensor, &w.tensor, context.shapes.epsilon))
}

struct GatedMlp {
    x: Sample,
    gate_up: Weight,
    down: Weight,
    hidden: usize,
    inner: usize,
}

fn gated_mlp(context: &Context, case: &ProbeCase, random: &mut Random) -> Result<GatedMlp, Refusal> {
    let (hidden, inner) = (
        context.shapes.hidden.min(OUTPUTS),
        context.shapes.intermediate.min(INPUTS),
    );
    Ok(GatedMlp {
        x: Sample::random(random, case.tokens, hidden, 2.0, context.dtype)?,
        gate_up: Weight::random(random, 2 * inner, hidden, context.dtype)?,
        down: Weight::random(random, hidden, inner, context.dtype)?,
        hidden,
        inner,
    })
}

pub(super) fn check_mlp(
    op: &dyn Mlp<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let random = &mut Random::new(case.seed);
    let GatedMlp {
        x,
        gate_up,
        down,
        hidden,
        inner,
    } = gated_mlp(context, case, random)?;
    let actual = elements(&run(|| op.mlp(&x.tensor, &gate_up.matrix, &down.matrix))?)?;
    let rows = sampled_rows(random, case.tokens);
    let (gate, up) = gate_up.exact.split_at(inner * hidden);
    let expected = reference::mlp(
        &gather(&x.exact, hidden, &rows),
        gate,
        up,
        &down.exact,
        hidden,
        inner,
    );
    compare_rows(&actual, hidden, &rows, &expected)
}

pub(super) fn time_mlp(op: &dyn Mlp<Cpu>, context: &Context, case: &ProbeCase) -> Result<Duration, Refusal> {
    let GatedMlp { x, gate_up, down, .. } = gated_mlp(context, case, &mut Random::new(case.seed))?;
    clock(|| op.mlp(&x.tensor, &gate_up.matrix, &down.matrix))
}

/// As many ids as tokens, read from a few rows; the rows themselves; and the joint head, where there is one.
pub(super) fn check_readout(
    op: &dyn Readout<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Agreement, Refusal> {
    let random = &mut Random::new(case.seed);
    let Lookup { table, ids, columns } = lookup(context, case.tokens, random)?;
    let rows = Sample::random(random, case.tokens.min(5), columns, 1.0, context.dtype)?;
    let hidden = run(|| op.hidden(&rows.tensor))?;
    let hidden = compare(&hidden.concat(), &rows.exact)?;
    let logits = run(|| op.logits(&rows.tensor, &table.tensor, &ids))?;
    let weight = reference::embed(&ids, &table.exact, columns);
    let logits = compare(
        &logits.concat(),
        &reference::linear(&rows.exact, &weight, columns),
    )?;
    let agreement = hidden.worse(logits);
    match context.shapes.joint_head {
        None => Ok(agreement),
        Some(shape) => Ok(agreement.worse(joint_head::check(op, context, shape, case)?)),
    }
}

pub(super) fn time_readout(
    op: &dyn Readout<Cpu>,
    context: &Context,
    case: &ProbeCase,
) -> Result<Duration, Refusal> {
    let random = &mut Random::new(case.seed);
    let Lookup { table, ids, columns } = lookup(context, case.tokens, random)?;
    let rows = Sample::random(random, 1, columns, 1.0, context.dtype)?;
    clock(|| op.logits(&rows.tensor, &table.tensor, &ids))
}
