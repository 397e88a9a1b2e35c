//! `caps`: what every executor has really bound.

use std::process::ExitCode;

use deltagate_proto::v1::{
    self as pb, BindingState, CapabilityServiceGetRequest, ExecutorPhase,
    capability_service_client::CapabilityServiceClient,
};
use serde::Serialize;

use crate::{
    answers::{millis, short},
    args::CapsArgs,
    classify::refused,
    config,
    output::{Failure, Output},
};

/// `caps --json`.
#[derive(Serialize)]
pub(crate) struct View {
    registry_id: String,
    pub(crate) executors: Vec<Executor>,
}

#[derive(Serialize)]
pub(crate) struct Executor {
    instance_id: String,
    revision: u64,
    endpoint: String,
    pub(crate) phase: &'static str,
    pub(crate) reasons: Vec<String>,
    age_ms: f64,
    lease_ms: f64,
    version: String,
    fingerprint: String,
    model: Option<Model>,
    device: Option<Device>,
    pub(crate) bindings: Vec<Binding>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    family: String,
    digest: String,
    max_tokens: u32,
    parameters: u64,
    dtype: String,
}

#[derive(Serialize)]
struct Device {
    kind: String,
    name: String,
    compute_capability: String,
    id: String,
}

#[derive(Serialize)]
pub(crate) struct Binding {
    family: &'static str,
    state: &'static str,
    backend: String,
    version: String,
    source_digest: String,
    preference: Vec<String>,
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    backend: String,
    passed: bool,
    stage: &'static str,
    reason: String,
    relative_l2: f64,
    worst_element: f64,
    times: Vec<Time>,
}

#[derive(Serialize)]
struct Time {
    tokens: u32,
    median_ms: f64,
}

pub(crate) async fn run(
    args: CapsArgs,
    sources: &config::Sources,
    output: Output,
) -> Result<ExitCode, Failure> {
    let config = sources.load(&[])?.value;
    let endpoint = args
        .endpoint
        .unwrap_or_else(|| config::local_url(config.capability.listen));
    let view = view(&endpoint).await?;
    output.print(&view, text)?;
    if args.require_ready && !view.executors.iter().any(|e| e.phase == "ready") {
        let mut reasons: Vec<_> = view.executors.iter().flat_map(|e| e.reasons.clone()).collect();
        if view.executors.is_empty() {
            reasons.push("no executor holds a lease".to_owned());
        }
        return Err(Failure::not_ready(reasons));
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks a capability service.
pub(crate) async fn view(endpoint: &str) -> Result<View, Failure> {
    let mut client = CapabilityServiceClient::new(config::channel(endpoint)?);
    let mut request = tonic::Request::new(CapabilityServiceGetRequest {});
    request.set_timeout(std::time::Duration::from_secs(5));
    let view = client.get(request).await.map_err(refused)?.into_inner();
    let executors = view.executors.into_iter().filter_map(executor).collect();
    Ok(View {
        registry_id: view.registry_id,
        executors,
    })
}

fn executor(entry: pb::ExecutorEntry) -> Option<Executor> {
    let s = entry.snapshot?;
    Some(Executor {
        phase: phase(s.phase()),
        instance_id: s.instance_id,
        revision: s.revision,
        endpoint: s.endpoint,
        reasons: s.reasons,
        age_ms: millis(entry.age.as_ref()),
        lease_ms: millis(entry.lease.as_ref()),
        version: s.version,
        fingerprint: s.fingerprint,
        model: s.model.map(|m| Model {
            name: m.name,
            family: m.family,
            digest: m.digest,
            max_tokens: m.max_tokens,
            parameters: m.parameters,
            dtype: m.dtype,
        }),
        device: s.device.map(|d| Device {
            kind: d.kind,
            name: d.name,
            compute_capability: d.compute_capability,
            id: d.id,
        }),
        bindings: s.bindings.into_iter().map(binding).collect(),
    })
}

fn binding(b: pb::KernelBinding) -> Binding {
    Binding {
        family: b.family().name(),
        state: match b.state() {
            BindingState::Unspecified => "unspecified",
            BindingState::Bound => "bound",
            BindingState::Missing => "missing",
            BindingState::ProbeFailed => "probe_failed",
        },
        backend: b.backend,
        version: b.version,
        source_digest: b.source_digest,
        preference: b.preference,
        candidates: b.candidates.into_iter().map(candidate).collect(),
    }
}

fn candidate(c: pb::CandidateReport) -> Candidate {
    Candidate {
        stage: match c.stage() {
            pb::ProbeStage::Unspecified => "none",
            pb::ProbeStage::Present => "present",
            pb::ProbeStage::Loadable => "loadable",
            pb::ProbeStage::Correct => "correct",
            pb::ProbeStage::Timed => "timed",
        },
        times: c
            .times
            .iter()
            .map(|t| Time {
                tokens: t.tokens,
                median_ms: millis(t.median.as_ref()),
            })
            .collect(),
        backend: c.backend,
        passed: c.passed,
        reason: c.reason,
        relative_l2: c.relative_l2,
        worst_element: c.worst_element,
    }
}

fn phase(phase: ExecutorPhase) -> &'static str {
    match phase {
        ExecutorPhase::Unspecified => "unspecified",
        ExecutorPhase::Loading => "loading",
        ExecutorPhase::AwaitingPolicy => "awaiting_policy",
        ExecutorPhase::Ready => "ready",
        ExecutorPhase::Draining => "draining",
        ExecutorPhase::Failed => "failed",
    }
}

/// For a person.
pub(crate) fn text(view: &View) -> String {
    if view.executors.is_empty() {
        return "no executor holds a lease".to_owned();
    }
    view.executors
        .iter()
        .map(executor_text)
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn executor_text(e: &Executor) -> String {
    let mut out = format!(
        "{} at {}, {} (heartbeat {:.0} ms ago)",
        e.instance_id, e.endpoint, e.phase, e.age_ms
    );
    for reason in &e.reasons {
        out += &format!("\n  not ready: {reason}");
    }
    if let Some(m) = &e.model {
        out += &format!(
            "\n  model {} ({}, {} parameters, {}, {} tokens at most)",
            m.name, m.family, m.parameters, m.dtype, m.max_tokens
        );
    }
    if let Some(d) = &e.device {
        out += &format!("\n  device {}: {}", d.kind, d.name);
    }
    out += &format!("\n  binding {}", short(&e.fingerprint));
    for b in &e.bindings {
        let losers: Vec<_> = b
            .candidates
            .iter()
            .filter(|c| c.backend != b.backend)
            .map(|c| format!("{} ({})", c.backend, c.reason))
            .collect();
        let rest = if losers.is_empty() {
            String::new()
        } else {
            format!("; not {}", losers.join(", "))
        };
        let name = if b.backend.is_empty() { b.state } else { &b.backend };
        out += &format!("\n    {:<11} {name}{rest}", b.family);
    }
    out
}
