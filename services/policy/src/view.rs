//! The policy service's own view of the registry, with ages that keep growing when nobody renews it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_mesh::{client::Backoff, wire};
use deltagate_proto::v1::{
    CapabilityServiceWatchRequest, CapabilityServiceWatchResponse, CapabilitySnapshot,
    capability_service_client::CapabilityServiceClient,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The registry speaks at least twice a second; silence for this long means that the stream is dead.
const SILENCE: Duration = Duration::from_millis(1200);
/// A view older than this says nothing about now.
const VIEW_LEASE: Duration = Duration::from_millis(1500);

/// What the registry said last, and when.
#[derive(Debug)]
pub(crate) struct Seen {
    received: Instant,
    executors: BTreeMap<String, Executor>,
}

#[derive(Debug)]
struct Executor {
    snapshot: Arc<CapabilitySnapshot>,
    age: Duration,
    lease: Duration,
}

/// An executor whose lease runs.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) snapshot: Arc<CapabilitySnapshot>,
    pub(crate) age: Duration,
    pub(crate) lease: Duration,
}

/// Why there is no live executor of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// There is no fresh view of the registry.
    NoView,
    /// The registry does not know it.
    Unknown,
    /// Its lease ran out.
    Stale,
}

impl Seen {
    fn new(view: CapabilityServiceWatchResponse) -> Self {
        let executors = view
            .executors
            .into_iter()
            .filter_map(|entry| {
                let snapshot = entry.snapshot?;
                // A missing age or lease is a stale one.
                let age = wire::std_duration(entry.age.as_ref()).unwrap_or(Duration::MAX);
                let lease = wire::std_duration(entry.lease.as_ref()).unwrap_or_default();
                Some((
                    snapshot.instance_id.clone(),
                    Executor {
                        snapshot: Arc::new(snapshot),
                        age,
                        lease,
                    },
                ))
            })
            .collect();
        Self {
            received: Instant::now(),
            executors,
        }
    }

    /// Whether this can still be believed.
    pub(crate) fn is_fresh(&self) -> bool {
        self.received.elapsed() < VIEW_LEASE
    }

    /// The executor as of now.
    pub(crate) fn find(&self, instance_id: &str) -> Result<Live, Absent> {
        if !self.is_fresh() {
            return Err(Absent::NoView);
        }
        let executor = self.executors.get(instance_id).ok_or(Absent::Unknown)?;
        let age = executor.age.saturating_add(self.received.elapsed());
        if age >= executor.lease {
            return Err(Absent::Stale);
        }
        Ok(Live {
            snapshot: Arc::clone(&executor.snapshot),
            age,
            lease: executor.lease,
        })
    }

    /// Every id that the registry named.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &str> {
        self.executors.keys().map(String::as_str)
    }
}

/// The latest view, for others to look at.
pub(crate) type Latest = watch::Receiver<Option<Arc<Seen>>>;

/// Follows the registry.
#[derive(Debug)]
pub(crate) struct View(watch::Sender<Option<Arc<Seen>>>);

impl View {
    pub(crate) fn empty() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(crate) fn subscribe(&self) -> Latest {
        self.0.subscribe()
    }

    /// Keeps the view up to date until `stop`. A lost registry leaves the last view in place, which grows stale.
    pub(crate) async fn follow(self, registry: Channel, stop: CancellationToken) {
        let mut backoff = Backoff::default();
        let mut lost = true;
        loop {
            let following = async {
                let mut client = CapabilityServiceClient::new(registry.clone());
                let opened = client.watch(CapabilityServiceWatchRequest {});
                let mut stream = match tokio::time::timeout(SILENCE, opened).await {
                    Ok(Ok(response)) => response.into_inner(),
                    Ok(Err(status)) => return status.code().to_string(),
                    Err(_) => return "no answer".to_owned(),
                };
                loop {
                    match tokio::time::timeout(SILENCE, stream.message()).await {
                        Ok(Ok(Some(view))) => {
                            if std::mem::take(&mut lost) {
                                tracing::info!(
                                    registry_id = view.registry_id,
                                    "following the capability registry"
                                );
                            }
                            backoff.reset();
                            self.0.send_replace(Some(Arc::new(Seen::new(view))));
                        }
                        Ok(Ok(None)) => return "the stream ended".to_owned(),
                        Ok(Err(status)) => return status.code().to_string(),
                        Err(_) => return "silence".to_owned(),
                    }
                }
            };
            let why = tokio::select! {
                why = following => why,
                () = stop.cancelled() => return,
            };
            if !std::mem::replace(&mut lost, true) {
                tracing::warn!(why, "lost the capability registry");
            }
            tokio::select! {
                () = backoff.wait() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use deltagate_proto::v1::ExecutorEntry;

    use super::*;

    fn seen(age: Option<u64>, lease: Option<u64>, received_ago: Duration) -> Seen {
        let duration = |ms: Option<u64>| ms.map(|ms| wire::duration(Duration::from_millis(ms)));
        let mut seen = Seen::new(CapabilityServiceWatchResponse {
            executors: vec![ExecutorEntry {
                snapshot: Some(CapabilitySnapshot {
                    instance_id: "e".to_owned(),
                    ..Default::default()
                }),
                age: duration(age),
                lease: duration(lease),
            }],
            ..Default::default()
        });
        seen.received = seen.received.checked_sub(received_ago).unwrap();
        seen
    }

    #[test]
    fn ages_grow_and_whatever_is_missing_is_stale() {
        let now = Duration::ZERO;
        let live = seen(Some(300), Some(1500), Duration::from_millis(200))
            .find("e")
            .unwrap();
        assert!(live.age >= Duration::from_millis(500) && live.age < Duration::from_millis(900));
        assert_eq!(
            seen(Some(300), Some(1500), Duration::from_millis(1300))
                .find("e")
                .unwrap_err(),
            Absent::Stale
        );
        assert_eq!(
            seen(Some(0), Some(60_000), VIEW_LEASE).find("e").unwrap_err(),
            Absent::NoView
        );
        assert_eq!(seen(None, Some(1500), now).find("e").unwrap_err(), Absent::Stale);
        assert_eq!(seen(Some(0), None, now).find("e").unwrap_err(), Absent::Stale);
        assert_eq!(
            seen(Some(0), Some(1500), now).find("x").unwrap_err(),
            Absent::Unknown
        );
    }
}
