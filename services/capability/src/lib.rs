//! Registry of what each executor has really bound, and the mesh's service discovery.
//!
//! An executor is known while its lease lasts: each heartbeat renews it, and nothing else does. The registry keeps
//! nothing across restarts; a new one starts empty, under a new id, and fills up with the next heartbeats.

mod config;
mod registry;
mod report;
mod service;

use deltagate_mesh::{
    health::Health,
    server::{ServeError, ServeOptions, ServerHandle, listen, serve},
};
use deltagate_proto::v1::capability_service_server::{CapabilityServiceServer, SERVICE_NAME};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use config::{CapabilityConfig, InvalidConfig};
pub use registry::{Limits, Registry};
pub use report::{Accepted, Refused};
pub use service::Capability;

/// The service did not start, or failed while serving.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The server.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Serves until `shutdown` is cancelled. Without a listener it opens the configured address.
pub async fn run(
    config: CapabilityConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<(), CapabilityError> {
    Ok(start(config, listener, shutdown).await?.wait().await?)
}

/// Starts serving in this runtime. SERVING as soon as it returns.
pub async fn start(
    config: CapabilityConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<ServerHandle, CapabilityError> {
    config.validate()?;
    let listener = match listener {
        Some(listener) => listener,
        None => listen(config.listen).await?,
    };
    let registry = Registry::new(Limits {
        lease: config.lease,
        executors: config.max_executors,
        snapshot_bytes: config.max_snapshot_bytes,
    });
    let health = Health::new([SERVICE_NAME]).await;
    let service = CapabilityServiceServer::new(Capability::new(registry.clone(), config.watch_interval))
        .max_decoding_message_size(config.max_snapshot_bytes + 4096);
    let mut options = ServeOptions::new("capability");
    options.drain = std::time::Duration::from_secs(1);
    let handle = serve(listener, health.clone(), shutdown, options, |routes| {
        routes.add_service(service);
    })
    .await?;
    tokio::spawn(registry.clone().expire_leases());
    health.set_all(true).await;
    tracing::info!(addr = %handle.addr(), registry_id = registry.id(), "capability registry is up");
    Ok(handle)
}
