//! What was last heard from capability, policy and the executors, and what it is worth at a given moment.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_proto::v1::{CapabilitySnapshot, SignedPermit};
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tonic::transport::Channel;

use super::{
    assess::{Assessment, assess},
    bundle::ActiveBundle,
    model::Model,
};
use crate::config::FollowConfig;

/// The gateway's view of the mesh. Followers write it, requests and readiness read it.
pub struct MeshView {
    pub(super) follow: FollowConfig,
    facts: RwLock<Facts>,
    changes: watch::Sender<u64>,
}

/// Everything that was heard.
#[derive(Default)]
pub(super) struct Facts {
    /// From the capability service; `None` until it was heard.
    pub capability: Option<CapabilityFacts>,
    /// From the policy service; `None` until it was heard.
    pub policy: Option<PolicyFacts>,
    /// From the executors themselves, by instance id.
    pub executors: HashMap<String, ExecutorFacts>,
    /// Names of models that were in a capability view, and when last. At most [`MOST_MODELS`].
    pub models: HashMap<String, Instant>,
}

/// More names than executors at a time, so that those that went away lately are still known.
const MOST_MODELS: usize = 256;

impl Facts {
    /// Takes a new capability view.
    pub(super) fn registered(&mut self, view: CapabilityFacts) {
        let served = view
            .executors
            .iter()
            .filter_map(|seen| seen.snapshot.model.as_ref());
        for model in served.filter(|model| !model.name.is_empty()) {
            self.models.insert(model.name.clone(), view.received);
        }
        while self.models.len() > MOST_MODELS {
            let oldest = self.models.iter().min_by_key(|(_, seen)| **seen);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            self.models.remove(&oldest);
        }
        self.capability = Some(view);
    }
}

/// The last capability view.
pub(super) struct CapabilityFacts {
    /// When it came.
    pub received: Instant,
    /// Its executors, in the order of the registry.
    pub executors: Vec<SeenExecutor>,
}

/// An executor in the registry.
#[derive(Clone)]
pub(super) struct SeenExecutor {
    /// What it has bound.
    pub snapshot: Arc<CapabilitySnapshot>,
    /// Until when its lease holds, if nothing else is heard.
    pub lease_until: Instant,
}

/// What policy says.
pub(super) struct PolicyFacts {
    /// When it was last heard.
    pub received: Instant,
    /// The active bundle, or why the one received cannot be used.
    pub bundle: Result<Arc<ActiveBundle>, String>,
    /// Permits by instance id.
    pub permits: HashMap<String, HeldPermit>,
    /// Refused executors by instance id.
    pub refusals: HashMap<String, Refused>,
}

/// A refusal of policy.
#[derive(Clone)]
pub(super) struct Refused {
    /// The binding that was refused; empty when policy does not know it.
    pub fingerprint: String,
    /// Why.
    pub reasons: Vec<String>,
}

/// A permit.
#[derive(Clone)]
pub(super) struct HeldPermit {
    /// The binding it is for.
    pub fingerprint: String,
    /// The bundle it was issued under.
    pub bundle_revision: String,
    /// The permit itself.
    pub signed: SignedPermit,
    /// Until when it may be used by the gateway's own clock, without margin.
    pub valid_until: Instant,
    /// Most tokens in one plan.
    pub max_plan_tokens: u64,
    /// Most sequences in one plan.
    pub max_plan_sequences: u32,
}

/// What an executor said itself.
pub(super) struct ExecutorFacts {
    /// Its channel.
    pub channel: Channel,
    /// When it last answered; `None` when it did not, or a call just failed on the way.
    pub reached: Option<Instant>,
    /// Its model, or why it could not be loaded.
    pub model: Option<Result<Arc<Model>, String>>,
    /// Calls of this gateway that run on it now.
    pub in_flight: Arc<AtomicUsize>,
    /// Wakes its tender.
    pub wake: Arc<Notify>,
}

impl MeshView {
    /// A view that has heard nothing.
    pub fn new(follow: FollowConfig) -> Arc<Self> {
        Arc::new(Self {
            follow,
            facts: RwLock::default(),
            changes: watch::Sender::new(0),
        })
    }

    /// What it is worth now.
    pub fn assess(&self) -> Assessment {
        assess(&self.facts.read(), &self.follow, Instant::now())
    }

    /// Writes, and signals the change.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut Facts) -> R) -> R {
        let result = change(&mut self.facts.write());
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// Reads without judging.
    pub(super) fn read<R>(&self, look: impl FnOnce(&Facts) -> R) -> R {
        look(&self.facts.read())
    }

    /// How often readiness is judged when nothing is heard.
    pub fn readiness_interval(&self) -> Duration {
        self.follow.readiness_interval
    }

    /// Signals every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A call to this executor failed on the way: it counts as away until it answers its tender again.
    pub fn lost(&self, instance: &str) {
        self.update(|facts| {
            if let Some(executor) = facts.executors.get_mut(instance) {
                executor.reached = None;
                executor.wake.notify_one();
            }
        });
    }
}

/// Counts a call as in flight for as long as it lives.
pub struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    /// Starts counting.
    pub fn enter(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counter))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
