//! The gRPC face: `Forward`, `Describe`, `GetArtifact`.

use deltagate_mesh::server::MAX_MESSAGE_BYTES;
use deltagate_proto::v1::{
    self,
    executor_service_server::{ExecutorService, ExecutorServiceServer},
};
use tonic::{Request, Response, Status};

use crate::{artifact, device::DeviceContext, forward};

/// The service over one device.
#[derive(Clone)]
pub(crate) struct Service {
    device: DeviceContext,
}

impl Service {
    /// Serves this device.
    pub(crate) fn new(device: DeviceContext) -> Self {
        Self { device }
    }

    /// The tonic server, with its message size limit.
    pub(crate) fn into_server(self) -> ExecutorServiceServer<Self> {
        ExecutorServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl ExecutorService for Service {
    type ForwardStream = forward::Events;
    type GetArtifactStream = artifact::Chunks;

    async fn forward(
        &self,
        request: Request<v1::ForwardRequest>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        Ok(Response::new(forward::run(&self.device, request).await?))
    }

    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        let snapshot = self.device.lifecycle.snapshot();
        let served = self.device.lifecycle.served();
        let artifacts = served
            .iter()
            .flat_map(|served| &served.assets)
            .map(|asset| v1::Artifact {
                name: asset.name.clone(),
                sha256: asset.sha256.clone(),
                size_bytes: asset.size_bytes,
            });
        Ok(Response::new(v1::DescribeResponse {
            snapshot: Some((*snapshot).clone()),
            artifacts: artifacts.collect(),
            model_card_json: served
                .as_ref()
                .map(|served| served.card_json.clone())
                .unwrap_or_default(),
        }))
    }

    async fn get_artifact(
        &self,
        request: Request<v1::GetArtifactRequest>,
    ) -> Result<Response<Self::GetArtifactStream>, Status> {
        let served = self.device.lifecycle.served();
        Ok(Response::new(
            artifact::open(served.as_deref(), &request.get_ref().sha256).await?,
        ))
    }
}
