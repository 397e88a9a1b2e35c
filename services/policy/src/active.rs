//! Which bundle is active, and how it changes: read, compile, test, and only then switch.

use std::{sync::Arc, time::Duration};

use deltagate_mesh::health::Health;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    bundle::{Bundle, BundleError, BundleSource, Files},
    evaluator::BundleEvaluator,
};

/// The bundle that decides.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) bundle: Bundle,
    pub(crate) evaluator: Mutex<BundleEvaluator>,
}

/// Makes bundles active.
#[derive(Debug)]
pub(crate) struct Activator {
    source: BundleSource,
    active: watch::Sender<Option<Arc<Active>>>,
    /// What was tried last, so that a broken bundle is reported once and not twice a second.
    tried: Option<Result<Files, String>>,
}

impl Activator {
    pub(crate) fn new(source: BundleSource) -> Self {
        Self {
            source,
            active: watch::Sender::new(None),
            tried: None,
        }
    }

    pub(crate) fn active(&self) -> watch::Receiver<Option<Arc<Active>>> {
        self.active.subscribe()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.borrow().is_some()
    }

    /// Looks at the source once, and switches if there is something new that passes its cases.
    pub(crate) async fn poll(&mut self) {
        let (source, tried) = (self.source.clone(), self.tried.take());
        // Reading and testing take tens of milliseconds: not on a thread that serves.
        let looked = tokio::task::spawn_blocking(move || look(&source, tried)).await;
        let Ok((tried, outcome)) = looked else {
            tracing::error!(bundle = %self.source, "loading the bundle panicked");
            return;
        };
        self.tried = Some(tried);
        match outcome {
            None => {}
            Some(Ok(bundle)) => {
                tracing::info!(
                    bundle = bundle.name(),
                    revision = bundle.revision(),
                    "bundle is active"
                );
                let evaluator = Mutex::new(bundle.evaluator());
                self.active
                    .send_replace(Some(Arc::new(Active { bundle, evaluator })));
            }
            Some(Err(error)) => {
                let kept = self
                    .active
                    .borrow()
                    .as_ref()
                    .map(|a| a.bundle.revision().to_owned());
                tracing::error!(bundle = %self.source, %error, kept, "bundle is refused");
            }
        }
    }

    /// Follows the source until `stop`.
    pub(crate) async fn watch(mut self, every: Duration, health: Health, stop: CancellationToken) {
        if !self.source.can_change() {
            // Keeps the sender alive.
            return stop.cancelled().await;
        }
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let before = self.is_active();
            self.poll().await;
            if !before && self.is_active() {
                health.set_all(true).await;
            }
        }
    }
}

type Looked = (Result<Files, String>, Option<Result<Bundle, BundleError>>);

/// Reads the source; compiles and tests only what was not tried before.
fn look(source: &BundleSource, tried: Option<Result<Files, String>>) -> Looked {
    match source.read() {
        Err(error) => {
            let said = Err(error.to_string());
            let outcome = (tried.as_ref() != Some(&said)).then_some(Err(error));
            (said, outcome)
        }
        Ok(files) => {
            let files = Ok(files);
            if tried.as_ref() == Some(&files) {
                return (files, None);
            }
            let outcome = match &files {
                Ok(files) => Some(Bundle::check(&source.name(), files.clone())),
                Err(_) => None,
            };
            (files, outcome)
        }
    }
}
