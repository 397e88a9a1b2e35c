//! In-process capability and policy services.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use deltagate_mesh::{
    health::Health,
    permit::Signer,
    server::{ServeOptions, ServerHandle, serve},
    wire,
};
use deltagate_proto::v1::{
    self,
    capability_service_server::{CapabilityService, CapabilityServiceServer},
    policy_service_server::{PolicyService, PolicyServiceServer},
};
use futures::Stream;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// How a fake answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Allow,
    Deny(Vec<String>),
    Unavailable,
    Hang,
}

/// What the fakes know.
pub struct State {
    pub signer: Arc<Signer>,
    pub capability: Mutex<Mode>,
    pub policy: Mutex<Mode>,
    pub valid_for: Mutex<Duration>,
    pub reports: Mutex<Vec<v1::ReportRequest>>,
    pub registered: Mutex<Option<v1::CapabilitySnapshot>>,
    pub decisions: Mutex<usize>,
}

/// Both fakes, each on a port of its own.
pub struct Mesh {
    pub state: Arc<State>,
    capability: Option<ServerHandle>,
    capability_addr: SocketAddr,
    policy: ServerHandle,
}

impl Mesh {
    pub async fn start() -> Self {
        let state = Arc::new(State {
            signer: Arc::new(Signer::from_seed([1; 32])),
            capability: Mutex::new(Mode::Allow),
            policy: Mutex::new(Mode::Allow),
            valid_for: Mutex::new(Duration::from_millis(1_500)),
            reports: Mutex::default(),
            registered: Mutex::default(),
            decisions: Mutex::default(),
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let capability = serve_capability(any, &state).await;
        let listener = TcpListener::bind(any).await.unwrap();
        let service = PolicyServiceServer::new(Fake(Arc::clone(&state)));
        let policy = serve(
            listener,
            health().await,
            CancellationToken::new(),
            ServeOptions::new("policy"),
            |routes| {
                routes.add_service(service);
            },
        )
        .await
        .unwrap();
        Self {
            state,
            capability_addr: capability.addr(),
            capability: Some(capability),
            policy,
        }
    }

    pub fn capability_endpoint(&self) -> String {
        format!("http://{}", self.capability_addr)
    }

    pub fn policy_endpoint(&self) -> String {
        self.policy.endpoint()
    }

    /// The registry dies and forgets everything.
    pub async fn kill_capability(&mut self) {
        let server = self.capability.take().unwrap();
        server.kill();
        server.wait().await.unwrap();
        *self.state.registered.lock() = None;
    }

    /// A new registry at the same address.
    pub async fn revive_capability(&mut self) {
        self.capability = Some(serve_capability(self.capability_addr, &self.state).await);
    }

    pub fn set_policy(&self, mode: Mode) {
        *self.state.policy.lock() = mode;
    }

    pub fn reports(&self) -> Vec<v1::ReportRequest> {
        self.state.reports.lock().clone()
    }
}

async fn health() -> Health {
    Health::new([""; 0]).await
}

async fn serve_capability(addr: SocketAddr, state: &Arc<State>) -> ServerHandle {
    let listener = TcpListener::bind(addr).await.unwrap();
    let service = CapabilityServiceServer::new(Fake(Arc::clone(state)));
    serve(
        listener,
        health().await,
        CancellationToken::new(),
        ServeOptions::new("capability"),
        |routes| {
            routes.add_service(service);
        },
    )
    .await
    .unwrap()
}

struct Fake(Arc<State>);

type Stream_<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

async fn obey(mode: Mode) -> Result<(), Status> {
    match mode {
        Mode::Unavailable => Err(Status::unavailable("told to")),
        Mode::Hang => std::future::pending().await,
        Mode::Allow | Mode::Deny(_) => Ok(()),
    }
}

#[tonic::async_trait]
impl CapabilityService for Fake {
    type WatchStream = Stream_<v1::CapabilityServiceWatchResponse>;

    async fn get(
        &self,
        _: Request<v1::CapabilityServiceGetRequest>,
    ) -> Result<Response<v1::CapabilityServiceGetResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn watch(
        &self,
        _: Request<v1::CapabilityServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        let mode = self.0.capability.lock().clone();
        obey(mode).await?;
        let report = request.into_inner();
        let mut registered = self.0.registered.lock();
        if let Some(snapshot) = &report.snapshot {
            if let Some(last) = &*registered {
                assert!(snapshot.revision >= last.revision, "revisions must not go back");
                assert!(
                    snapshot.revision > last.revision || snapshot == last,
                    "a changed snapshot has a new revision"
                );
            }
            *registered = Some(snapshot.clone());
        }
        let known = registered
            .as_ref()
            .is_some_and(|snapshot| snapshot.revision == report.revision);
        self.0.reports.lock().push(report);
        Ok(Response::new(v1::ReportResponse {
            lease: Some(wire::duration(Duration::from_millis(1_500))),
            snapshot_wanted: !known,
        }))
    }
}

#[tonic::async_trait]
impl PolicyService for Fake {
    type WatchStream = Stream_<v1::PolicyServiceWatchResponse>;

    async fn decide_readiness(
        &self,
        request: Request<v1::DecideReadinessRequest>,
    ) -> Result<Response<v1::DecideReadinessResponse>, Status> {
        let mode = self.0.policy.lock().clone();
        obey(mode.clone()).await?;
        *self.0.decisions.lock() += 1;
        let asked = request.into_inner().capability_fingerprint;
        let known = self
            .0
            .registered
            .lock()
            .as_ref()
            .is_some_and(|snapshot| snapshot.fingerprint == asked);
        let reasons = match mode {
            Mode::Deny(reasons) => reasons,
            _ if !known => vec!["the registry knows another binding".to_owned()],
            _ => Vec::new(),
        };
        Ok(Response::new(v1::DecideReadinessResponse {
            allowed: reasons.is_empty(),
            reasons,
            decision_id: "decision".to_owned(),
            bundle_revision: "bundle".to_owned(),
            valid_for: Some(wire::duration(*self.0.valid_for.lock())),
            keys: vec![self.0.signer.verifying_key()],
        }))
    }

    async fn issue_permit(
        &self,
        _: Request<v1::IssuePermitRequest>,
    ) -> Result<Response<v1::IssuePermitResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn watch(
        &self,
        _: Request<v1::PolicyServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}
