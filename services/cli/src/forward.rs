//! `forward`: token ids through a backbone, for parity work. No decider, no service.

use std::{process::ExitCode, time::Duration};

use deltagate_checkpoint::Checkpoint;
use deltagate_executor::engine::{
    Dtype, Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone,
    SequencePlan,
};
use deltagate_kernels_api::Preferences;
use serde::Serialize;

use crate::{
    args::{ForwardArgs, Precision, Rows},
    body,
    output::{Failure, Output},
};

#[derive(Serialize)]
struct Rendered {
    tokens: usize,
    rows: Vec<Row>,
    /// Over all values of all rows.
    sum: f64,
    abs_sum: f64,
    /// Logits of the whole vocabulary at the last row; null for a model without an output embedding.
    logits: Option<Vec<f64>>,
}

#[derive(Serialize)]
struct Row {
    index: u32,
    values: Vec<f64>,
}

/// Lets every segment pass.
struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
}

pub(crate) fn run(args: &ForwardArgs, output: Output) -> Result<ExitCode, Failure> {
    let ids: Vec<u32> = serde_json::from_slice(&body::read(&args.ids)?).map_err(|e| {
        Failure::usage(format!(
            "{}: a JSON array of token ids is needed: {e}",
            args.ids.display()
        ))
    })?;
    let checkpoint = Checkpoint::open(&args.model).map_err(Failure::usage)?;
    let settings = EngineSettings {
        dtype: if args.dtype == Precision::F32 {
            Dtype::F32
        } else {
            Dtype::Bf16
        },
        threads: None,
        preferences: Preferences::default(),
        segment_tokens: 512,
        max_segments: 8,
        probe_timeout: Duration::from_secs(60),
    };
    let mut engine = Engine::load(&checkpoint, &settings, &mut |_| {}).map_err(Failure::failed)?;
    let mut read = |projection: Projection, rows: RowSelection| {
        let plan = ForwardPlan {
            sequences: vec![SequencePlan {
                token_ids: ids.clone(),
                rows,
                projection,
            }],
            noncausal_full_attention: args.noncausal,
        };
        let output = engine.forward(&plan, &mut Unwatched).map_err(Failure::failed)?;
        output
            .sequences
            .into_iter()
            .next()
            .ok_or_else(|| Failure::failed("the forward pass gave nothing"))
    };
    let all = read(Projection::Hidden, RowSelection::All)?;
    let logits = match checkpoint.output_embedding().map_err(Failure::failed)? {
        Some(_) => {
            let vocabulary = (0..checkpoint.card().config.vocab_size as u32).collect();
            let rows = read(Projection::OutputEmbedding(vocabulary), RowSelection::Last)?;
            rows.into_iter()
                .next()
                .map(|r| r.values.into_iter().map(f64::from).collect())
        }
        None => None,
    };
    let values = || all.iter().flat_map(|r| r.values.iter().map(|v| f64::from(*v)));
    let (sum, abs_sum) = (values().sum(), values().map(f64::abs).sum());
    let skip = if args.rows == Rows::Last {
        all.len().saturating_sub(1)
    } else {
        0
    };
    let rows = all
        .into_iter()
        .skip(skip)
        .map(|r| Row {
            index: r.position,
            values: r.values.into_iter().map(f64::from).collect(),
        })
        .collect();
    output.print(
        &Rendered {
            tokens: ids.len(),
            rows,
            sum,
            abs_sum,
            logits,
        },
        text,
    )?;
    Ok(ExitCode::SUCCESS)
}

fn text(rendered: &Rendered) -> String {
    let mut out = format!(
        "{} tokens, sum {:.5}, abs sum {:.5}",
        rendered.tokens, rendered.sum, rendered.abs_sum
    );
    for row in &rendered.rows {
        let head: Vec<_> = row.values.iter().take(8).map(|v| format!("{v:.5}")).collect();
        out += &format!("\nrow {}: {} …", row.index, head.join(" "));
    }
    if let Some(logits) = &rendered.logits {
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        out += &best.map_or_else(String::new, |(id, z)| format!("\nhighest logit: id {id}, {z:.5}"));
    }
    out
}
