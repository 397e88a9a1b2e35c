//! One service as one process: configuration, telemetry, signals, and the service's own `run`.

use std::{process::ExitCode, sync::Arc};

use deltagate_executor::{ConfigSource, LoadConfig};
use deltagate_mesh::{lifeline, signal, telemetry};
use tokio_util::sync::CancellationToken;

use crate::{
    args::ServiceArgs,
    config::{Config, Sources, chain, validate},
    output::Failure,
};

/// Exit code of a service whose own fault a restart may heal.
const EXIT_FAILED: u8 = 1;

/// A service of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Capability,
    Policy,
    Executor,
    Gateway,
}

impl Service {
    /// In the order in which they are started: each can wait for those before it.
    pub(crate) const ALL: [Self; 4] = [Self::Capability, Self::Policy, Self::Executor, Self::Gateway];

    /// Name of the subcommand, the configuration section, and the service in traces.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Capability => "capability",
            Self::Policy => "policy",
            Self::Executor => "executor",
            Self::Gateway => "gateway",
        }
    }
}

pub(crate) async fn run(service: Service, args: ServiceArgs, sources: &Sources) -> Result<ExitCode, Failure> {
    let config = sources.load(&[])?.value;
    validate(&config)?;
    let _telemetry =
        telemetry::init(service.name(), &config.telemetry).map_err(|e| Failure::usage(chain(&e)))?;
    let shutdown = signal::shutdown().map_err(Failure::failed)?;
    if args.lifeline {
        let (gone, shutdown) = (lifeline::watch(), shutdown.clone());
        tokio::spawn(async move {
            gone.cancelled().await;
            shutdown.cancel();
        });
    }
    serve(service, config, sources.clone(), shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

/// Serves until `shutdown` is cancelled and the drain is over.
pub(crate) async fn serve(
    service: Service,
    config: Config,
    sources: Sources,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::with_code(EXIT_FAILED, format!("{}: {}", service.name(), chain(error)))
    };
    match service {
        Service::Capability => deltagate_capability::run(config.capability, None, shutdown)
            .await
            .map_err(|e| failed(&e)),
        Service::Policy => deltagate_policy::run(config.policy, None, shutdown)
            .await
            .map_err(|e| failed(&e)),
        Service::Gateway => deltagate_gateway::run(config.gateway, None, shutdown)
            .await
            .map_err(|e| failed(&e)),
        Service::Executor => executor(config, sources, shutdown).await,
    }
}

/// The executor also follows its configuration: a change of `[executor.kernels]` is a swap.
async fn executor(config: Config, sources: Sources, shutdown: CancellationToken) -> Result<(), Failure> {
    let file = sources.file.clone();
    let load: LoadConfig = Arc::new(move || {
        let config = sources.load(&[]).map_err(|e| e.to_string())?.value;
        Ok(config.executor)
    });
    deltagate_executor::run_reloading(config.executor, None, shutdown, ConfigSource { file, load })
        .await
        .map_err(|e| Failure::with_code(e.exit_code(), format!("executor: {}", chain(&e))))
}
