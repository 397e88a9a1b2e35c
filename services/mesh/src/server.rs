//! A gRPC server with everything that each service has: health, reflection, traces, deadlines, limits, drain.
//!
//! Life: accepting, with health entries as the service sets them → (shutdown) health off, still accepting for
//! `grace` so that clients notice → subscriptions end, no more connections → in-flight calls finish within `drain`
//! → what is left ends with UNAVAILABLE.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{service::RoutesBuilder, transport::Server};

use crate::{
    health::Health,
    interrupt::{Cuts, InterruptLayer},
    trace::server::TraceLayer,
};

/// Largest request message that a service should take (`max_decoding_message_size` of its generated server).
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Name of the service in traces, such as `gateway`.
    pub service: &'static str,
    /// From health off to refusing connections.
    pub grace: Duration,
    /// Bound for calls in flight to finish.
    pub drain: Duration,
    /// Most concurrent streams of one connection.
    pub max_concurrent_streams: u32,
}

impl ServeOptions {
    /// Defaults: grace 0, drain 5 s, 1024 streams.
    pub fn new(service: &'static str) -> Self {
        Self {
            service,
            grace: Duration::ZERO,
            drain: Duration::from_secs(5),
            max_concurrent_streams: 1024,
        }
    }
}

/// The server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The listener has no local address.
    #[error("listener has no local address")]
    LocalAddr(#[source] io::Error),
    /// A descriptor set for reflection does not decode.
    #[error("reflection descriptors do not decode")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed while serving.
    #[error("transport failed")]
    Transport(#[from] tonic::transport::Error),
    /// The serving task panicked.
    #[error("serving task panicked")]
    Panicked,
}

/// A running server.
#[derive(Debug)]
pub struct ServerHandle {
    addr: SocketAddr,
    shutdown: CancellationToken,
    kill: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its endpoint, such as `http://127.0.0.1:50052`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Cancelled when the drain begins: tasks that belong to this server end with it.
    pub fn stopping(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Begins the drain of this server; the token that it was started with stays as it is.
    pub fn shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Ends every call and the listener at once, without a drain: what a crash looks like to callers.
    pub fn kill(&self) {
        self.kill.cancel();
        self.shutdown.cancel();
    }

    /// Waits until it has stopped.
    pub async fn wait(self) -> Result<(), ServeError> {
        self.task.await.unwrap_or(Err(ServeError::Panicked))
    }
}

/// Listens on an address.
pub async fn listen(addr: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| ServeError::Listen { addr, source })
}

/// Serves what `add` registers, plus health and reflection, until `shutdown` is cancelled and the drain is over.
///
/// `health` must exist before: its entries are NOT_SERVING when the first connection is accepted.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    shutdown: CancellationToken,
    options: ServeOptions,
    add: impl FnOnce(&mut RoutesBuilder),
) -> Result<ServerHandle, ServeError> {
    let addr = listener.local_addr().map_err(ServeError::LocalAddr)?;
    // A token of its own: stopping this server must not stop what else the caller's token stops.
    let shutdown = shutdown.child_token();
    let mut routes = RoutesBuilder::default();
    add(&mut routes);
    routes.add_service(health.service());
    routes.add_service(reflection().build_v1()?);
    routes.add_service(reflection().build_v1alpha()?);

    let cuts = Cuts::default();
    let kill = CancellationToken::new();
    let stop_accepting = CancellationToken::new();
    let router = Server::builder()
        .tcp_nodelay(true)
        .max_concurrent_streams(options.max_concurrent_streams)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .layer(TraceLayer::new(options.service))
        .layer(InterruptLayer { cuts: cuts.clone() })
        .add_routes(routes.routes());
    let stopped = stop_accepting.clone().cancelled_owned();
    let serving =
        tokio::spawn(router.serve_with_incoming_shutdown(nodelay(TcpListenerStream::new(listener)), stopped));
    let task = tokio::spawn(supervise(
        serving,
        health,
        shutdown.clone(),
        kill.clone(),
        stop_accepting,
        cuts,
        options,
    ));
    Ok(ServerHandle {
        addr,
        shutdown,
        kill,
        task,
    })
}

/// Descriptors of everything that can be on the wire, error details included.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(deltagate_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// Small frames must not wait for Nagle: tonic sets this only on listeners that it opens itself.
fn nodelay(
    incoming: TcpListenerStream,
) -> impl futures::Stream<Item = io::Result<tokio::net::TcpStream>> + Send {
    use futures::StreamExt;
    incoming.map(|accepted| {
        accepted.inspect(|stream| {
            // Only latency suffers when a socket refuses the option.
            let _ = stream.set_nodelay(true);
        })
    })
}

async fn supervise(
    mut serving: JoinHandle<Result<(), tonic::transport::Error>>,
    health: Health,
    shutdown: CancellationToken,
    kill: CancellationToken,
    stop_accepting: CancellationToken,
    cuts: Cuts,
    options: ServeOptions,
) -> Result<(), ServeError> {
    tokio::select! {
        ended = &mut serving => return finish(ended),
        () = shutdown.cancelled() => {}
    }
    health.drain().await;
    tokio::select! {
        () = tokio::time::sleep(options.grace) => {}
        () = kill.cancelled() => {}
    }
    cuts.subscriptions.cancel();
    stop_accepting.cancel();
    tokio::select! {
        ended = &mut serving => return finish(ended),
        () = tokio::time::sleep(options.drain) => {}
        () = kill.cancelled() => {}
    }
    cuts.everything.cancel();
    // Callers now read their UNAVAILABLE; one that never closes its connection is not waited for.
    match tokio::time::timeout(Duration::from_millis(500), &mut serving).await {
        Ok(ended) => finish(ended),
        Err(_) => {
            serving.abort();
            Ok(())
        }
    }
}

fn finish(
    ended: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), ServeError> {
    match ended {
        Ok(result) => result.map_err(ServeError::Transport),
        Err(_) => Err(ServeError::Panicked),
    }
}
