//! Section `[capability]`.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

/// Configuration of the capability service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapabilityConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How long an executor is known after a heartbeat.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// A watcher hears from the registry at least this often, also when nothing changed.
    #[serde(with = "humantime_serde")]
    pub watch_interval: Duration,
    /// Most executors at a time.
    pub max_executors: usize,
    /// Largest snapshot in bytes.
    pub max_snapshot_bytes: usize,
}

impl Default for CapabilityConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 50052)),
            lease: Duration::from_millis(1500),
            watch_interval: Duration::from_millis(300),
            max_executors: 64,
            max_snapshot_bytes: 256 * 1024,
        }
    }
}

/// A value that cannot work.
#[derive(Debug, thiserror::Error)]
#[error("capability.{key} must be {rule}")]
pub struct InvalidConfig {
    key: &'static str,
    rule: &'static str,
}

impl CapabilityConfig {
    /// Refuses what the types cannot.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let refuse = |key, rule| Err(InvalidConfig { key, rule });
        if self.lease < Duration::from_millis(100) {
            return refuse("lease", "at least 100ms");
        }
        if self.watch_interval.is_zero() || self.watch_interval > Duration::from_millis(500) {
            return refuse("watch_interval", "more than zero and at most 500ms");
        }
        if self.max_executors == 0 {
            return refuse("max_executors", "at least 1");
        }
        if self.max_snapshot_bytes < 4096 {
            return refuse("max_snapshot_bytes", "at least 4096");
        }
        Ok(())
    }
}
