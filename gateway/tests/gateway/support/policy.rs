//! A scripted policy service: permits without real signatures, under a real bundle.

use std::{collections::BTreeMap, net::SocketAddr, pin::Pin, time::Duration};

use deltagate_mesh::{server::ServerHandle, wire::duration};
use deltagate_proto::v1::{
    Bundle, DecideReadinessRequest, DecideReadinessResponse, IssuePermitRequest, IssuePermitResponse,
    IssuedPermit, PermitClaims, PolicyServiceWatchRequest, PolicyServiceWatchResponse, Refusal, SignedPermit,
    policy_service_server::{PolicyService, PolicyServiceServer},
};
use futures::Stream;
use prost::Message;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::serve_at;

/// What policy says.
#[derive(Clone)]
pub(crate) struct Said {
    pub(crate) bundle: Option<Bundle>,
    /// Instance id to fingerprint.
    pub(crate) permits: BTreeMap<String, String>,
    pub(crate) refusals: BTreeMap<String, Vec<String>>,
    /// The binding that is refused.
    pub(crate) refused_fingerprint: String,
    pub(crate) valid_for: Duration,
    pub(crate) max_plan_tokens: u64,
    pub(crate) max_plan_sequences: u32,
    pub(crate) silent: bool,
}

#[derive(Clone)]
pub(crate) struct FakePolicy {
    pub(crate) said: watch::Sender<Said>,
}

impl FakePolicy {
    pub(crate) fn new(bundle: Bundle) -> Self {
        let said = Said {
            bundle: Some(bundle),
            permits: BTreeMap::new(),
            refusals: BTreeMap::new(),
            refused_fingerprint: "fp-1".to_owned(),
            valid_for: Duration::from_millis(1500),
            max_plan_tokens: 1 << 20,
            max_plan_sequences: 256,
            silent: false,
        };
        Self {
            said: watch::Sender::new(said),
        }
    }

    pub(crate) async fn serve(&self, addr: Option<SocketAddr>) -> ServerHandle {
        let service = PolicyServiceServer::new(self.clone());
        serve_at(addr, |routes| {
            routes.add_service(service);
        })
        .await
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Said)) {
        self.said.send_modify(change);
    }
}

fn permit(gateway_id: &str, instance: &str, fingerprint: &str, said: &Said) -> IssuedPermit {
    let claims = PermitClaims {
        gateway_id: gateway_id.into(),
        instance_id: instance.into(),
        capability_fingerprint: fingerprint.into(),
        bundle_revision: said
            .bundle
            .as_ref()
            .map(|bundle| bundle.revision.clone())
            .unwrap_or_default(),
        not_before: None,
        expires_at: None,
        max_plan_tokens: said.max_plan_tokens,
        max_plan_sequences: said.max_plan_sequences,
    };
    // Unique per permit, as signatures over fresh claims are.
    let signature = uuid::Uuid::new_v4().as_bytes().repeat(4);
    IssuedPermit {
        instance_id: instance.into(),
        capability_fingerprint: fingerprint.into(),
        permit: Some(SignedPermit {
            claims: claims.encode_to_vec().into(),
            signature: signature.into(),
            key_id: "k".into(),
        }),
        valid_for: Some(duration(said.valid_for)),
    }
}

#[tonic::async_trait]
impl PolicyService for FakePolicy {
    async fn decide_readiness(
        &self,
        _: Request<DecideReadinessRequest>,
    ) -> Result<Response<DecideReadinessResponse>, Status> {
        Err(Status::unimplemented("no executor asks the fake"))
    }

    async fn issue_permit(
        &self,
        _: Request<IssuePermitRequest>,
    ) -> Result<Response<IssuePermitResponse>, Status> {
        Err(Status::unimplemented("permits come by watch"))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<PolicyServiceWatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<PolicyServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let gateway = request.into_inner().gateway_id;
        let said = self.said.subscribe();
        let start = (said, None::<String>, true);
        let stream = futures::stream::unfold(start, move |(mut said, mut sent, first)| {
            let gateway = gateway.clone();
            async move {
                loop {
                    if !first {
                        let _ = tokio::time::timeout(Duration::from_millis(300), said.changed()).await;
                    }
                    let now = said.borrow_and_update().clone();
                    if now.silent {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                    let revision = now.bundle.as_ref().map(|bundle| bundle.revision.clone());
                    let bundle = if revision == sent {
                        None
                    } else {
                        now.bundle.clone()
                    };
                    sent = revision;
                    let permits = now
                        .permits
                        .iter()
                        .map(|(i, f)| permit(&gateway, i, f, &now))
                        .collect();
                    let refusals = now.refusals.iter().map(|(instance, reasons)| Refusal {
                        instance_id: instance.clone(),
                        reasons: reasons.clone(),
                        capability_fingerprint: now.refused_fingerprint.clone(),
                    });
                    let message = PolicyServiceWatchResponse {
                        bundle,
                        permits,
                        refusals: refusals.collect(),
                    };
                    return Some((Ok(message), (said, sent, false)));
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
