//! Readiness: a judgement over the mesh view, published to grpc.health.v1 and asked by the HTTP probes.

use std::sync::Arc;

use deltagate_mesh::health::Health;
use tokio_util::sync::CancellationToken;

use crate::view::{Assessment, MeshView};

/// Health entries of the gateway; both say the same.
pub const HEALTH_ENTRIES: [&str; 2] = ["", "deltagate.v1.ClassifierService"];

/// Judges whether the gateway is ready.
pub struct Readiness {
    view: Arc<MeshView>,
    draining: CancellationToken,
}

/// A judgement.
pub struct Judged {
    /// Whether a request would be served.
    pub ready: bool,
    /// Why not, most important first; empty when ready.
    pub reasons: Vec<String>,
    /// What it was judged from.
    pub assessment: Assessment,
}

impl Readiness {
    /// Over this view, and never again once `draining` is cancelled.
    pub fn new(view: Arc<MeshView>, draining: CancellationToken) -> Arc<Self> {
        Arc::new(Self { view, draining })
    }

    /// Judges now.
    pub fn judge(&self) -> Judged {
        let assessment = self.view.assess();
        let mut reasons: Vec<String> = assessment
            .obstacles()
            .iter()
            .map(|obstacle| obstacle.line())
            .collect();
        let draining = self.draining.is_cancelled();
        if draining {
            reasons.insert(0, "DRAINING: the gateway is leaving".to_owned());
        }
        Judged {
            ready: assessment.is_ready() && !draining,
            reasons,
            assessment,
        }
    }

    /// Keeps the health entries true until `stop`: after every change, and as time alone makes views stale.
    pub async fn publish(&self, health: Health, stop: CancellationToken) {
        let mut changes = self.view.changes();
        let mut published = None;
        loop {
            changes.borrow_and_update();
            let judged = self.judge();
            if published != Some(judged.ready) {
                for entry in HEALTH_ENTRIES {
                    health.set(entry, judged.ready).await;
                }
                if judged.ready {
                    tracing::info!("gateway is ready");
                } else {
                    tracing::warn!(reasons = ?judged.reasons, "gateway is not ready");
                }
                published = Some(judged.ready);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.view.readiness_interval()) => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }
}
