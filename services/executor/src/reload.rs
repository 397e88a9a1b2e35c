//! Swapping kernels without a restart: on a change of the config file, on SIGHUP, or on demand.
//!
//! Only `kernels` is applied; other changed keys are named in the log as waiting for a restart.

use std::{path::PathBuf, sync::Arc, time::Duration};

use deltagate_kernels_api::Preferences;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    config::ExecutorConfig,
    device::{DeviceQueue, Rebind},
};

/// Reads the configuration again, with all its layers. The error names the key at fault.
pub type LoadConfig = Arc<dyn Fn() -> Result<ExecutorConfig, String> + Send + Sync>;

/// Where the configuration came from.
#[derive(Clone)]
pub struct ConfigSource {
    /// File to watch for changes; none when there is no file.
    pub file: Option<PathBuf>,
    /// Reads it again.
    pub load: LoadConfig,
}

/// Kernels were not swapped. The former ones stay bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The configuration is refused.
    #[error("configuration is refused: {0}")]
    Config(String),
    /// The new preferences do not bind.
    #[error("kernels do not bind: {0}")]
    Rebind(String),
    /// There is no device to bind on.
    #[error("the executor ends")]
    Ended,
}

/// Swaps kernels. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reload {
    queue: Arc<DeviceQueue>,
    applied: Arc<Mutex<ExecutorConfig>>,
    last: Arc<Mutex<Option<Result<String, ReloadError>>>>,
}

impl Reload {
    /// For an executor that was started with this configuration.
    pub(crate) fn new(queue: Arc<DeviceQueue>, started_with: ExecutorConfig) -> Self {
        Self {
            queue,
            applied: Arc::new(Mutex::new(started_with)),
            last: Arc::default(),
        }
    }

    /// Binds other kernels between two requests. What was admitted before runs to its end on the former ones. Gives
    /// the fingerprint then in force.
    pub async fn rebind(&self, preferences: Preferences) -> Result<String, ReloadError> {
        let result = self.ask_device(preferences.clone()).await;
        match &result {
            Ok(fingerprint) => {
                self.applied.lock().kernels = preferences;
                tracing::info!(%fingerprint, "kernels are bound");
            }
            Err(error) => tracing::error!(reason = %error, "kernels stay as they were"),
        }
        *self.last.lock() = Some(result.clone());
        result
    }

    /// How the last swap ended, if there was one.
    pub fn last(&self) -> Option<Result<String, ReloadError>> {
        self.last.lock().clone()
    }

    /// Applies a configuration that was read again. None when it prefers what is applied already.
    pub(crate) async fn apply(&self, config: ExecutorConfig) -> Result<Option<String>, ReloadError> {
        config
            .validate()
            .map_err(|error| ReloadError::Config(error.to_string()))?;
        let applied = self.applied.lock().clone();
        let same_kernels = ExecutorConfig {
            kernels: applied.kernels.clone(),
            ..config.clone()
        };
        if same_kernels != applied {
            tracing::warn!("executor settings other than `kernels` changed, they apply after a restart");
        }
        if config.kernels == applied.kernels {
            return Ok(None);
        }
        self.rebind(config.kernels).await.map(Some)
    }

    async fn ask_device(&self, preferences: Preferences) -> Result<String, ReloadError> {
        let (reply, answer) = oneshot::channel();
        self.queue
            .command(Rebind { preferences, reply })
            .map_err(|_| ReloadError::Ended)?;
        match answer.await {
            Ok(Ok(fingerprint)) => Ok(fingerprint.to_string()),
            Ok(Err(reason)) => Err(ReloadError::Rebind(reason)),
            Err(_) => Err(ReloadError::Ended),
        }
    }
}

/// Follows the config file and SIGHUP until the executor ends.
pub(crate) async fn watch(source: ConfigSource, reload: Reload, every: Duration, stop: CancellationToken) {
    let mut hangup = Hangup::new();
    let mut seen = read(&source).await;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            _ = ticks.tick() => false,
            () = hangup.next() => true,
            () = stop.cancelled() => return,
        };
        // By content, not by time stamp: two writes within one tick of the clock are two contents.
        let now = read(&source).await;
        if !asked && (now.is_none() || now == seen) {
            continue;
        }
        seen = now;
        let applied = match (source.load)() {
            Ok(config) => reload.apply(config).await,
            Err(reason) => Err(ReloadError::Config(reason)),
        };
        match applied {
            Ok(_) | Err(ReloadError::Rebind(_)) => {}
            Err(error) => tracing::error!(reason = %error, "configuration is not applied"),
        }
    }
}

/// None while the file is away: an editor may be replacing it.
async fn read(source: &ConfigSource) -> Option<Vec<u8>> {
    tokio::fs::read(source.file.as_ref()?).await.ok()
}

#[cfg(unix)]
struct Hangup(Option<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl Hangup {
    fn new() -> Self {
        Self(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok())
    }

    async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
struct Hangup;

#[cfg(not(unix))]
impl Hangup {
    const fn new() -> Self {
        Self
    }

    async fn next(&mut self) {
        std::future::pending().await
    }
}
