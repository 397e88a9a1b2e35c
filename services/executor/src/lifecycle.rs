//! Where the executor is in its life, and what it may say about itself.
//!
//! ```text
//! LOADING ──loaded──▶ AWAITING_POLICY ◀──decision or lease lost── READY ──shutdown──▶ DRAINING
//!    │                       └───allowed, for this binding, and fresh───▲
//!    └──load failed, device lost──▶ FAILED
//! ```
//!
//! READY is never a stored fact: it is derived, at every look, from a decision of policy that has not run out, that
//! is for the binding of this moment, and from a heartbeat that the registry answered. Whatever is unknown means no.
//! The snapshot gets a new revision exactly when something in it changed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_kernels_api::{BindingReport, KernelFamily};
use deltagate_mesh::error::ServiceError;
use deltagate_proto::v1::{self, ExecutorPhase};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{reason::Reason, runner::ServedModel, snapshot};

/// Who this executor is. Fixed for the life of the process.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Unique per process start.
    pub instance_id: String,
    /// Where others reach it.
    pub endpoint: String,
}

/// What the device thread has bound.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// The device.
    pub device: v1::DeviceInfo,
    /// Every family with every candidate.
    pub report: BindingReport,
    /// Why the layer plan cannot run; empty when it can.
    pub unbound: Vec<String>,
    /// Of this binding.
    pub fingerprint: Arc<str>,
}

/// An answer of policy.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// The binding that was asked for.
    pub fingerprint: Arc<str>,
    /// Why not; none when it is allowed.
    pub refused: Option<Vec<String>>,
    /// It holds until then.
    pub valid_until: Instant,
}

/// After this time a no of policy is taken for its last word.
const DENIAL_SETTLES: Duration = Duration::from_secs(1);

/// The state of the executor. Every change goes through here.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    identity: Identity,
    state: Mutex<State>,
    snapshot: watch::Sender<Arc<v1::CapabilitySnapshot>>,
}

#[derive(Debug, Default)]
struct State {
    served: Option<Arc<ServedModel>>,
    bound: Option<Bound>,
    failure: Option<Reason>,
    draining: bool,
    decision: Option<Decision>,
    /// Policy was asked since its last answer, and did not answer.
    policy_silent: bool,
    /// Since when policy has said nothing but no.
    denied_since: Option<Instant>,
    /// The registry did not answer the last heartbeat.
    registry_silent: bool,
    registered_until: Option<Instant>,
}

impl Lifecycle {
    /// LOADING.
    pub(crate) fn new(identity: Identity) -> Self {
        let state = State::default();
        let first = v1::CapabilitySnapshot {
            revision: 1,
            ..snapshot_of(&identity, &state, Instant::now())
        };
        Self {
            identity,
            state: Mutex::new(state),
            snapshot: watch::Sender::new(Arc::new(first)),
        }
    }

    /// Who this executor is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The snapshot, and its changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<v1::CapabilitySnapshot>> {
        self.snapshot.subscribe()
    }

    /// The snapshot as it is now.
    pub(crate) fn snapshot(&self) -> Arc<v1::CapabilitySnapshot> {
        self.look();
        self.snapshot.borrow().clone()
    }

    /// What is served, once it is loaded.
    pub(crate) fn served(&self) -> Option<Arc<ServedModel>> {
        self.state.lock().served.clone()
    }

    /// The fingerprint of the current binding, when its layer plan can run and policy is worth asking.
    pub(crate) fn fingerprint(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        let open = state.failure.is_none() && !state.draining;
        state
            .bound
            .as_ref()
            .filter(|bound| open && bound.unbound.is_empty())
            .map(|bound| Arc::clone(&bound.fingerprint))
    }

    /// The model is on the device.
    pub(crate) fn loaded(&self, served: ServedModel, bound: Bound) {
        self.change(|state| {
            state.served = Some(Arc::new(served));
            state.bound = Some(bound);
        });
    }

    /// Another binding is in force. A decision for the former one says nothing about it.
    pub(crate) fn rebound(&self, bound: Bound) {
        self.change(|state| state.bound = Some(bound));
    }

    /// It cannot serve without a restart. The first failure is the one that is told.
    pub(crate) fn fail(&self, reason: Reason) {
        self.change(|state| {
            state.failure.get_or_insert(reason);
        });
    }

    /// It takes nothing new. Final.
    pub(crate) fn drain(&self) {
        self.change(|state| state.draining = true);
    }

    /// Policy answered.
    pub(crate) fn decided(&self, decision: Decision) {
        self.change(|state| {
            state.denied_since = match &decision.refused {
                Some(_) => state.denied_since.or(Some(Instant::now())),
                None => None,
            };
            state.decision = Some(decision);
            state.policy_silent = false;
        });
    }

    /// Policy did not answer. Its last decision holds for as long as it said, no longer.
    pub(crate) fn policy_silent(&self) {
        self.change(|state| state.policy_silent = true);
    }

    /// The registry answered a heartbeat; the lease runs until then.
    pub(crate) fn registered(&self, until: Instant) {
        self.change(|state| {
            state.registered_until = Some(until);
            state.registry_silent = false;
        });
    }

    /// The registry did not answer a heartbeat. The lease runs on.
    pub(crate) fn registry_silent(&self) {
        self.change(|state| state.registry_silent = true);
    }

    /// Notices what ran out since the last look.
    pub(crate) fn look(&self) {
        self.change(|_| {});
    }

    /// Ok exactly while READY; else the refusal that a caller gets.
    pub(crate) fn admits(&self) -> Result<(), ServiceError> {
        let (phase, reasons) = phase_of(&self.state.lock(), Instant::now());
        if phase == ExecutorPhase::Ready {
            return Ok(());
        }
        let first = reasons
            .into_iter()
            .next()
            .unwrap_or_else(|| Reason::bare("EXECUTOR_NOT_READY"));
        Err(first.refusal())
    }

    /// Whether what was admitted for this binding may run now: by policy's standing decision, which is renewed all the
    /// time. A drain runs what was admitted before, by the last decision there was.
    pub(crate) fn still_allows(&self, fingerprint: &str) -> Result<(), ServiceError> {
        let (state, now) = (self.state.lock(), Instant::now());
        let unknown = || Reason::bare("EXECUTOR_NOT_READY").refusal();
        let decision = state
            .decision
            .as_ref()
            .filter(|d| *d.fingerprint == *fingerprint)
            .ok_or_else(unknown)?;
        if now >= decision.valid_until && !state.draining {
            return Err(Reason::bare("POLICY_UNREACHABLE").refusal());
        }
        match &decision.refused {
            None => Ok(()),
            Some(refused) => Err(denial(&state, refused, now)
                .into_iter()
                .next()
                .map_or_else(unknown, |reason| reason.refusal())),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        // The lock is held while the snapshot is sent, so that revisions leave in their order.
        let mut state = self.state.lock();
        change(&mut state);
        let new = snapshot_of(&self.identity, &state, Instant::now());
        self.snapshot.send_if_modified(|last| {
            let new = v1::CapabilitySnapshot {
                revision: last.revision,
                ..new
            };
            if new == **last {
                return false;
            }
            if new.phase != last.phase {
                tracing::info!(phase = new.phase().as_str_name(), reasons = ?new.reasons, "executor phase");
            }
            *last = Arc::new(v1::CapabilitySnapshot {
                revision: last.revision + 1,
                ..new
            });
            true
        });
    }
}

fn phase_of(state: &State, now: Instant) -> (ExecutorPhase, Vec<Reason>) {
    if let Some(reason) = &state.failure {
        return (ExecutorPhase::Failed, vec![reason.clone()]);
    }
    if state.draining {
        return (ExecutorPhase::Draining, vec![Reason::bare("DRAINING")]);
    }
    let Some(bound) = &state.bound else {
        return (ExecutorPhase::Loading, vec![Reason::bare("LOADING")]);
    };
    let mut reasons: Vec<Reason> = bound
        .unbound
        .iter()
        .map(|why| Reason::new("KERNEL_NOT_BOUND", why.as_str()))
        .collect();
    if state.registered_until.is_none_or(|until| until <= now) {
        reasons.push(Reason::bare("CAPABILITY_UNREACHABLE"));
    }
    match &state.decision {
        Some(decision) if now < decision.valid_until && decision.fingerprint == bound.fingerprint => {
            if let Some(refused) = &decision.refused {
                reasons.extend(denial(state, refused, now));
            }
        }
        // An unbound plan is not put to policy at all.
        _ if !bound.unbound.is_empty() => {}
        Some(decision) if now >= decision.valid_until => reasons.push(Reason::bare("POLICY_UNREACHABLE")),
        None if state.policy_silent => reasons.push(Reason::bare("POLICY_UNREACHABLE")),
        _ => reasons.push(Reason::new(
            "EXECUTOR_NOT_READY",
            "policy has not decided about the current binding",
        )),
    }
    reasons.dedup();
    let phase = if reasons.is_empty() {
        ExecutorPhase::Ready
    } else {
        ExecutorPhase::AwaitingPolicy
    };
    (phase, reasons)
}

/// How a no of policy is told. It is obeyed at once; but it says that somebody must change something only once it has
/// lasted, for policy may not have seen a new snapshot yet, or may have lost the registry a moment before us.
fn denial(state: &State, refused: &[String], now: Instant) -> Vec<Reason> {
    if state.registry_silent {
        return vec![Reason::bare("CAPABILITY_UNREACHABLE")];
    }
    let lasts = state
        .denied_since
        .is_some_and(|since| now >= since + DENIAL_SETTLES);
    let code = if lasts {
        "POLICY_DENIED"
    } else {
        "EXECUTOR_NOT_READY"
    };
    if refused.is_empty() {
        return vec![Reason::new(code, "policy gives no reason")];
    }
    refused
        .iter()
        .map(|why| Reason::new(code, why.as_str()))
        .collect()
}

/// The snapshot without its revision.
fn snapshot_of(identity: &Identity, state: &State, now: Instant) -> v1::CapabilitySnapshot {
    let (phase, reasons) = phase_of(state, now);
    v1::CapabilitySnapshot {
        instance_id: identity.instance_id.clone(),
        revision: 0,
        endpoint: identity.endpoint.clone(),
        phase: phase.into(),
        reasons: reasons.iter().map(Reason::to_string).collect(),
        model: state.served.as_ref().map(|served| served.info.clone()),
        device: state.bound.as_ref().map(|bound| bound.device.clone()),
        bindings: state
            .bound
            .as_ref()
            .map(|bound| snapshot::bindings(&bound.report))
            .unwrap_or_default(),
        fingerprint: state
            .bound
            .as_ref()
            .map(|bound| bound.fingerprint.to_string())
            .unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// How long an answer may be believed: what it says itself, but no longer than `most`, counted from the question.
pub(crate) fn believed_until(asked: Instant, says: Option<Duration>, most: Duration) -> Instant {
    asked + says.unwrap_or(Duration::ZERO).min(most)
}

/// Health entries of a snapshot: kernel families by their binding, the service only when ready.
pub(crate) fn health_of(snapshot: &v1::CapabilitySnapshot) -> Vec<(String, bool)> {
    let ready = snapshot.phase() == ExecutorPhase::Ready;
    let alive = !matches!(snapshot.phase(), ExecutorPhase::Failed | ExecutorPhase::Draining);
    let mut entries: Vec<(String, bool)> = KernelFamily::ALL
        .into_iter()
        .map(|family| {
            let wire = i32::from(snapshot::family(family));
            let bound = snapshot
                .bindings
                .iter()
                .any(|binding| binding.family == wire && binding.state() == v1::BindingState::Bound);
            (kernel_entry(family), alive && bound)
        })
        .collect();
    entries.push((SERVICE_ENTRY.to_owned(), ready));
    entries.push((String::new(), ready));
    entries
}

/// Health entry of the service.
pub const SERVICE_ENTRY: &str = "deltagate.v1.ExecutorService";

/// Health entry of a kernel family.
pub fn kernel_entry(family: KernelFamily) -> String {
    format!("deltagate.kernel.{family}")
}
