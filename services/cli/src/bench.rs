//! `bench run` and `bench load` measure, `bench gate` judges.

use std::{path::Path, process::ExitCode, time::Duration};

use deltagate_evidence::{BenchSettings, Evidence, Percentiles, gate};
use serde::Serialize;

use crate::{
    args::{BenchAction, BenchArgs},
    bench_load::{self, LoadBench},
    body, config,
    output::{Failure, Output},
};

#[derive(Serialize)]
struct Summary {
    model: String,
    capability_fingerprint: String,
    tasks: usize,
    failures: usize,
    round_trip_ms: Option<Percentiles>,
    forward_ms: Option<Percentiles>,
    tokenize_ms: Option<Percentiles>,
    policy_ms: Option<Percentiles>,
    queue_ms: Option<Percentiles>,
    gateway_ms: Option<Percentiles>,
    /// Round trip less tokenising, queue and device.
    overhead_ms: Option<Percentiles>,
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
            busy_poll: _,
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
            write(&out, &evidence)?;
            let summary = Summary {
                model: evidence.model.clone(),
                capability_fingerprint: evidence.capability_fingerprint.clone(),
                tasks: evidence.tasks.len(),
                failures: evidence.failures(),
                round_trip_ms: evidence.round_trip(),
                forward_ms: evidence.forward(),
                tokenize_ms: evidence.of(|task| &task.tokenize_ms),
                policy_ms: evidence.of(|task| &task.policy_ms),
                queue_ms: evidence.of(|task| &task.queue_ms),
                gateway_ms: evidence.of(|task| &task.gateway_ms),
                overhead_ms: evidence.overhead(),
            };
            output.print(&summary, text_of_summary)?;
            Ok(if summary.failures == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        BenchAction::Cancel {
            endpoint,
            tasks,
            rounds,
            out,
        } => {
            let config = sources.load(&[])?.value;
            let classifier = config::gateway_endpoint(endpoint, &config);
            let tasks = read_tasks(&tasks)?;
            let [slow, next] = &tasks[..] else {
                return Err(Failure::usage("the task file must hold two requests"));
            };
            let evidence = deltagate_evidence::cancel(config::channel(&classifier)?, slow, next, rounds)
                .await
                .map_err(Failure::failed)?;
            write(&out, &evidence)?;
            let freed = Percentiles::of(evidence.freed_after_ms.clone());
            output.print(&freed, |freed| {
                freed.map_or_else(
                    || "no request was given up in time".to_owned(),
                    |p| {
                        format!(
                            "device free after, milliseconds: p50 {:.3}  p99 {:.3}",
                            p.p50, p.p99
                        )
                    },
                )
            })?;
            Ok(ExitCode::SUCCESS)
        }
        BenchAction::Tokenize(args) => crate::bench_tokenize::run(&args, output),
        BenchAction::Load {
            model,
            dtype,
            threads,
            warm_ups,
            passes,
        } => bench_load::run(
            &LoadBench {
                model: &model,
                dtype,
                threads,
                warm_ups,
                passes,
            },
            output,
        ),
        BenchAction::Forward(args) => crate::bench_forward::run(&args, output),
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
    let line = |name: &str, p: &Option<Percentiles>| {
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
    let mut out = format!(
        "{} on {}\n{} tasks, {} failed passes, milliseconds:",
        s.model, s.capability_fingerprint, s.tasks, s.failures
    );
    for (name, percentiles) in [
        ("round trip", &s.round_trip_ms),
        ("tokenize", &s.tokenize_ms),
        ("policy", &s.policy_ms),
        ("queue", &s.queue_ms),
        ("forward", &s.forward_ms),
        ("gateway", &s.gateway_ms),
        ("overhead", &s.overhead_ms),
    ] {
        out += "\n";
        out += &line(name, percentiles);
    }
    out
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

fn write(out: &Path, evidence: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(evidence).map_err(Failure::failed)?;
    std::fs::write(out, text).map_err(|e| Failure::failed(format!("cannot write {}: {e}", out.display())))
}

fn read_evidence(path: &Path) -> Result<Evidence, Failure> {
    serde_json::from_slice(&body::read(path)?)
        .map_err(|e| Failure::usage(format!("{} is no evidence file: {e}", path.display())))
}
