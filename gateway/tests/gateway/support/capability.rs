//! A scripted capability registry.

use std::{net::SocketAddr, pin::Pin, time::Duration};

use deltagate_mesh::{server::ServerHandle, wire::duration};
use deltagate_proto::v1::{
    self, CapabilityServiceGetRequest, CapabilityServiceGetResponse, CapabilityServiceWatchRequest,
    CapabilityServiceWatchResponse, CapabilitySnapshot, ExecutorEntry, ReportRequest, ReportResponse,
    capability_service_server::{CapabilityService, CapabilityServiceServer},
};
use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::serve_at;

/// What the registry shows; silent registries send nothing.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    pub(crate) snapshots: Vec<CapabilitySnapshot>,
    pub(crate) silent: bool,
}

#[derive(Clone)]
pub(crate) struct FakeCapability {
    pub(crate) shown: watch::Sender<Shown>,
}

impl FakeCapability {
    pub(crate) fn new() -> Self {
        Self {
            shown: watch::Sender::new(Shown::default()),
        }
    }

    pub(crate) async fn serve(&self, addr: Option<SocketAddr>) -> ServerHandle {
        let service = CapabilityServiceServer::new(self.clone());
        serve_at(addr, |routes| {
            routes.add_service(service);
        })
        .await
    }

    /// Changes the first (and in most tests only) executor's snapshot.
    pub(crate) fn change(&self, change: impl FnOnce(&mut CapabilitySnapshot)) {
        self.shown.send_modify(|shown| {
            shown.snapshots[0].revision += 1;
            change(&mut shown.snapshots[0]);
        });
    }
}

fn entries(shown: &Shown) -> Vec<ExecutorEntry> {
    let entry = |snapshot: &CapabilitySnapshot| ExecutorEntry {
        snapshot: Some(snapshot.clone()),
        age: Some(duration(Duration::from_millis(5))),
        lease: Some(duration(Duration::from_millis(1500))),
    };
    shown.snapshots.iter().map(entry).collect()
}

#[tonic::async_trait]
impl CapabilityService for FakeCapability {
    async fn get(
        &self,
        _: Request<CapabilityServiceGetRequest>,
    ) -> Result<Response<CapabilityServiceGetResponse>, Status> {
        let executors = entries(&self.shown.borrow());
        Ok(Response::new(CapabilityServiceGetResponse {
            executors,
            registry_id: "r".into(),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<CapabilityServiceWatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        _: Request<CapabilityServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let shown = self.shown.subscribe();
        let stream = futures::stream::unfold((shown, true), |(mut shown, first)| async move {
            loop {
                if !first {
                    let _ = tokio::time::timeout(Duration::from_millis(300), shown.changed()).await;
                }
                let now = shown.borrow_and_update().clone();
                if now.silent {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                let message = CapabilityServiceWatchResponse {
                    executors: entries(&now),
                    registry_id: "r".into(),
                    sent_at: None,
                };
                return Some((Ok(message), (shown, false)));
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Err(Status::unimplemented("the fake is told by the test"))
    }
}

/// A snapshot of a READY executor on the CPU.
pub(crate) fn ready_snapshot(instance: &str, endpoint: &str, fingerprint: &str) -> CapabilitySnapshot {
    let bound = |family: v1::KernelFamily, backend: &str| v1::KernelBinding {
        family: family.into(),
        state: v1::BindingState::Bound.into(),
        backend: backend.into(),
        version: "1".into(),
        source_digest: "d".into(),
        ..Default::default()
    };
    CapabilitySnapshot {
        instance_id: instance.into(),
        revision: 1,
        endpoint: endpoint.into(),
        phase: v1::ExecutorPhase::Ready.into(),
        reasons: Vec::new(),
        model: Some(v1::ModelInfo {
            name: "mini".into(),
            family: "startlux".into(),
            digest: "model-digest".into(),
            max_tokens: super::model::MAX_TOKENS,
            parameters: 1000,
            dtype: "f32".into(),
            release_date: "2026-10-01".into(),
        }),
        device: Some(v1::DeviceInfo {
            kind: "cpu".into(),
            name: "test cpu".into(),
            ..Default::default()
        }),
        bindings: vec![
            bound(v1::KernelFamily::DeltaRule, "cpu.chunked"),
            bound(v1::KernelFamily::Conv1d, "cpu.conv1d"),
            bound(v1::KernelFamily::Norm, "cpu.eager"),
        ],
        fingerprint: fingerprint.into(),
        version: "0".into(),
    }
}
