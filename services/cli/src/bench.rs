//! `bench run` measures, `bench gate` judges.

use std::{path::Path, process::ExitCode, time::Duration};

use deltagate_evidence::{BenchSettings, Evidence, gate};
use serde::Serialize;

use crate::{
    args::{BenchAction, BenchArgs},
    body, config,
    output::{Failure, Output},
};

#[derive(Serialize)]
struct Summary {
    model: String,
    capability_fingerprint: String,
    tasks: usize,
    failures: usize,
    round_trip_ms: Option<deltagate_evidence::Percentiles>,
    forward_ms: Option<deltagate_evidence::Percentiles>,
}

pub(crate) async fn run(
    args: BenchArgs,
    sources: &config::Sources,
    output: Output,
) -> Result<ExitCode, Failure> {
    match args.action {
        BenchAction::Run {
            endpoint,
            tasks,
            warm_ups,
            passes,
            out,
        } => {
            let config = sources.load(&[])?.value;
            let classifier = config::gateway_endpoint(endpoint, &config);
            let tasks = read_tasks(&tasks)?;
            let settings = BenchSettings {
                warm_ups,
                passes,
                timeout: Duration::from_secs(30),
            };
            let evidence = deltagate_evidence::run(
                config::channel(&classifier)?,
                config::channel(&config.gateway.capability)?,
                &tasks,
                settings,
            )
            .await
            .map_err(Failure::failed)?;
            let text = serde_json::to_vec_pretty(&evidence).map_err(Failure::failed)?;
            std::fs::write(&out, text)
                .map_err(|e| Failure::failed(format!("cannot write {}: {e}", out.display())))?;
            let summary = Summary {
                model: evidence.model.clone(),
                capability_fingerprint: evidence.capability_fingerprint.clone(),
                tasks: evidence.tasks.len(),
                failures: evidence.failures(),
                round_trip_ms: evidence.round_trip(),
                forward_ms: evidence.forward(),
            };
            output.print(&summary, text_of_summary)?;
            Ok(if summary.failures == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        BenchAction::Gate { baseline, candidate } => {
            let verdict = gate(&read_evidence(&baseline)?, &read_evidence(&candidate)?);
            output.print(&verdict, |v| {
                format!(
                    "{}\n  {}",
                    if v.keep { "keep" } else { "reject" },
                    v.reasons.join("\n  ")
                )
            })?;
            Ok(if verdict.keep {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

fn text_of_summary(s: &Summary) -> String {
    let line = |name: &str, p: &Option<deltagate_evidence::Percentiles>| {
        p.map_or_else(
            || format!("{name:<12} no sample"),
            |p| {
                format!(
                    "{name:<12} p50 {:.3}  p95 {:.3}  p99 {:.3}  mean {:.3}  ({} samples)",
                    p.p50, p.p95, p.p99, p.mean, p.samples
                )
            },
        )
    };
    format!(
        "{} on {}\n{} tasks, {} failed passes, milliseconds:\n{}\n{}",
        s.model,
        s.capability_fingerprint,
        s.tasks,
        s.failures,
        line("round trip", &s.round_trip_ms),
        line("forward", &s.forward_ms)
    )
}

/// Lines are System-One bodies, or objects that hold one under `request` (as the held-out set does).
fn read_tasks(path: &Path) -> Result<Vec<deltagate_proto::v1::ClassifyRequest>, Failure> {
    let text =
        String::from_utf8(body::read(path)?).map_err(|_| Failure::usage("the task file is not UTF-8"))?;
    let mut tasks = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let at = |e: &dyn std::fmt::Display| {
            Failure::usage(format!("{} line {}: {e}", path.display(), number + 1))
        };
        let value: serde_json::Value = serde_json::from_str(line).map_err(|e| at(&e))?;
        let request = value.get("request").unwrap_or(&value).to_string();
        let request = body::parse(request.as_bytes())?;
        tasks.push(body::to_proto(request.model, request.request));
    }
    Ok(tasks)
}

fn read_evidence(path: &Path) -> Result<Evidence, Failure> {
    serde_json::from_slice(&body::read(path)?)
        .map_err(|e| Failure::usage(format!("{} is no evidence file: {e}", path.display())))
}
