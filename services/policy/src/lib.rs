//! Fail-closed decisions in Rego, and the permits that carry them.
//!
//! Life: no bundle (NOT_SERVING, everything refused) → a bundle whose own test cases pass (SERVING) → maybe a newer one.
//! A bundle that fails its cases never becomes active, and the one before it stays.

mod active;
mod authority;
mod bundle;
mod config;
mod evaluator;
mod facts;
mod service;
mod view;

use std::sync::Arc;

use deltagate_mesh::{
    client::{ChannelOptions, EndpointError, channel},
    health::Health,
    server::{ServeError, ServeOptions, ServerHandle, listen, serve},
};
use deltagate_proto::v1::policy_service_server::{PolicyServiceServer, SERVICE_NAME};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use active::Activator;
use authority::Authority;
pub use bundle::{Bundle, BundleError, BundleSource};
pub use config::{InvalidConfig, PolicyConfig};
pub use evaluator::{BundleEvaluator, Decision};
pub use facts::{KindCounts, RequestFacts, readiness_input};

/// The service did not start, or failed while serving.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The capability endpoint is not one.
    #[error("policy.capability")]
    CapabilityEndpoint(#[from] EndpointError),
    /// The server.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Serves until `shutdown` is cancelled. Without a listener it opens the configured address.
pub async fn run(
    config: PolicyConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<(), PolicyError> {
    Ok(start(config, listener, shutdown).await?.wait().await?)
}

/// Starts serving in this runtime. SERVING when it returns, if the bundle is good; otherwise as soon as it is.
pub async fn start(
    config: PolicyConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<ServerHandle, PolicyError> {
    config.validate()?;
    let registry = channel(&config.capability, ChannelOptions::default())?;
    let listener = match listener {
        Some(listener) => listener,
        None => listen(config.listen).await?,
    };
    let source = BundleSource::named(&config.bundle);
    let mut activator = Activator::new(source.clone());
    activator.poll().await;

    let view = view::View::empty();
    let authority = Arc::new(Authority::new(&config, activator.active(), view.subscribe()));
    let health = Health::new([SERVICE_NAME]).await;
    let service = PolicyServiceServer::new(service::Policy::new(Arc::clone(&authority), config.renew_every))
        .max_decoding_message_size(64 * 1024);
    let mut options = ServeOptions::new("policy");
    options.drain = std::time::Duration::from_secs(1);
    let handle = serve(listener, health.clone(), shutdown, options, |routes| {
        routes.add_service(service);
    })
    .await?;
    tokio::spawn(view.follow(registry, handle.stopping()));
    health.set_all(activator.is_active()).await;
    tokio::spawn(activator.watch(config.reload_every, health, handle.stopping()));
    tracing::info!(addr = %handle.addr(), bundle = %source, "policy service is up");
    Ok(handle)
}
