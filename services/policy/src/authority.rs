//! Decides over readiness, signs permits, and keeps the decision log.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use deltagate_mesh::{
    permit::{CLOCK_TOLERANCE, Grant, Signer},
    wire,
};
use deltagate_proto::v1;
use parking_lot::Mutex;
use rand::RngCore;
use tokio::sync::watch;

use crate::{
    active::Active,
    config::PolicyConfig,
    evaluator::Decision,
    facts::readiness_input,
    view::{Absent, Latest},
};

/// Executors that the log remembers; beyond that it forgets, and says things again.
const MAX_LOGGED: usize = 256;

/// One decision about one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) decision_id: String,
    pub(crate) instance_id: String,
    /// The binding it is about; empty when the registry does not say.
    pub(crate) fingerprint: String,
    pub(crate) bundle_revision: String,
    pub(crate) decision: Decision,
    /// The refusal may heal by itself: the registry is away.
    pub(crate) transient: bool,
}

/// What was decided last about an executor.
#[derive(PartialEq, Eq)]
struct Logged {
    fingerprint: String,
    bundle_revision: String,
    decision: Decision,
}

/// Decides and signs.
pub(crate) struct Authority {
    active: watch::Receiver<Option<Arc<Active>>>,
    view: Latest,
    signer: Signer,
    decision_valid: Duration,
    permit_valid: Duration,
    max_plan_tokens: u64,
    max_plan_sequences: u32,
    logged: Mutex<BTreeMap<String, Logged>>,
}

impl Authority {
    /// With a signing key of its own: permits of an earlier process do not verify.
    pub(crate) fn new(
        config: &PolicyConfig,
        active: watch::Receiver<Option<Arc<Active>>>,
        view: Latest,
    ) -> Self {
        let mut seed = [0u8; 32];
        rand::rngs::OsRng.fill_bytes(&mut seed);
        Self {
            active,
            view,
            signer: Signer::from_seed(seed),
            decision_valid: config.decision_valid,
            permit_valid: config.permit_valid,
            max_plan_tokens: config.max_plan_tokens,
            max_plan_sequences: config.max_plan_sequences,
            logged: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) fn active(&self) -> watch::Receiver<Option<Arc<Active>>> {
        self.active.clone()
    }

    pub(crate) fn view(&self) -> Latest {
        self.view.clone()
    }

    pub(crate) fn decision_valid(&self) -> Duration {
        self.decision_valid
    }

    pub(crate) fn keys(&self) -> Vec<v1::VerifyingKey> {
        vec![self.signer.verifying_key()]
    }

    /// May this executor, with the binding it says it has, be ready?
    pub(crate) fn decide(&self, instance_id: &str, fingerprint: &str) -> Verdict {
        self.judge(instance_id, Some(fingerprint))
    }

    /// A verdict on every executor that the registry named.
    pub(crate) fn survey(&self) -> Vec<Verdict> {
        let seen = self.view.borrow().clone();
        seen.iter()
            .flat_map(|seen| seen.instances())
            .map(|id| self.judge(id, None))
            .collect()
    }

    /// `claimed` is the binding that a caller asks about; a survey takes the registry's.
    fn judge(&self, instance_id: &str, claimed: Option<&str>) -> Verdict {
        let mut verdict = Verdict {
            decision_id: uuid::Uuid::now_v7().to_string(),
            instance_id: instance_id.to_owned(),
            fingerprint: String::new(),
            bundle_revision: String::new(),
            decision: Decision::deny("no decision"),
            transient: false,
        };
        let active = self.active.borrow().clone();
        let found = match self.view.borrow().as_ref() {
            None => Err(Absent::NoView),
            Some(seen) => seen.find(instance_id),
        };
        verdict.decision = match (active, found) {
            (None, _) => {
                verdict.transient = true;
                Decision::deny("no policy bundle is active")
            }
            (_, Err(Absent::NoView)) => {
                verdict.transient = true;
                Decision::deny("no fresh view of the capability registry")
            }
            (_, Err(Absent::Unknown)) => Decision::deny("executor is not in the capability registry"),
            (_, Err(Absent::Stale)) => Decision::deny("executor's last heartbeat is older than its lease"),
            (Some(active), Ok(live)) => {
                verdict.bundle_revision = active.bundle.revision().to_owned();
                verdict.fingerprint = live.snapshot.fingerprint.clone();
                match claimed {
                    Some(claimed) if claimed.is_empty() || claimed != live.snapshot.fingerprint => {
                        Decision::deny("capability fingerprint is not the one in the registry")
                    }
                    _ if live.snapshot.fingerprint.is_empty() => {
                        Decision::deny("capability fingerprint is empty")
                    }
                    _ => {
                        let input = readiness_input(&live.snapshot, live.age, live.lease);
                        active.evaluator.lock().readiness(&input)
                    }
                }
            }
        };
        self.log(&verdict);
        verdict
    }

    /// Says a decision when it is another than the last one about this executor.
    fn log(&self, verdict: &Verdict) {
        let entry = Logged {
            fingerprint: verdict.fingerprint.clone(),
            bundle_revision: verdict.bundle_revision.clone(),
            decision: verdict.decision.clone(),
        };
        let mut logged = self.logged.lock();
        if logged.get(&verdict.instance_id) == Some(&entry) {
            return;
        }
        if logged.len() >= MAX_LOGGED {
            logged.clear();
        }
        logged.insert(verdict.instance_id.clone(), entry);
        drop(logged);
        tracing::info!(
            target: "deltagate_policy::decision",
            decision_id = verdict.decision_id,
            instance_id = verdict.instance_id,
            fingerprint = verdict.fingerprint,
            bundle_revision = verdict.bundle_revision,
            allowed = verdict.decision.allow,
            reasons = ?verdict.decision.reasons,
            "readiness decided"
        );
    }

    /// A permit for what a verdict allows; `None` for a refusal.
    pub(crate) fn permit(&self, verdict: &Verdict, gateway_id: &str) -> Option<v1::SignedPermit> {
        if !verdict.decision.allow {
            return None;
        }
        let now = SystemTime::now();
        let grant = Grant {
            gateway_id,
            instance_id: &verdict.instance_id,
            fingerprint: &verdict.fingerprint,
            bundle_revision: &verdict.bundle_revision,
            max_plan_tokens: self.max_plan_tokens,
            max_plan_sequences: self.max_plan_sequences,
        };
        Some(
            self.signer
                .sign(&grant, now - CLOCK_TOLERANCE, now + self.permit_valid),
        )
    }

    /// The permit as `Watch` sends it.
    pub(crate) fn issued(&self, verdict: &Verdict, gateway_id: &str) -> Option<v1::IssuedPermit> {
        Some(v1::IssuedPermit {
            instance_id: verdict.instance_id.clone(),
            capability_fingerprint: verdict.fingerprint.clone(),
            permit: Some(self.permit(verdict, gateway_id)?),
            valid_for: Some(wire::duration(self.permit_valid)),
        })
    }
}
