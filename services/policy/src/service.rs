//! The gRPC face of the authority.

use std::{pin::Pin, sync::Arc, time::Duration};

use deltagate_mesh::{ServiceError, wire};
use deltagate_proto::v1::{
    DecideReadinessRequest, DecideReadinessResponse, IssuePermitRequest, IssuePermitResponse,
    PolicyServiceWatchRequest, PolicyServiceWatchResponse, Refusal, policy_service_server::PolicyService,
};
use futures::Stream;
use tokio::{sync::watch, time::Instant};
use tonic::{Request, Response, Status};

use crate::{
    active::Active,
    authority::{Authority, Verdict},
    view::Latest,
};

/// Longest id in bytes.
const MAX_ID_BYTES: usize = 128;

/// Implements `deltagate.v1.PolicyService`.
pub(crate) struct Policy {
    authority: Arc<Authority>,
    renew_every: Duration,
}

impl Policy {
    pub(crate) fn new(authority: Arc<Authority>, renew_every: Duration) -> Self {
        Self {
            authority,
            renew_every,
        }
    }
}

fn check_id(field: &'static str, id: &str) -> Result<(), ServiceError> {
    if (1..=MAX_ID_BYTES).contains(&id.len()) {
        return Ok(());
    }
    let message = format!("{field} must have 1 to {MAX_ID_BYTES} bytes");
    Err(ServiceError::invalid_argument("INVALID_REQUEST", &message).field(field, "LENGTH", message))
}

#[tonic::async_trait]
impl PolicyService for Policy {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<PolicyServiceWatchResponse, Status>> + Send>>;

    async fn decide_readiness(
        &self,
        request: Request<DecideReadinessRequest>,
    ) -> Result<Response<DecideReadinessResponse>, Status> {
        let request = request.into_inner();
        check_id("instance_id", &request.instance_id)?;
        let verdict = self
            .authority
            .decide(&request.instance_id, &request.capability_fingerprint);
        Ok(Response::new(DecideReadinessResponse {
            allowed: verdict.decision.allow,
            reasons: verdict.decision.reasons,
            decision_id: verdict.decision_id,
            bundle_revision: verdict.bundle_revision,
            valid_for: Some(wire::duration(self.authority.decision_valid())),
            keys: self.authority.keys(),
        }))
    }

    async fn issue_permit(
        &self,
        request: Request<IssuePermitRequest>,
    ) -> Result<Response<IssuePermitResponse>, Status> {
        let request = request.into_inner();
        check_id("gateway_id", &request.gateway_id)?;
        check_id("instance_id", &request.instance_id)?;
        let verdict = self
            .authority
            .decide(&request.instance_id, &request.capability_fingerprint);
        match self.authority.permit(&verdict, &request.gateway_id) {
            Some(permit) => Ok(Response::new(IssuePermitResponse {
                permit: Some(permit),
                decision_id: verdict.decision_id,
            })),
            None => Err(refusal(verdict).into()),
        }
    }

    async fn watch(
        &self,
        request: Request<PolicyServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let gateway_id = request.into_inner().gateway_id;
        check_id("gateway_id", &gateway_id)?;
        if self.authority.active().borrow().is_none() {
            return Err(
                ServiceError::unavailable("BUNDLE_NOT_LOADED", "no policy bundle is active")
                    .retry_after(Duration::from_millis(500))
                    .into(),
            );
        }
        let watcher = Watcher {
            active: self.authority.active(),
            view: self.authority.view(),
            authority: Arc::clone(&self.authority),
            gateway_id,
            renew_every: self.renew_every,
            sent_bundle: String::new(),
            sent: Vec::new(),
            due: Instant::now(),
        };
        let updates = futures::stream::unfold(watcher, |mut watcher| async move {
            Some((Ok(watcher.next().await?), watcher))
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

fn refusal(verdict: Verdict) -> ServiceError {
    if verdict.transient {
        let reason = verdict.decision.reasons.join("; ");
        return ServiceError::unavailable("CAPABILITY_UNREACHABLE", reason)
            .retry_after(Duration::from_millis(500));
    }
    let subject = format!("executor/{}", verdict.instance_id);
    verdict.decision.reasons.into_iter().fold(
        ServiceError::failed_precondition("POLICY_DENIED", "policy does not let this executor be ready")
            .with("decision_id", verdict.decision_id),
        |error, reason| error.precondition("POLICY_DENIED", &subject, reason),
    )
}

/// One gateway's stream: an update when something changed, and before permits run out.
struct Watcher {
    authority: Arc<Authority>,
    active: watch::Receiver<Option<Arc<Active>>>,
    view: Latest,
    gateway_id: String,
    renew_every: Duration,
    /// Revision of the bundle that the gateway has.
    sent_bundle: String,
    /// What the gateway knows, but for ids and times.
    sent: Vec<(String, String, bool, Vec<String>)>,
    due: Instant,
}

impl Watcher {
    /// `None` when the service is going away.
    async fn next(&mut self) -> Option<PolicyServiceWatchResponse> {
        loop {
            let active = self.active.borrow_and_update().clone()?;
            self.view.mark_unchanged();
            let verdicts = self.authority.survey();
            let known: Vec<_> = verdicts
                .iter()
                .map(|v| {
                    (
                        v.instance_id.clone(),
                        v.fingerprint.clone(),
                        v.decision.allow,
                        v.decision.reasons.clone(),
                    )
                })
                .collect();
            let new_bundle = active.bundle.revision() != self.sent_bundle;
            // A bundle may have become active between the look above and the survey: the next round sends both.
            if verdicts
                .iter()
                .any(|v| !v.bundle_revision.is_empty() && v.bundle_revision != active.bundle.revision())
            {
                continue;
            }
            if new_bundle || known != self.sent || Instant::now() >= self.due {
                self.sent_bundle = active.bundle.revision().to_owned();
                self.sent = known;
                self.due = Instant::now() + self.renew_every;
                return Some(PolicyServiceWatchResponse {
                    bundle: new_bundle.then(|| active.bundle.wire().clone()),
                    permits: verdicts
                        .iter()
                        .filter_map(|v| self.authority.issued(v, &self.gateway_id))
                        .collect(),
                    refusals: verdicts
                        .into_iter()
                        .filter(|v| !v.decision.allow)
                        .map(|v| Refusal {
                            instance_id: v.instance_id,
                            capability_fingerprint: v.fingerprint,
                            reasons: v.decision.reasons,
                        })
                        .collect(),
                });
            }
            tokio::select! {
                changed = self.active.changed() => changed.ok()?,
                changed = self.view.changed() => changed.ok()?,
                () = tokio::time::sleep_until(self.due) => {}
            }
        }
    }
}
