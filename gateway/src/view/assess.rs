//! From what was heard to what may be used: unknown, stale, expired or unreachable means no.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_proto::v1::{BindingState, CapabilitySnapshot, ExecutorPhase, SignedPermit};
use tonic::transport::Channel;

use super::{
    balance,
    bundle::ActiveBundle,
    model::Model,
    obstacle::Obstacle,
    state::{ExecutorFacts, Facts, HeldPermit, Refused, SeenExecutor},
};
use crate::config::FollowConfig;

/// Judgement over the whole mesh at one moment.
pub struct Assessment {
    /// What stands in the way of every executor. Most important first.
    pub mesh: Vec<Obstacle>,
    /// The active bundle, when policy is fresh.
    pub bundle: Option<Arc<ActiveBundle>>,
    /// Each executor of the capability view with a live lease. Empty when that view is stale.
    pub executors: Vec<AssessedExecutor>,
    /// Names of models that were served a while ago and are not served by any of `executors`.
    pub missed: BTreeSet<String>,
}

/// Judgement over one executor.
pub struct AssessedExecutor {
    /// What it has bound.
    pub snapshot: Arc<CapabilitySnapshot>,
    /// What a call needs, or what stands in the way.
    pub verdict: Result<Lease, Obstacle>,
}

impl AssessedExecutor {
    /// Name of the model it serves; empty while it is not known.
    pub fn model_name(&self) -> &str {
        self.snapshot
            .model
            .as_ref()
            .map_or("", |model| model.name.as_str())
    }
}

/// Everything that one call to one executor needs. Good until `usable_until`.
#[derive(Clone)]
pub struct Lease {
    /// The executor.
    pub instance: String,
    /// The binding.
    pub fingerprint: String,
    /// The permit for that binding.
    pub permit: SignedPermit,
    /// When to stop using the permit.
    pub usable_until: Instant,
    /// Most tokens in one plan.
    pub max_plan_tokens: u64,
    /// Most sequences in one plan.
    pub max_plan_sequences: u32,
    /// Channel to it.
    pub channel: Channel,
    /// Its model.
    pub model: Arc<Model>,
    /// Calls of this gateway on it.
    pub in_flight: Arc<AtomicUsize>,
}

impl Lease {
    /// Calls of this gateway on the executor.
    fn outstanding(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl Assessment {
    /// Whether requests can be served.
    pub fn is_ready(&self) -> bool {
        self.mesh.is_empty() && self.executors.iter().any(|executor| executor.verdict.is_ok())
    }

    /// Everything that stands in the way, most important first; empty when ready.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        if self.is_ready() {
            return Vec::new();
        }
        let executors = self
            .executors
            .iter()
            .filter_map(|executor| executor.verdict.as_ref().err());
        self.mesh.iter().chain(executors).cloned().collect()
    }

    /// What can be used now.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        let usable = self.mesh.is_empty();
        self.executors
            .iter()
            .filter(move |_| usable)
            .filter_map(|executor| executor.verdict.as_ref().ok())
    }

    /// An executor for the next run: of those that fit best, the less busy of two ([`balance`]); or what stands in the
    /// way, something that passes first.
    pub fn lease_for(&self, wanted: Wanted<'_>, avoid: &Avoid) -> Result<Lease, Obstacle> {
        if let Some(obstacle) = self.mesh.first() {
            return Err(obstacle.clone());
        }
        let mut usable: Vec<&Lease> = Vec::new();
        let mut telling: Option<Obstacle> = None;
        for executor in self
            .executors
            .iter()
            .filter(|executor| executor.model_name() == wanted.model)
        {
            let judged = executor.verdict.as_ref().map_err(Obstacle::clone);
            match judged.and_then(|lease| avoid.check(lease).map(|()| lease)) {
                Ok(lease) => usable.push(lease),
                Err(obstacle) => {
                    if telling
                        .as_ref()
                        .is_none_or(|told| obstacle.is_passing() && !told.is_passing())
                    {
                        telling = Some(obstacle);
                    }
                }
            }
        }
        let best = usable.iter().map(|lease| wanted.misfit(lease)).min();
        usable.retain(|lease| Some(wanted.misfit(lease)) == best);
        balance::choose(&usable, Lease::outstanding)
            .cloned()
            .ok_or_else(|| {
                telling.unwrap_or_else(|| Obstacle::away("NO_EXECUTOR", "no executor serves this model"))
            })
    }
}

/// What a run needs, and what it would rather have.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Served name of the model. Needed.
    pub model: &'a str,
    /// Digest of the model with which the request was prepared, once it is.
    pub digest: Option<&'a str>,
    /// The binding that computed the former runs of the request. Its replicas may share what is left; another binding
    /// means that the request starts anew.
    pub fingerprint: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// Any executor of this model.
    pub const fn any(model: &'a str) -> Self {
        Self {
            model,
            digest: None,
            fingerprint: None,
        }
    }

    /// An executor of this model, rather one with these very weights.
    pub fn of(model: &'a str, loaded: &'a Model) -> Self {
        Self {
            digest: Some(&loaded.digest),
            ..Self::any(model)
        }
    }

    /// Orders executors; the least fits best.
    fn misfit(&self, lease: &Lease) -> (bool, bool) {
        (
            self.fingerprint.is_some_and(|wanted| wanted != lease.fingerprint),
            self.digest.is_some_and(|wanted| wanted != lease.model.digest),
        )
    }
}

/// What one request has learned not to use again.
#[derive(Default)]
pub struct Avoid {
    /// Executors that could not take it.
    lost: Vec<(String, &'static str)>,
    /// Signatures of permits that an executor refused. A fresh permit may be tried.
    refused: Vec<bytes::Bytes>,
}

impl Avoid {
    /// This executor is away, leaving or full.
    pub fn executor(&mut self, lease: &Lease, reason: &'static str) {
        self.lost.push((lease.instance.clone(), reason));
    }

    /// This permit did not do.
    pub fn permit(&mut self, lease: &Lease) {
        self.refused.push(lease.permit.signature.clone());
    }

    fn check(&self, lease: &Lease) -> Result<(), Obstacle> {
        if let Some((_, reason)) = self.lost.iter().find(|(instance, _)| *instance == lease.instance) {
            return Err(Obstacle::away(reason, "the executor cannot take this request"));
        }
        if self.refused.contains(&lease.permit.signature) {
            return Err(Obstacle::passing(
                "PERMIT_INVALID",
                "the executor wants a fresh permit",
            ));
        }
        Ok(())
    }
}

/// For so long a model whose executors are gone is away, which passes, before it counts as one that is not served.
const MISSED_FOR: Duration = Duration::from_secs(600);

/// Judges.
pub(super) fn assess(facts: &Facts, follow: &FollowConfig, now: Instant) -> Assessment {
    let mut mesh = Vec::new();
    let fresh = |received: Instant| now.saturating_duration_since(received) < follow.stale_after;

    let policy = facts.policy.as_ref().filter(|policy| fresh(policy.received));
    let bundle = match policy {
        None => {
            mesh.push(Obstacle::away(
                "POLICY_UNREACHABLE",
                "policy service was not heard of lately",
            ));
            None
        }
        Some(policy) => match &policy.bundle {
            Ok(bundle) => Some(Arc::clone(bundle)),
            Err(problem) => {
                mesh.push(Obstacle::precondition(
                    "POLICY_DENIED",
                    "policy/bundle",
                    problem.clone(),
                ));
                None
            }
        },
    };

    let capability = facts
        .capability
        .as_ref()
        .filter(|capability| fresh(capability.received));
    let mut executors = Vec::new();
    match capability {
        None => mesh.push(Obstacle::away(
            "CAPABILITY_UNREACHABLE",
            "capability service was not heard of lately",
        )),
        Some(capability) => {
            for seen in capability.executors.iter().filter(|seen| now < seen.lease_until) {
                let instance = seen.snapshot.instance_id.as_str();
                let verdict = judge(
                    seen,
                    facts.executors.get(instance),
                    policy.and_then(|policy| policy.permits.get(instance)),
                    policy
                        .and_then(|policy| policy.refusals.get(instance))
                        .filter(|refused| concerns(refused, &seen.snapshot))
                        .map(|refused| &refused.reasons),
                    bundle.as_deref(),
                    follow,
                    now,
                );
                executors.push(AssessedExecutor {
                    snapshot: Arc::clone(&seen.snapshot),
                    verdict,
                });
            }
            if executors.is_empty() {
                mesh.push(Obstacle::away("NO_EXECUTOR", "no executor is registered"));
            }
        }
    }
    let served: BTreeSet<&str> = executors.iter().map(AssessedExecutor::model_name).collect();
    let missed = facts
        .models
        .iter()
        .filter(|(name, seen)| {
            now.saturating_duration_since(**seen) < MISSED_FOR && !served.contains(name.as_str())
        })
        .map(|(name, _)| name.clone())
        .collect();
    Assessment {
        mesh,
        bundle,
        executors,
        missed,
    }
}

fn judge(
    seen: &SeenExecutor,
    executor: Option<&ExecutorFacts>,
    permit: Option<&HeldPermit>,
    refusal: Option<&Vec<String>>,
    bundle: Option<&ActiveBundle>,
    follow: &FollowConfig,
    now: Instant,
) -> Result<Lease, Obstacle> {
    let snapshot = &seen.snapshot;
    judge_phase(snapshot, refusal)?;

    let executor =
        executor.ok_or_else(|| Obstacle::passing("EXECUTOR_UNREACHABLE", "executor was just discovered"))?;
    // A ping may take as long as a view may be old: two in a row that fail are one too many.
    let reached = executor
        .reached
        .is_some_and(|at| now.saturating_duration_since(at) < follow.stale_after);
    if !reached {
        return Err(Obstacle::away("EXECUTOR_UNREACHABLE", "executor does not answer"));
    }

    let permit =
        permit.ok_or_else(|| Obstacle::passing("PERMIT_MISSING", "no permit for this executor yet"))?;
    if permit.fingerprint != snapshot.fingerprint {
        return Err(Obstacle::passing(
            "FINGERPRINT_MISMATCH",
            "the permit is for another binding",
        ));
    }
    if bundle.is_none_or(|bundle| bundle.revision() != permit.bundle_revision) {
        return Err(Obstacle::passing(
            "PERMIT_INVALID",
            "the permit is of another bundle",
        ));
    }
    let usable_until = permit
        .valid_until
        .checked_sub(follow.permit_margin)
        .unwrap_or(permit.valid_until);
    if now >= usable_until {
        return Err(Obstacle::passing("PERMIT_EXPIRED", "the permit has run out"));
    }

    let model_digest = snapshot.model.as_ref().map(|model| model.digest.as_str());
    let model = match &executor.model {
        None => return Err(Obstacle::passing("LOADING", "the tokenizer is being loaded")),
        Some(Err(problem)) => return Err(Obstacle::away("LOADING", problem.clone())),
        Some(Ok(model)) if Some(model.digest.as_str()) != model_digest => {
            return Err(Obstacle::passing("LOADING", "another model is being loaded"));
        }
        Some(Ok(model)) => model,
    };

    Ok(Lease {
        instance: snapshot.instance_id.clone(),
        fingerprint: snapshot.fingerprint.clone(),
        permit: permit.signed.clone(),
        usable_until,
        max_plan_tokens: permit.max_plan_tokens,
        max_plan_sequences: permit.max_plan_sequences,
        channel: executor.channel.clone(),
        model: Arc::clone(model),
        in_flight: Arc::clone(&executor.in_flight),
    })
}

/// Whether a refusal is of this very binding. One of an earlier binding, or of none, says only that there is no permit
/// yet, and that may pass by itself.
fn concerns(refused: &Refused, snapshot: &CapabilitySnapshot) -> bool {
    !refused.fingerprint.is_empty() && refused.fingerprint == snapshot.fingerprint
}

/// What the executor says about itself, and what policy says about it.
fn judge_phase(snapshot: &CapabilitySnapshot, refusal: Option<&Vec<String>>) -> Result<(), Obstacle> {
    let phase = snapshot.phase();
    match phase {
        ExecutorPhase::Loading => return Err(Obstacle::away("LOADING", "executor is loading")),
        ExecutorPhase::Draining => return Err(Obstacle::away("DRAINING", "executor is draining")),
        ExecutorPhase::Unspecified | ExecutorPhase::Failed => {
            return Err(unbound(snapshot).unwrap_or_else(|| {
                Obstacle::away(
                    "EXECUTOR_NOT_READY",
                    told("executor has failed", &snapshot.reasons),
                )
            }));
        }
        ExecutorPhase::AwaitingPolicy | ExecutorPhase::Ready => {}
    }
    // A family that is not bound stands in the way only where policy asks for it: a READY executor was allowed.
    if (refusal.is_some() || phase == ExecutorPhase::AwaitingPolicy)
        && let Some(obstacle) = unbound(snapshot)
    {
        return Err(obstacle);
    }
    if let Some(reasons) = refusal {
        let subject = format!("executor/{}", snapshot.instance_id);
        return Err(Obstacle::precondition(
            "POLICY_DENIED",
            subject,
            told("policy does not allow this executor to be ready", reasons),
        ));
    }
    if phase == ExecutorPhase::AwaitingPolicy {
        return Err(Obstacle::passing(
            "EXECUTOR_NOT_READY",
            told("executor awaits policy", &snapshot.reasons),
        ));
    }
    if snapshot.fingerprint.is_empty() {
        return Err(Obstacle::away(
            "EXECUTOR_NOT_READY",
            "executor names no fingerprint",
        ));
    }
    Ok(())
}

/// The first kernel family that is not bound.
fn unbound(snapshot: &CapabilitySnapshot) -> Option<Obstacle> {
    let missing = snapshot
        .bindings
        .iter()
        .find(|binding| binding.state() != BindingState::Bound)?;
    let family = missing.family().name();
    Some(Obstacle::precondition(
        "KERNEL_NOT_BOUND",
        format!("kernel/{family}"),
        format!("kernel family {family} is not bound"),
    ))
}

fn told(what: &str, reasons: &[String]) -> String {
    if reasons.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {}", reasons.join("; "))
    }
}
