//! Follows `CapabilityService.Watch`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_proto::v1::{
    CapabilityServiceWatchRequest, CapabilityServiceWatchResponse, ExecutorEntry,
    capability_service_client::CapabilityServiceClient,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::channel::backoff;

use super::{
    follow::keep_following,
    state::{CapabilityFacts, MeshView, SeenExecutor},
};

/// Follows the registry until `stop`.
pub async fn follow_capability(view: Arc<MeshView>, channel: Channel, stop: CancellationToken) {
    let config = view.follow.clone();
    let open = || {
        let mut client = CapabilityServiceClient::new(channel.clone());
        async move { Ok(client.watch(CapabilityServiceWatchRequest {}).await?.into_inner()) }
    };
    keep_following(
        "capability",
        config.stale_after,
        backoff(&config),
        stop,
        open,
        |message, _| {
            let facts = read(message, Instant::now());
            view.update(|all| all.registered(facts));
        },
    )
    .await;
}

fn read(message: CapabilityServiceWatchResponse, now: Instant) -> CapabilityFacts {
    CapabilityFacts {
        received: now,
        executors: message
            .executors
            .into_iter()
            .filter_map(|entry| seen(entry, now))
            .collect(),
    }
}

/// An entry without snapshot, lease or age says nothing that could be relied on, so it is left out.
fn seen(entry: ExecutorEntry, now: Instant) -> Option<SeenExecutor> {
    let snapshot = entry.snapshot?;
    let lease = Duration::try_from(entry.lease?).ok()?;
    let age = Duration::try_from(entry.age.unwrap_or_default()).ok()?;
    let lease_until = now.checked_add(lease.checked_sub(age)?)?;
    Some(SeenExecutor {
        snapshot: Arc::new(snapshot),
        lease_until,
    })
}
