//! The gRPC face of the registry.

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

use deltagate_mesh::{ServiceError, wire};
use deltagate_proto::v1::{
    CapabilityServiceGetRequest, CapabilityServiceGetResponse, CapabilityServiceWatchRequest,
    CapabilityServiceWatchResponse, ReportRequest, ReportResponse,
    capability_service_server::CapabilityService,
};
use futures::Stream;
use tonic::{Request, Response, Status};

use crate::{registry::Registry, report::Accepted};

/// Implements `deltagate.v1.CapabilityService`.
#[derive(Debug)]
pub struct Capability {
    registry: Registry,
    watch_interval: Duration,
}

impl Capability {
    /// Serves a registry; watchers hear from it at least every `watch_interval`.
    pub fn new(registry: Registry, watch_interval: Duration) -> Self {
        Self {
            registry,
            watch_interval,
        }
    }
}

#[tonic::async_trait]
impl CapabilityService for Capability {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<CapabilityServiceWatchResponse, Status>> + Send>>;

    async fn get(
        &self,
        _: Request<CapabilityServiceGetRequest>,
    ) -> Result<Response<CapabilityServiceGetResponse>, Status> {
        Ok(Response::new(CapabilityServiceGetResponse {
            executors: self.registry.view(),
            registry_id: self.registry.id().to_owned(),
        }))
    }

    async fn watch(
        &self,
        _: Request<CapabilityServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let registry = self.registry.clone();
        let interval = self.watch_interval;
        // Each view is built when the transport asks for it: a slow watcher misses views and gets the newest.
        let views = futures::stream::unfold((registry.changes(), true), move |(mut changes, first)| {
            let registry = registry.clone();
            async move {
                if !first {
                    tokio::select! {
                        changed = changes.changed() => changed.ok()?,
                        () = tokio::time::sleep(interval) => {}
                    }
                }
                changes.mark_unchanged();
                let view = CapabilityServiceWatchResponse {
                    executors: registry.view(),
                    registry_id: registry.id().to_owned(),
                    sent_at: Some(wire::timestamp(SystemTime::now())),
                };
                Some((Ok(view), (changes, false)))
            }
        });
        Ok(Response::new(Box::pin(views)))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let accepted = self
            .registry
            .report(request.into_inner())
            .map_err(ServiceError::from)?;
        let lease = match accepted {
            Accepted::Renewed => self.registry.limits().lease,
            Accepted::SnapshotWanted | Accepted::Left => Duration::ZERO,
        };
        Ok(Response::new(ReportResponse {
            lease: Some(wire::duration(lease)),
            snapshot_wanted: accepted == Accepted::SnapshotWanted,
        }))
    }
}
