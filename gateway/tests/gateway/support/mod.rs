//! A whole mesh in one process: scripted capability, policy and executor services, and the real gateway.

pub(crate) mod capability;
pub(crate) mod executor;
pub(crate) mod http;
pub(crate) mod mesh;
pub(crate) mod model;
pub(crate) mod policy;
pub(crate) mod requests;

use std::{
    future::Future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use deltagate_mesh::{
    health::Health,
    server::{ServeOptions, ServerHandle, serve},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;

/// A server that can be killed, and started again at the same address.
pub(crate) async fn serve_at(addr: Option<SocketAddr>, add: impl FnOnce(&mut RoutesBuilder)) -> ServerHandle {
    let addr = addr.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = TcpListener::bind(addr).await.unwrap();
    let health = Health::new(["test"]).await;
    health.set_all(true).await;
    serve(
        listener,
        health,
        CancellationToken::new(),
        ServeOptions::new("test"),
        add,
    )
    .await
    .unwrap()
}

/// Waits until `check` holds, and gives how long that took. Panics after `bound`.
pub(crate) async fn within<F: Future<Output = bool>>(
    bound: Duration,
    what: &str,
    mut check: impl FnMut() -> F,
) -> Duration {
    let begun = Instant::now();
    loop {
        if check().await {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
