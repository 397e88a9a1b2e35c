//! Starts and stops the gateway: followers, readiness, and the two listeners.
//!
//! Life: followers start → both faces accept, NOT_SERVING → ready as the mesh allows → (shutdown) not ready, still
//! serving for `drain.grace` → no new connections → at most `drain.timeout` for what is in flight → gone.

use std::{io, net::SocketAddr, sync::Arc};

use axum::serve::ListenerExt;
use deltagate_mesh::{
    client::EndpointError,
    health::Health,
    server::{ServeError, ServeOptions, ServerHandle, serve},
};
use deltagate_proto::v1::classifier_service_server::ClassifierServiceServer;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    channel,
    classify::Classifier,
    config::{GatewayConfig, InvalidConfig},
    grpc::{ClassifierFace, Readable},
    http::{self, Face},
    readiness::{HEALTH_ENTRIES, Readiness},
    view::{MeshView, follow_capability, follow_policy, tend_executors},
};

/// Why the gateway did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The configuration would answer nothing.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The address of capability or policy is no endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The gRPC face failed.
    #[error(transparent)]
    Grpc(#[from] ServeError),
    /// The HTTP face cannot listen.
    #[error("cannot listen on {addr} for http")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The HTTP face failed.
    #[error("http face failed")]
    Http(#[source] io::Error),
}

/// Listeners that the caller opened; those that are missing are opened by the configuration.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For gRPC.
    pub grpc: Option<TcpListener>,
    /// For HTTP.
    pub http: Option<TcpListener>,
}

/// A running gateway.
#[derive(Debug)]
pub struct GatewayHandle {
    /// Where the gRPC face listens.
    pub grpc_addr: SocketAddr,
    /// Where the HTTP face listens.
    pub http_addr: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), GatewayError>>,
}

impl GatewayHandle {
    /// Begins the drain.
    pub fn shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits for the end.
    pub async fn wait(self) -> Result<(), GatewayError> {
        match self.task.await {
            Ok(result) => result,
            Err(_) => Err(GatewayError::Grpc(ServeError::Panicked)),
        }
    }
}

/// Runs until `shutdown` and the drain after it. Without a gRPC listener it opens the configured address.
pub async fn run(
    config: GatewayConfig,
    grpc: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    start(config, Listeners { grpc, http: None }, shutdown)
        .await?
        .wait()
        .await
}

/// Starts, and returns once both faces accept. Readiness comes later, from the mesh.
pub async fn start(
    mut config: GatewayConfig,
    listeners: Listeners,
    shutdown: CancellationToken,
) -> Result<GatewayHandle, GatewayError> {
    config.validate()?;
    if config.id.is_empty() {
        config.id = format!("gateway-{}", uuid::Uuid::new_v4().simple());
    }
    let config = Arc::new(config);
    let capability = channel::lazy(&config.capability, &config.follow)?;
    let policy = channel::lazy(&config.policy, &config.follow)?;
    let grpc_listener = open(listeners.grpc, config.grpc_listen).await?;
    let http_listener = open(listeners.http, config.http_listen).await?;
    let local = |listener: &TcpListener| listener.local_addr().map_err(GatewayError::Http);
    let (grpc_addr, http_addr) = (local(&grpc_listener)?, local(&http_listener)?);

    let view = MeshView::new(config.follow.clone());
    let classifier = Arc::new(Classifier::new(Arc::clone(&config), Arc::clone(&view)));
    let readiness = Readiness::new(Arc::clone(&view), shutdown.clone());
    let health = Health::new(HEALTH_ENTRIES).await;

    // Followers outlive the drain: requests in flight still need their view.
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    tasks.spawn(follow_capability(Arc::clone(&view), capability, stop.clone()));
    tasks.spawn(follow_policy(
        Arc::clone(&view),
        policy,
        config.id.clone(),
        stop.clone(),
    ));
    tasks.spawn(tend_executors(
        Arc::clone(&view),
        Arc::clone(&config),
        stop.clone(),
    ));
    let publisher = Arc::clone(&readiness);
    let (publish_health, publish_stop) = (health.clone(), stop.clone());
    tasks.spawn(async move { publisher.publish(publish_health, publish_stop).await });
    tasks.close();

    let options = ServeOptions {
        grace: config.drain.grace,
        drain: config.drain.timeout,
        ..ServeOptions::new("gateway")
    };
    let face = ClassifierServiceServer::new(ClassifierFace::new(Arc::clone(&classifier)))
        .max_decoding_message_size(config.limits.max_body_bytes);
    let grpc = serve(grpc_listener, health, shutdown.clone(), options, |routes| {
        routes.add_service(Readable::new(face));
    })
    .await?;

    let web = tokio::spawn(serve_http(
        http_listener,
        Face {
            classifier,
            readiness,
        },
        Arc::clone(&config),
        shutdown.clone(),
    ));
    let task = tokio::spawn(finish(grpc, web, stop, tasks, shutdown.clone()));
    Ok(GatewayHandle {
        grpc_addr,
        http_addr,
        shutdown,
        task,
    })
}

async fn open(listener: Option<TcpListener>, addr: SocketAddr) -> Result<TcpListener, GatewayError> {
    match listener {
        Some(listener) => Ok(listener),
        None => TcpListener::bind(addr)
            .await
            .map_err(|source| GatewayError::Listen { addr, source }),
    }
}

async fn serve_http(
    listener: TcpListener,
    face: Face,
    config: Arc<GatewayConfig>,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    let listener = listener.tap_io(|stream| {
        // Only latency suffers when a socket refuses the option.
        let _ = stream.set_nodelay(true);
    });
    let service = http::router(face).into_make_service();
    let stop_accepting = CancellationToken::new();
    let stopped = stop_accepting.clone().cancelled_owned();
    let serving = axum::serve(listener, service)
        .with_graceful_shutdown(stopped)
        .into_future();
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended.map_err(GatewayError::Http),
        () = shutdown.cancelled() => {}
    }
    tokio::select! {
        ended = &mut serving => return ended.map_err(GatewayError::Http),
        () = tokio::time::sleep(config.drain.grace) => stop_accepting.cancel(),
    }
    match tokio::time::timeout(config.drain.timeout, serving).await {
        Ok(ended) => ended.map_err(GatewayError::Http),
        // Connections that are left end with the process.
        Err(_) => Ok(()),
    }
}

/// Either face that ends takes the other along: half a gateway is none.
async fn finish(
    grpc: ServerHandle,
    web: JoinHandle<Result<(), GatewayError>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    let ending = shutdown.clone();
    let grpc = async move {
        let ended = grpc.wait().await;
        ending.cancel();
        ended.map_err(GatewayError::Grpc)
    };
    let web = async move {
        let ended = web.await;
        shutdown.cancel();
        ended.unwrap_or(Err(GatewayError::Grpc(ServeError::Panicked)))
    };
    let (grpc, web) = tokio::join!(grpc, web);
    stop.cancel();
    tasks.wait().await;
    grpc.and(web)
}
