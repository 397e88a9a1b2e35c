//! A capability and a policy service that do as they are told, and a runner that plays a script instead of a model.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    missing_docs,
    unreachable_pub
)]

pub mod fakes;
pub mod runner;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use deltagate_executor::{
    ConfigSource, DrainConfig, ExecutorConfig, ExecutorHandle, runner::Loader, start_with,
};
use deltagate_mesh::{
    ServiceError,
    permit::{Grant, Signer},
};
use deltagate_proto::v1::{
    self, ExecutorPhase, executor_service_client::ExecutorServiceClient, forward_response::Event,
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use fakes::Mesh;
use runner::Script;

/// An executor over a script, in a mesh of fakes.
pub struct Bench {
    pub mesh: Mesh,
    pub script: Arc<Script>,
    pub handle: ExecutorHandle,
    pub client: ExecutorServiceClient<Channel>,
    pub health: HealthClient<Channel>,
    pub signer: Arc<Signer>,
}

pub fn config() -> ExecutorConfig {
    ExecutorConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        drain: DrainConfig {
            grace: Duration::from_millis(50),
            timeout: Duration::from_secs(5),
        },
        watch_config: Duration::from_millis(50),
        ..ExecutorConfig::default()
    }
}

impl Bench {
    pub async fn new() -> Self {
        Self::with(config(), Script::default(), None).await
    }

    pub async fn ready() -> Self {
        let bench = Self::new().await;
        bench.wait_phase(ExecutorPhase::Ready).await;
        bench
    }

    pub async fn with(config: ExecutorConfig, script: Script, source: Option<ConfigSource>) -> Self {
        let script = Arc::new(script);
        Self::over(config, Arc::clone(&script), source, runner::loader(script)).await
    }

    /// Over another loader than that of the script.
    pub async fn over(
        mut config: ExecutorConfig,
        script: Arc<Script>,
        source: Option<ConfigSource>,
        loader: Loader,
    ) -> Self {
        let mesh = Mesh::start().await;
        config.capability = mesh.capability_endpoint();
        config.policy = mesh.policy_endpoint();
        let handle = start_with(config, None, CancellationToken::new(), source, loader)
            .await
            .unwrap();
        let channel = tonic::transport::Endpoint::from_shared(handle.endpoint().to_owned())
            .unwrap()
            .connect_lazy();
        let signer = Arc::clone(&mesh.state.signer);
        Self {
            client: ExecutorServiceClient::new(channel.clone()),
            health: HealthClient::new(channel),
            mesh,
            script,
            handle,
            signer,
        }
    }

    /// Waits, at most two seconds: the bound that everything in the mesh is held to.
    pub async fn wait_phase(&self, phase: ExecutorPhase) -> Arc<v1::CapabilitySnapshot> {
        let mut snapshots = self.handle.snapshots();
        let waited = tokio::time::timeout(
            Duration::from_secs(2),
            snapshots.wait_for(|snapshot| snapshot.phase() == phase),
        );
        match waited.await {
            Ok(snapshot) => snapshot.unwrap().clone(),
            Err(_) => panic!("not {phase:?} within 2 s: {:?}", self.handle.snapshots().borrow()),
        }
    }

    pub fn fingerprint(&self) -> String {
        self.handle.snapshots().borrow().fingerprint.clone()
    }

    pub fn permit(&self) -> v1::SignedPermit {
        self.permit_for(&self.fingerprint())
    }

    fn permit_for(&self, fingerprint: &str) -> v1::SignedPermit {
        let valid = Duration::from_secs(60);
        permit(&self.signer, self.handle.instance_id(), fingerprint, valid)
    }

    /// A permitted request for sequences of these lengths; the first token tells requests apart.
    pub fn request(&self, first_token: u32, lengths: &[usize]) -> v1::ForwardRequest {
        // Asked for once: a swap between two looks would make a permit for another binding than the request's.
        let fingerprint = self.fingerprint();
        v1::ForwardRequest {
            permit: Some(self.permit_for(&fingerprint)),
            capability_fingerprint: fingerprint,
            sequences: lengths
                .iter()
                .map(|&length| sequence(first_token, length))
                .collect(),
            noncausal_full_attention: false,
            segment_events: false,
            result_only: false,
            prefix_token_ids: Vec::new(),
        }
    }

    pub async fn forward(&self, request: v1::ForwardRequest) -> Result<v1::ForwardResult, ServiceError> {
        let events = collect(self.client.clone(), request)
            .await
            .map_err(|status| ServiceError::from(&status))?;
        match events.last() {
            Some(Event::Result(result)) => Ok(result.clone()),
            other => panic!("the stream ended with {other:?}"),
        }
    }

    /// Whether a health entry is SERVING.
    pub async fn serving(&self, entry: &str) -> bool {
        let request = HealthCheckRequest {
            service: entry.to_owned(),
        };
        self.health
            .clone()
            .check(request)
            .await
            .unwrap()
            .into_inner()
            .status
            == 1
    }

    /// Health follows the snapshot with a short delay.
    pub async fn wait_serving(&self, entry: &str, serving: bool) {
        let until = Instant::now() + Duration::from_millis(500);
        while self.serving(entry).await != serving {
            assert!(Instant::now() < until, "`{entry}` is not serving={serving}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub fn permit(signer: &Signer, instance_id: &str, fingerprint: &str, valid: Duration) -> v1::SignedPermit {
    let grant = Grant {
        gateway_id: "gateway",
        instance_id,
        fingerprint,
        bundle_revision: "bundle",
        max_plan_tokens: 1_000,
        max_plan_sequences: 4,
    };
    let now = SystemTime::now();
    signer.sign(&grant, now - Duration::from_secs(1), now + valid)
}

pub fn sequence(first_token: u32, length: usize) -> v1::Sequence {
    let mut token_ids = vec![0; length];
    if let Some(first) = token_ids.first_mut() {
        *first = first_token;
    }
    let readout = v1::Readout {
        rows: Some(v1::readout::Rows::Last(v1::LastRow {})),
        projection: Some(v1::readout::Projection::Hidden(v1::HiddenRow {})),
    };
    v1::Sequence {
        token_ids,
        readout: Some(readout),
    }
}

pub async fn collect(
    mut client: ExecutorServiceClient<Channel>,
    request: impl tonic::IntoRequest<v1::ForwardRequest>,
) -> Result<Vec<Event>, Status> {
    let mut stream = client.forward(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(response) = stream.message().await? {
        events.push(response.event.expect("an event"));
    }
    Ok(events)
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(2);
    while !holds() {
        assert!(Instant::now() < until, "not within 2 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
