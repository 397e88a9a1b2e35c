//! gRPC calls to each service, each on a connection of its own and with a bound.

use std::time::Duration;

use bytes::Bytes;
use deltagate_mesh::ServiceError;
use deltagate_proto::v1::{
    CapabilityServiceGetRequest, CapabilityServiceGetResponse, CapabilitySnapshot, ClassifyRequest,
    ClassifyResponse, DecideReadinessRequest, DecideReadinessResponse, DescribeRequest, DescribeResponse,
    IssuePermitRequest, KernelBinding, KernelFamily, SignedPermit,
    capability_service_client::CapabilityServiceClient, classifier_service_client::ClassifierServiceClient,
    executor_service_client::ExecutorServiceClient, policy_service_client::PolicyServiceClient,
};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{cluster::Service, ports::url};

/// Bound of a call that is answered without work.
const SHORT: Duration = Duration::from_secs(3);

/// A channel that connects when it is first used.
pub fn channel(port: u16) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(url(port)).map_err(|e| Status::internal(e.to_string()))?;
    Ok(endpoint
        .connect_timeout(Duration::from_secs(1))
        .tcp_nodelay(true)
        .connect_lazy())
}

async fn bounded<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(SHORT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::internal("test: no answer in time")),
    }
}

/// `Classify` with a deadline of 20 s.
pub async fn classify(gateway: u16, request: ClassifyRequest) -> Result<ClassifyResponse, Status> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(Duration::from_secs(20));
    let mut client = ClassifierServiceClient::new(channel(gateway)?);
    Ok(client.classify(request).await?.into_inner())
}

/// The view of the registry.
pub async fn capabilities(capability: u16) -> Result<CapabilityServiceGetResponse, Status> {
    bounded(CapabilityServiceClient::new(channel(capability)?).get(CapabilityServiceGetRequest {})).await
}

/// The snapshot of the only executor in the registry.
pub async fn snapshot(capability: u16) -> anyhow::Result<CapabilitySnapshot> {
    let view = capabilities(capability).await?;
    let [executor] = &view.executors[..] else {
        anyhow::bail!("{} executors", view.executors.len())
    };
    executor
        .snapshot
        .clone()
        .ok_or_else(|| anyhow::anyhow!("an entry without a snapshot"))
}

/// What an executor says of itself.
pub async fn describe(executor: u16) -> Result<DescribeResponse, Status> {
    bounded(ExecutorServiceClient::new(channel(executor)?).describe(DescribeRequest {})).await
}

/// Asks policy about readiness.
pub async fn decide(
    policy: u16,
    instance: &str,
    fingerprint: &str,
) -> Result<DecideReadinessResponse, Status> {
    let request = DecideReadinessRequest {
        instance_id: instance.to_owned(),
        capability_fingerprint: fingerprint.to_owned(),
    };
    bounded(PolicyServiceClient::new(channel(policy)?).decide_readiness(request)).await
}

/// Asks policy for a permit.
pub async fn permit(policy: u16, instance: &str, fingerprint: &str) -> Result<SignedPermit, Status> {
    let request = IssuePermitRequest {
        gateway_id: "test".to_owned(),
        instance_id: instance.to_owned(),
        capability_fingerprint: fingerprint.to_owned(),
    };
    let response = bounded(PolicyServiceClient::new(channel(policy)?).issue_permit(request)).await?;
    response
        .permit
        .ok_or_else(|| Status::internal("test: a response without a permit"))
}

/// Whether a health entry is SERVING.
pub async fn serving(port: u16, entry: &str) -> Result<bool, Status> {
    let request = HealthCheckRequest {
        service: entry.to_owned(),
    };
    Ok(bounded(HealthClient::new(channel(port)?).check(request))
        .await?
        .status()
        == ServingStatus::Serving)
}

/// Whether the entry `""` and the one of the service agree, and on what.
pub async fn service_serving(port: u16, service: Service) -> anyhow::Result<bool> {
    let (whole, own) = (serving(port, "").await?, serving(port, service.entry()).await?);
    anyhow::ensure!(
        whole == own,
        "{}: `\"\"` is {whole} and its own entry is {own}",
        service.name()
    );
    Ok(own)
}

/// The machine-readable reason of a refusal.
pub fn reason(status: &Status) -> String {
    ServiceError::from(status).reason.into_owned()
}

/// The binding of one kernel family.
pub fn binding(snapshot: &CapabilitySnapshot, family: KernelFamily) -> Option<&KernelBinding> {
    snapshot.bindings.iter().find(|b| b.family() == family)
}

/// The backend that a kernel family is bound to.
pub fn backend(snapshot: &CapabilitySnapshot, family: KernelFamily) -> &str {
    binding(snapshot, family).map_or("", |b| &b.backend)
}

/// A unary call with a raw `grpc-timeout`, over a bare HTTP/2 connection: tonic's client has a timer for the same
/// header, which may answer before the server does. Gives what the server itself said.
pub async fn with_timeout(
    port: u16,
    method: &str,
    message: &impl Message,
    timeout: &str,
) -> anyhow::Result<Status> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
    let connection = tokio::spawn(connection);
    let message = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    frame.extend(message);
    let request = http::Request::post(format!("{}/{method}", url(port)))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(Full::new(Bytes::from(frame)))?;
    let response = tokio::time::timeout(Duration::from_secs(60), sender.send_request(request)).await??;
    let status = match Status::from_header_map(response.headers()) {
        Some(status) => status,
        None => {
            let body =
                tokio::time::timeout(Duration::from_secs(60), response.into_body().collect()).await??;
            let trailers = body.trailers().cloned().unwrap_or_default();
            Status::from_header_map(&trailers).ok_or_else(|| anyhow::anyhow!("no grpc-status"))?
        }
    };
    connection.abort();
    Ok(status)
}
