//! `up`: the whole mesh, one process a service and one an executor, supervised; or as tasks of this process.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use deltagate_mesh::{
    signal,
    supervise::{ChildSpec, SuperviseOptions, Supervisor},
    telemetry,
};
use deltagate_proto::v1::{CapabilityServiceGetRequest, capability_service_client::CapabilityServiceClient};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    args::UpArgs,
    caps,
    config::{self, Config, Sources, chain, validate},
    executors::{self, Executor},
    output::{Failure, Output},
    services::{self, Service},
};

pub(crate) async fn run(args: UpArgs, sources: &Sources, output: Output) -> Result<ExitCode, Failure> {
    let mut sources = sources.clone();
    sources.set.extend(flags(&args));
    let config = sources.load(&[])?.value;
    validate(&config)?;
    let _telemetry = telemetry::init("up", &config.telemetry).map_err(|e| Failure::usage(chain(&e)))?;
    let shutdown = signal::shutdown().map_err(Failure::failed)?;
    let mesh = start(&sources, &config, args.in_process, shutdown.clone())?;
    output.note(format!(
        "gateway: gRPC {}, HTTP {}; policy bundle `{}`; Ctrl-C ends it",
        config::local_url(config.gateway.grpc_listen),
        config::local_url(config.gateway.http_listen),
        config.policy.bundle
    ));
    let watch = async {
        match args.require_ready {
            None => announce(&config, output).await,
            Some(within) => {
                wait_ready(&config, within).await?;
                output.note("ready");
            }
        }
        // A mesh that is ready goes on until it is told to end.
        std::future::pending::<Result<ExitCode, Failure>>().await
    };
    let result = tokio::select! {
        result = watch => result,
        () = shutdown.cancelled() => Ok(ExitCode::SUCCESS),
        () = mesh.failed.cancelled() => Ok(ExitCode::SUCCESS),
    };
    shutdown.cancel();
    mesh.ended().await?;
    result
}

/// `--set` texts that the flags of `up` stand for.
fn flags(args: &UpArgs) -> Vec<String> {
    let mut set = Vec::new();
    let mut add = |key: &str, value: Value| set.push(format!("{key}={value}"));
    if args.cpu {
        add("policy.bundle", json!("cpu"));
    }
    if !args.models.is_empty() {
        add("up.models", json!(args.models));
    }
    if let Some(url) = &args.otlp {
        add("telemetry.otlp_endpoint", json!(url));
    }
    set
}

/// A running mesh.
pub(crate) struct Mesh {
    /// Cancelled when it cannot go on.
    pub(crate) failed: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Failure>>,
}

impl Mesh {
    /// Waits until every service has ended, and says why if one ended by itself.
    pub(crate) async fn ended(self) -> Result<(), Failure> {
        self.task.await.unwrap_or_else(|e| Err(Failure::failed(e)))
    }
}

/// One service of the mesh, with what is configured for it alone.
struct Member {
    service: Service,
    label: String,
    sources: Sources,
}

/// In the order in which they are started. No one has to wait for another: each is not ready until what it needs is.
fn members(sources: &Sources, config: &Config) -> Result<Vec<Member>, Failure> {
    let mut members = Vec::new();
    for service in Service::ALL {
        let own = match service {
            Service::Executor => executors::plan(config)?,
            _ => vec![Executor {
                label: service.name().to_owned(),
                set: Vec::new(),
            }],
        };
        members.extend(own.into_iter().map(|Executor { label, set }| {
            let mut sources = sources.clone();
            sources.set.extend(set);
            // The list is spelled out now; a member that read it, too, would count from its own port.
            sources.set.push("up.models=[]".to_owned());
            Member {
                service,
                label,
                sources,
            }
        }));
    }
    Ok(members)
}

/// Starts every service; cancelling `shutdown` drains and ends them.
pub(crate) fn start(
    sources: &Sources,
    config: &Config,
    in_process: bool,
    shutdown: CancellationToken,
) -> Result<Mesh, Failure> {
    let failed = CancellationToken::new();
    let signal = failed.clone();
    let task = if in_process {
        let members = members(sources, config)?
            .into_iter()
            .map(|member| Ok((member.sources.load(&[])?.value, member)))
            .collect::<Result<Vec<_>, Failure>>()?;
        tokio::spawn(async move {
            let result = tasks(members, shutdown).await;
            signal.cancel();
            result
        })
    } else {
        let program: PathBuf = std::env::current_exe().map_err(Failure::failed)?;
        let specs = members(sources, config)?
            .into_iter()
            .map(|member| {
                let mut args = vec![member.service.name().to_owned(), "--lifeline".to_owned()];
                args.extend(member.sources.flags());
                ChildSpec {
                    name: member.label,
                    args: args.into_iter().map(Into::into).collect(),
                    env: Vec::new(),
                }
            })
            .collect();
        let supervisor = Supervisor::start(program, specs, SuperviseOptions::default());
        tokio::spawn(async move {
            let result = supervisor
                .run(shutdown)
                .await
                .map_err(|e| Failure::failed(chain(&e)));
            signal.cancel();
            result
        })
    };
    Ok(Mesh { failed, task })
}

/// Every service as a task; one that ends early takes the others along. The last one ends first: what the gateway has
/// accepted may still need those behind it.
async fn tasks(members: Vec<(Config, Member)>, shutdown: CancellationToken) -> Result<(), Failure> {
    let mut running = tokio::task::JoinSet::new();
    let mut ends = Vec::new();
    for (config, member) in members {
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let guard = ended.clone().drop_guard();
        let served = services::serve(member.service, config, member.sources, stop.clone());
        running.spawn(async move {
            let _ended = guard;
            served.await
        });
        ends.push((stop, ended));
    }
    let joined = |ended: Option<Result<Result<(), Failure>, tokio::task::JoinError>>| match ended {
        Some(ended) => ended.unwrap_or_else(|e| Err(Failure::failed(e))),
        None => Ok(()),
    };
    let mut result = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = running.join_next() => joined(ended),
    };
    shutdown.cancel();
    for (stop, ended) in ends.iter().rev() {
        stop.cancel();
        ended.cancelled().await;
    }
    while let Some(ended) = running.join_next().await {
        let ended = joined(Some(ended));
        if result.is_ok() {
            result = ended;
        }
    }
    result
}

/// Says when the gateway becomes ready, and why not for as long as it is not.
async fn announce(config: &Config, output: Output) {
    let mut said = Vec::new();
    loop {
        if serving(config).await {
            output.note("ready");
            return;
        }
        let reasons = reasons(config).await;
        if reasons != said {
            output.note(format!("not ready: {}", reasons.join("; ")));
            said = reasons;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until the gateway is ready; else fails with the reasons.
pub(crate) async fn wait_ready(config: &Config, within: Duration) -> Result<(), Failure> {
    let ready = async {
        while !serving(config).await {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    match tokio::time::timeout(within, ready).await {
        Ok(()) => Ok(()),
        Err(_) => {
            let mut all = vec![format!("the gateway is not ready after {within:?}")];
            all.extend(reasons(config).await);
            Err(Failure::not_ready(all))
        }
    }
}

/// Whether the gateway serves, and every executor that was started is ready.
async fn serving(config: &Config) -> bool {
    gateway_serves(config).await
        && match config.up.models.len() {
            0 | 1 => true,
            several => ready_executors(config).await >= several,
        }
}

async fn ready_executors(config: &Config) -> usize {
    let view = caps::view(&config::local_url(config.capability.listen)).await;
    view.map_or(0, |view| {
        view.executors.iter().filter(|e| e.phase == "ready").count()
    })
}

async fn gateway_serves(config: &Config) -> bool {
    let Ok(channel) = config::channel(&config::local_url(config.gateway.grpc_listen)) else {
        return false;
    };
    let request = HealthCheckRequest {
        service: String::new(),
    };
    match tokio::time::timeout(Duration::from_secs(1), HealthClient::new(channel).check(request)).await {
        Ok(Ok(response)) => response.into_inner().status() == ServingStatus::Serving,
        _ => false,
    }
}

/// What the executors say of themselves.
async fn reasons(config: &Config) -> Vec<String> {
    let Ok(channel) = config::channel(&config::local_url(config.capability.listen)) else {
        return vec![];
    };
    let mut client = CapabilityServiceClient::new(channel);
    let view = tokio::time::timeout(Duration::from_secs(1), client.get(CapabilityServiceGetRequest {})).await;
    match view {
        Ok(Ok(view)) => {
            let executors = view.into_inner().executors;
            if executors.is_empty() {
                return vec!["no executor holds a lease".to_owned()];
            }
            executors
                .into_iter()
                .filter_map(|e| e.snapshot)
                .flat_map(|s| s.reasons)
                .collect()
        }
        _ => vec!["the capability service does not answer".to_owned()],
    }
}
