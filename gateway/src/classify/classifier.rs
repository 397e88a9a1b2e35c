//! The classifier: bounds on a call (concurrency, deadline), then the work.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_mesh::{deadline, error::ServiceError};
use tokio::sync::Semaphore;

use super::{
    call::{Call, Classified, Events},
    progress::Stage,
    refusal::Refusal,
    rounds::Rounds,
};
use crate::{config::GatewayConfig, metrics::Metrics, view::MeshView};

/// Answers calls of both faces. Dropping the future of a call ends its work everywhere.
pub struct Classifier {
    pub(super) config: Arc<GatewayConfig>,
    pub(super) view: Arc<MeshView>,
    pub(super) metrics: Arc<Metrics>,
    slots: Semaphore,
    /// Bounds the threads that tokenise long texts.
    pub(super) tokenizers: Semaphore,
}

impl Classifier {
    /// Over this view of the mesh.
    pub fn new(config: Arc<GatewayConfig>, view: Arc<MeshView>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = Semaphore::new(config.limits.max_concurrent.min(Semaphore::MAX_PERMITS));
        Self {
            config,
            view,
            metrics: Arc::new(Metrics::new()),
            slots,
            tokenizers: Semaphore::new(cores),
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// Its view of the mesh.
    pub fn view(&self) -> &Arc<MeshView> {
        &self.view
    }

    /// When a request that came at `arrived` is over: the caller's deadline, or the configured bound if that is earlier.
    pub fn deadline(&self, arrived: Instant, asked: Option<Instant>) -> Instant {
        let bound = arrived
            .checked_add(self.config.request_timeout)
            .unwrap_or(arrived);
        asked.map_or(bound, |asked| asked.min(bound))
    }

    /// Answers one call. Progress goes to `events`, if given.
    pub async fn classify(&self, call: Call, events: Option<Events>) -> Result<Classified, Refusal> {
        let Ok(_slot) = self.slots.try_acquire() else {
            return Err(ServiceError::resource_exhausted(
                "QUEUE_FULL",
                "the gateway is at its limit of requests",
            )
            .retry_after(self.config.limits.retry_after)
            .into());
        };
        let stage = Stage::new();
        // The executor knows best in which stage the deadline found a plan, so its answer is waited for a moment.
        let last = call
            .deadline
            .checked_add(Duration::from_millis(20))
            .unwrap_or(call.deadline);
        let work = Rounds::new(self, &stage, call, events).classify();
        match tokio::time::timeout_at(last.into(), work).await {
            Ok(result) => result,
            Err(_) => Err(deadline::exceeded(stage.name()).into()),
        }
    }
}
