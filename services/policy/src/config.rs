//! Section `[policy]`.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

/// Configuration of the policy service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// `gpu`, `cpu`, or the path of a bundle's folder, which is then followed for changes.
    pub bundle: String,
    /// The registry whose snapshots are judged.
    pub capability: String,
    /// How long a readiness decision holds.
    #[serde(with = "humantime_serde")]
    pub decision_valid: Duration,
    /// How long a permit holds.
    #[serde(with = "humantime_serde")]
    pub permit_valid: Duration,
    /// How often watching gateways get fresh permits.
    #[serde(with = "humantime_serde")]
    pub renew_every: Duration,
    /// How often a bundle's folder is looked at.
    #[serde(with = "humantime_serde")]
    pub reload_every: Duration,
    /// Most tokens in one plan.
    pub max_plan_tokens: u64,
    /// Most sequences in one plan.
    pub max_plan_sequences: u32,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 50053)),
            bundle: "gpu".to_owned(),
            capability: "http://127.0.0.1:50052".to_owned(),
            decision_valid: Duration::from_millis(1500),
            permit_valid: Duration::from_millis(1500),
            renew_every: Duration::from_millis(400),
            reload_every: Duration::from_millis(500),
            max_plan_tokens: 1 << 20,
            max_plan_sequences: 256,
        }
    }
}

/// A value that cannot work.
#[derive(Debug, thiserror::Error)]
#[error("policy.{key} must be {rule}")]
pub struct InvalidConfig {
    key: &'static str,
    rule: &'static str,
}

impl PolicyConfig {
    /// Refuses what the types cannot.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let refuse = |key, rule| Err(InvalidConfig { key, rule });
        if self.bundle.trim().is_empty() {
            return refuse("bundle", "`gpu`, `cpu` or a path");
        }
        if self.renew_every.is_zero() || self.renew_every >= self.permit_valid {
            return refuse("renew_every", "more than zero and less than permit_valid");
        }
        if self.permit_valid > Duration::from_secs(60) {
            return refuse("permit_valid", "at most 60s");
        }
        if self.decision_valid.is_zero() || self.decision_valid > Duration::from_secs(60) {
            return refuse("decision_valid", "more than zero and at most 60s");
        }
        if self.reload_every.is_zero() {
            return refuse("reload_every", "more than zero");
        }
        if self.max_plan_tokens == 0 || self.max_plan_sequences == 0 {
            return refuse("max_plan_tokens and max_plan_sequences", "at least 1");
        }
        Ok(())
    }
}
