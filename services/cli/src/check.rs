//! `check MODEL_DIR`: what a folder is, whether it would load, and why not.

use std::process::ExitCode;

use deltagate_checkpoint::{Inspection, inspect};

use crate::{
    args::CheckArgs,
    output::{Failure, Output},
};

pub(crate) fn run(args: &CheckArgs, output: Output) -> Result<ExitCode, Failure> {
    let inspection = inspect(&args.model);
    output.print(&inspection, text)?;
    Ok(if inspection.would_load {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(inspection: &Inspection) -> String {
    let mut lines = Vec::new();
    if let Some(card) = &inspection.card {
        let full = card
            .config
            .layers
            .iter()
            .filter(|l| **l == deltagate_checkpoint::LayerKind::FullAttention)
            .count();
        lines.push(format!(
            "{}: {}",
            card.name,
            card.family
                .as_deref()
                .unwrap_or("no decider family, a backbone only")
        ));
        lines.push(format!(
            "  {} parameters, {} layers ({full} full attention), hidden {}, {} tokens at most",
            card.parameters,
            card.config.layers.len(),
            card.config.hidden_size,
            card.max_tokens
        ));
        lines.push(format!("  digest {}", card.digest));
    }
    for finding in &inspection.findings {
        lines.push(format!("  {finding}"));
    }
    lines.push(if inspection.would_load {
        "would load".to_owned()
    } else {
        "would NOT load".to_owned()
    });
    lines.join("\n")
}
