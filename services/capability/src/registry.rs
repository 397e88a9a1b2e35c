//! Leases and snapshots, by executor instance.
//!
//! An instance is unknown, or known with its newest snapshot. Only a snapshot makes it known; a heartbeat with the
//! revision of that snapshot keeps it so; a missed lease or `leaving` ends it.

use std::{
    collections::{BTreeMap, btree_map::Entry as MapEntry},
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_mesh::wire;
use deltagate_proto::v1::{CapabilitySnapshot, ExecutorEntry, ReportRequest};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;

use crate::report::{Accepted, MAX_ID_BYTES, Refused};

/// What the registry takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long an executor is known after a heartbeat.
    pub lease: Duration,
    /// Most executors at a time.
    pub executors: usize,
    /// Largest snapshot in bytes.
    pub snapshot_bytes: usize,
}

struct Known {
    snapshot: Arc<CapabilitySnapshot>,
    heartbeat: Instant,
}

struct Inner {
    id: String,
    limits: Limits,
    known: Mutex<BTreeMap<String, Known>>,
    /// Counts changes of the view; renewals are not changes.
    changes: watch::Sender<u64>,
}

/// The registry. Clones share it.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("id", &self.0.id)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// An empty registry with a new id.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Inner {
            id: uuid::Uuid::new_v4().to_string(),
            limits,
            known: Mutex::new(BTreeMap::new()),
            changes: watch::Sender::new(0),
        }))
    }

    /// Identifies this registry process.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What it takes.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Ticks on every change of the view.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Takes a heartbeat.
    pub fn report(&self, report: ReportRequest) -> Result<Accepted, Refused> {
        self.report_at(report, Instant::now())
    }

    fn report_at(&self, report: ReportRequest, now: Instant) -> Result<Accepted, Refused> {
        let ReportRequest {
            instance_id,
            revision,
            snapshot,
            leaving,
        } = report;
        if instance_id.is_empty() || instance_id.len() > MAX_ID_BYTES {
            return Err(Refused::BadInstanceId);
        }
        if leaving {
            if self.0.known.lock().remove(&instance_id).is_some() {
                tracing::info!(instance_id, "executor left");
                self.changed();
            }
            return Ok(Accepted::Left);
        }
        if let Some(snapshot) = &snapshot {
            self.check(&instance_id, revision, snapshot)?;
        }

        let mut known = self.0.known.lock();
        self.prune(&mut known, now);
        let executors = known.len();
        let accepted = match (known.entry(instance_id), snapshot) {
            (MapEntry::Vacant(_), None) => Accepted::SnapshotWanted,
            (MapEntry::Vacant(_), Some(_)) if executors >= self.0.limits.executors => {
                return Err(Refused::Full(executors));
            }
            (MapEntry::Vacant(slot), Some(snapshot)) => {
                tracing::info!(
                    instance_id = slot.key(),
                    endpoint = snapshot.endpoint,
                    "executor joined"
                );
                slot.insert(Known {
                    snapshot: Arc::new(snapshot),
                    heartbeat: now,
                });
                self.changed();
                Accepted::Renewed
            }
            (MapEntry::Occupied(mut slot), snapshot) => {
                let entry = slot.get_mut();
                let newest = entry.snapshot.revision;
                match (revision.cmp(&newest), snapshot) {
                    (std::cmp::Ordering::Less, _) => {
                        return Err(Refused::StaleRevision { got: revision, known: newest });
                    }
                    (std::cmp::Ordering::Greater, None) => return Ok(Accepted::SnapshotWanted),
                    (std::cmp::Ordering::Greater, Some(snapshot)) => {
                        *entry = Known { snapshot: Arc::new(snapshot), heartbeat: now };
                        self.changed();
                    }
                    (std::cmp::Ordering::Equal, Some(snapshot))
                        // Bytes, not values: a NaN in a probe report equals nothing.
                        if snapshot.encode_to_vec() != entry.snapshot.encode_to_vec() =>
                    {
                        return Err(Refused::RevisionReused(revision));
                    }
                    (std::cmp::Ordering::Equal, _) => entry.heartbeat = now,
                }
                Accepted::Renewed
            }
        };
        Ok(accepted)
    }

    fn check(&self, instance_id: &str, revision: u64, snapshot: &CapabilitySnapshot) -> Result<(), Refused> {
        if snapshot.instance_id != instance_id {
            return Err(Refused::Inconsistent("instance_id"));
        }
        if snapshot.revision != revision {
            return Err(Refused::Inconsistent("revision"));
        }
        let (got, most) = (snapshot.encoded_len(), self.0.limits.snapshot_bytes);
        if got > most {
            return Err(Refused::TooLarge { got, most });
        }
        Ok(())
    }

    /// Every executor with a live lease, with ages as of now.
    pub fn view(&self) -> Vec<ExecutorEntry> {
        self.view_at(Instant::now())
    }

    fn view_at(&self, now: Instant) -> Vec<ExecutorEntry> {
        let lease = self.0.limits.lease;
        self.0
            .known
            .lock()
            .values()
            .filter_map(|known| {
                let age = now.saturating_duration_since(known.heartbeat);
                (age < lease).then(|| ExecutorEntry {
                    snapshot: Some(CapabilitySnapshot::clone(&known.snapshot)),
                    age: Some(wire::duration(age)),
                    lease: Some(wire::duration(lease)),
                })
            })
            .collect()
    }

    /// Forgets executors whose lease ran out, until the registry is dropped everywhere else.
    pub(crate) async fn expire_leases(self) {
        let weak = Arc::downgrade(&self.0);
        drop(self);
        // Views leave expired entries out by themselves; this only tells the watchers in time.
        let mut tick = tokio::time::interval(Duration::from_millis(25));
        loop {
            tick.tick().await;
            let Some(inner) = weak.upgrade() else { return };
            let registry = Self(inner);
            let mut known = registry.0.known.lock();
            registry.prune(&mut known, Instant::now());
        }
    }

    fn prune(&self, known: &mut BTreeMap<String, Known>, now: Instant) {
        let before = known.len();
        known.retain(|instance_id, entry| {
            let live = now.saturating_duration_since(entry.heartbeat) < self.0.limits.lease;
            if !live {
                tracing::warn!(instance_id, "executor missed its lease");
            }
            live
        });
        if known.len() != before {
            self.changed();
        }
    }

    fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LEASE: Duration = Duration::from_millis(1500);

    fn registry() -> Registry {
        Registry::new(Limits {
            lease: LEASE,
            executors: 2,
            snapshot_bytes: 4096,
        })
    }

    fn snapshot(id: &str, revision: u64) -> CapabilitySnapshot {
        CapabilitySnapshot {
            instance_id: id.to_owned(),
            revision,
            endpoint: "http://127.0.0.1:50061".to_owned(),
            ..Default::default()
        }
    }

    fn report(id: &str, revision: u64, with: bool) -> ReportRequest {
        ReportRequest {
            instance_id: id.to_owned(),
            revision,
            snapshot: with.then(|| snapshot(id, revision)),
            leaving: false,
        }
    }

    #[test]
    fn a_snapshot_makes_known_and_heartbeats_keep_so() {
        let registry = registry();
        let t0 = Instant::now();
        assert_eq!(
            registry.report_at(report("a", 1, false), t0),
            Ok(Accepted::SnapshotWanted)
        );
        assert!(registry.view_at(t0).is_empty());
        assert_eq!(
            registry.report_at(report("a", 1, true), t0),
            Ok(Accepted::Renewed)
        );
        assert_eq!(
            registry.report_at(report("a", 1, false), t0 + LEASE / 2),
            Ok(Accepted::Renewed)
        );
        let view = registry.view_at(t0 + LEASE);
        assert_eq!(wire::std_duration(view[0].age.as_ref()), Some(LEASE / 2));
        assert!(registry.view_at(t0 + LEASE / 2 + LEASE).is_empty());
        // After a missed lease the snapshot has to come again.
        let later = t0 + LEASE * 3;
        assert_eq!(
            registry.report_at(report("a", 1, false), later),
            Ok(Accepted::SnapshotWanted)
        );
    }

    #[test]
    fn a_newer_revision_without_its_snapshot_does_not_renew_the_old_one() {
        let registry = registry();
        let t0 = Instant::now();
        registry.report_at(report("a", 1, true), t0).unwrap();
        assert_eq!(
            registry.report_at(report("a", 2, false), t0 + LEASE / 2),
            Ok(Accepted::SnapshotWanted)
        );
        assert!(registry.view_at(t0 + LEASE).is_empty());
        assert_eq!(
            registry.report_at(report("a", 2, true), t0 + LEASE / 2),
            Ok(Accepted::Renewed)
        );
        assert_eq!(registry.view_at(t0 + LEASE).len(), 1);
    }

    #[test]
    fn older_reused_and_inconsistent_revisions_are_refused() {
        let registry = registry();
        registry.report(report("a", 2, true)).unwrap();
        assert_eq!(
            registry.report(report("a", 1, true)),
            Err(Refused::StaleRevision { got: 1, known: 2 })
        );
        assert_eq!(registry.report(report("a", 2, true)), Ok(Accepted::Renewed));
        let mut reused = report("a", 2, true);
        reused.snapshot.as_mut().unwrap().fingerprint = "other".to_owned();
        assert_eq!(registry.report(reused), Err(Refused::RevisionReused(2)));
        let mut foreign = report("a", 3, true);
        foreign.snapshot.as_mut().unwrap().instance_id = "b".to_owned();
        assert_eq!(
            registry.report(foreign),
            Err(Refused::Inconsistent("instance_id"))
        );
        let mut skewed = report("a", 3, true);
        skewed.snapshot.as_mut().unwrap().revision = 4;
        assert_eq!(registry.report(skewed), Err(Refused::Inconsistent("revision")));
        assert_eq!(registry.view()[0].snapshot.as_ref().unwrap().revision, 2);
    }

    #[test]
    fn executors_and_snapshots_are_bounded() {
        let registry = registry();
        let t0 = Instant::now();
        registry.report_at(report("a", 1, true), t0).unwrap();
        registry.report_at(report("b", 1, true), t0).unwrap();
        assert_eq!(
            registry.report_at(report("c", 1, true), t0),
            Err(Refused::Full(2))
        );
        assert_eq!(
            registry.report_at(report("c", 1, true), t0 + LEASE),
            Ok(Accepted::Renewed)
        );
        let mut large = report("d", 1, true);
        large.snapshot.as_mut().unwrap().version = "x".repeat(5000);
        assert!(matches!(
            registry.report(large),
            Err(Refused::TooLarge { most: 4096, .. })
        ));
        assert_eq!(registry.report(report("", 1, true)), Err(Refused::BadInstanceId));
        assert_eq!(
            registry.report(report(&"x".repeat(129), 1, true)),
            Err(Refused::BadInstanceId)
        );
    }

    #[test]
    fn only_changes_tick() {
        let registry = registry();
        let changes = registry.changes();
        let count = || *changes.borrow();
        registry.report(report("a", 1, true)).unwrap();
        assert_eq!(count(), 1);
        registry.report(report("a", 1, false)).unwrap();
        assert_eq!(count(), 1);
        let leave = ReportRequest {
            leaving: true,
            ..report("a", 1, false)
        };
        assert_eq!(registry.report(leave.clone()), Ok(Accepted::Left));
        assert_eq!(registry.report(leave), Ok(Accepted::Left));
        assert_eq!(count(), 2);
        assert!(registry.view().is_empty());
    }
}
