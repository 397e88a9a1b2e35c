//! The fakes and the gateway together.

use std::{net::SocketAddr, time::Duration};

use deltagate_gateway::{GatewayConfig, GatewayHandle, Listeners, start};
use deltagate_mesh::{error::ServiceError, server::ServerHandle};
use deltagate_proto::v1::{
    ClassifyRequest, ClassifyResponse, classifier_service_client::ClassifierServiceClient,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    capability::{FakeCapability, ready_snapshot},
    executor::FakeExecutor,
    http::{self, HttpResponse},
    policy::FakePolicy,
    requests::open_bundle,
    within,
};

/// How soon everybody must have noticed a fault or its end.
pub(crate) const NOTICED: Duration = Duration::from_secs(2);

pub(crate) struct Mesh {
    pub(crate) capability: FakeCapability,
    pub(crate) policy: FakePolicy,
    pub(crate) executor: FakeExecutor,
    pub(crate) capability_server: Option<ServerHandle>,
    pub(crate) policy_server: Option<ServerHandle>,
    pub(crate) executor_server: Option<ServerHandle>,
    pub(crate) gateway: GatewayHandle,
    pub(crate) channel: Channel,
}

/// A mesh whose gateway is ready.
pub(crate) async fn ready() -> Mesh {
    ready_with(|_| {}).await
}

pub(crate) async fn ready_with(configure: impl FnOnce(&mut GatewayConfig)) -> Mesh {
    let mesh = unready_with(configure).await;
    mesh.permit("fp-1");
    within(NOTICED, "ready", || mesh.serving()).await;
    mesh
}

/// A mesh in which policy has not issued a permit.
pub(crate) async fn unready_with(configure: impl FnOnce(&mut GatewayConfig)) -> Mesh {
    let capability = FakeCapability::new();
    let policy = FakePolicy::new(open_bundle());
    let executor = FakeExecutor::new("fp-1");
    let capability_server = capability.serve(None).await;
    let policy_server = policy.serve(None).await;
    let executor_server = executor.serve(None).await;
    capability.shown.send_modify(|shown| {
        shown.snapshots = vec![ready_snapshot("executor-1", &executor_server.endpoint(), "fp-1")];
    });
    let mut config = GatewayConfig {
        capability: capability_server.endpoint(),
        policy: policy_server.endpoint(),
        ..GatewayConfig::default()
    };
    configure(&mut config);
    let bind = || TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listeners = Listeners {
        grpc: Some(bind().await.unwrap()),
        http: Some(bind().await.unwrap()),
    };
    let gateway = start(config, listeners, CancellationToken::new()).await.unwrap();
    let endpoint = format!("http://{}", gateway.grpc_addr);
    let channel = Channel::from_shared(endpoint).unwrap().connect_lazy();
    Mesh {
        capability,
        policy,
        executor,
        capability_server: Some(capability_server),
        policy_server: Some(policy_server),
        executor_server: Some(executor_server),
        gateway,
        channel,
    }
}

impl Mesh {
    pub(crate) fn permit(&self, fingerprint: &str) {
        self.policy.change(|said| {
            said.permits = [("executor-1".to_owned(), fingerprint.to_owned())].into();
        });
    }

    pub(crate) fn client(&self) -> ClassifierServiceClient<Channel> {
        ClassifierServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn classify(&self, request: ClassifyRequest) -> Result<ClassifyResponse, ServiceError> {
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_secs(20));
        let response = self.client().classify(request).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| ServiceError::from(&status))
    }

    /// Whether both health entries and the HTTP probe say that the gateway is ready. They must agree.
    pub(crate) async fn serving(&self) -> bool {
        let mut serving = Vec::new();
        for service in ["", "deltagate.v1.ClassifierService"] {
            let mut health = HealthClient::new(self.channel.clone());
            let check = health
                .check(HealthCheckRequest {
                    service: service.into(),
                })
                .await
                .unwrap()
                .into_inner();
            serving.push(check.status() == ServingStatus::Serving);
        }
        serving[0] && serving[1]
    }

    pub(crate) async fn unready(&self) {
        within(NOTICED, "not ready", || async { !self.serving().await }).await;
        let health = self.get("/health").await;
        assert_eq!(health.status, 503);
        assert!(!health.json()["reasons"].as_array().unwrap().is_empty());
        assert_eq!(self.get("/readyz").await.status, 503);
        assert_eq!(self.get("/livez").await.status, 200);
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        http::send(self.gateway.http_addr, "GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, body: &str) -> HttpResponse {
        self.post_with(&[("content-type", "application/json")], body.as_bytes())
            .await
    }

    pub(crate) async fn post_with(&self, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
        http::send(self.gateway.http_addr, "POST", "/v1/systemone", headers, body).await
    }
}
