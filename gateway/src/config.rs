//! `[gateway]`: where the gateway listens, whom it follows, and what it accepts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use deltagate_decider::SpecialTokens;
use serde::{Deserialize, Serialize};

/// Configuration of the gateway. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Name of this gateway, to which policy issues permits. Empty: a fresh name per start.
    pub id: String,
    /// Where the gRPC face listens.
    pub grpc_listen: SocketAddr,
    /// Where the HTTP face listens.
    pub http_listen: SocketAddr,
    /// URI of the capability service.
    pub capability: String,
    /// URI of the policy service.
    pub policy: String,
    /// Model (or alias) for requests that name none. Unset: the only one served, and an error that names them when there
    /// are several.
    pub default_model: Option<String>,
    /// Other names of models: alias to served name. One step, no alias of an alias. An alias wins over a model of its
    /// name, and one whose model is away is UNAVAILABLE, not unknown.
    pub aliases: BTreeMap<String, String>,
    /// Served names of models whose HTTP answers are those of the family's own server, with its rounding, its measure of
    /// confidence and its extra fields; all others answer alike, whatever their family.
    pub own_responses: BTreeSet<String>,
    /// Threads that serve, where the gateway has a process of its own. One has the lowest latency and is enough for hundreds of
    /// requests a second; long texts are tokenised beside it in any case.
    pub threads: usize,
    /// Waits for requests without sleeping, where the gateway has a process of its own: lower latency for a core.
    pub busy_poll: bool,
    /// Longest that one request may take; a caller's shorter deadline wins.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Longest that a request waits for a binding or a permit that is being replaced, within its deadline.
    #[serde(with = "humantime_serde")]
    pub swap_wait: Duration,
    /// What becomes of text in a request that spells a special token of the model, such as `<|im_end|>`.
    pub special_tokens: SpecialTokens,
    /// What a request may ask for.
    pub limits: LimitsConfig,
    /// How the rest of the mesh is followed.
    pub follow: FollowConfig,
    /// How the gateway leaves.
    pub drain: DrainConfig,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            grpc_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 50051)),
            http_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            capability: "http://127.0.0.1:50052".to_owned(),
            policy: "http://127.0.0.1:50053".to_owned(),
            default_model: None,
            aliases: BTreeMap::new(),
            own_responses: BTreeSet::new(),
            threads: 1,
            busy_poll: false,
            request_timeout: Duration::from_secs(30),
            swap_wait: Duration::from_secs(2),
            special_tokens: SpecialTokens::Parity,
            limits: LimitsConfig::default(),
            follow: FollowConfig::default(),
            drain: DrainConfig::default(),
        }
    }
}

/// A value that would make the gateway useless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gateway.{key} {reason}")]
pub struct InvalidConfig {
    key: &'static str,
    reason: &'static str,
}

impl GatewayConfig {
    /// Finds values under which nothing could ever be answered.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let limits = &self.limits;
        let counts = [
            ("threads", self.threads as u64),
            ("limits.max_body_bytes", limits.max_body_bytes as u64),
            ("limits.max_questions", limits.max_questions as u64),
            ("limits.max_concurrent", limits.max_concurrent as u64),
            ("limits.max_step_tokens", limits.max_step_tokens),
            ("limits.max_asset_bytes", limits.max_asset_bytes),
        ];
        let spans = [
            ("request_timeout", self.request_timeout),
            ("follow.stale_after", self.follow.stale_after),
            ("follow.ping_interval", self.follow.ping_interval),
            ("follow.connect_timeout", self.follow.connect_timeout),
            ("follow.backoff_min", self.follow.backoff_min),
            ("follow.readiness_interval", self.follow.readiness_interval),
        ];
        let zero = counts.iter().find(|(_, count)| *count == 0).map(|(key, _)| *key);
        if let Some(key) = zero.or_else(|| spans.iter().find(|(_, span)| span.is_zero()).map(|(key, _)| *key))
        {
            return Err(InvalidConfig {
                key,
                reason: "must not be zero",
            });
        }
        if self
            .aliases
            .iter()
            .any(|(alias, name)| alias.is_empty() || name.is_empty())
        {
            return Err(InvalidConfig {
                key: "aliases",
                reason: "must not hold empty names",
            });
        }
        if let Some(name) = self
            .aliases
            .values()
            .find(|name| self.aliases.contains_key(*name))
            && self.aliases.get(name) != Some(name)
        {
            return Err(InvalidConfig {
                key: "aliases",
                reason: "must name models, not other aliases",
            });
        }
        if self.follow.ping_interval >= self.follow.stale_after {
            return Err(InvalidConfig {
                key: "follow.ping_interval",
                reason: "must be less than follow.stale_after",
            });
        }
        if self.follow.backoff_max < self.follow.backoff_min {
            return Err(InvalidConfig {
                key: "follow.backoff_max",
                reason: "must not be less than follow.backoff_min",
            });
        }
        Ok(())
    }
}

/// Bounds on requests. What is beyond one is refused, never cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Most bytes of a request, as received and again when decoded.
    pub max_body_bytes: usize,
    /// Most questions in one request.
    pub max_questions: usize,
    /// Most requests at work at once; one more is refused with RESOURCE_EXHAUSTED.
    pub max_concurrent: usize,
    /// Most tokens of one request, over all sequences of one step.
    pub max_step_tokens: u64,
    /// Most bytes of a model asset, such as the tokenizer.
    pub max_asset_bytes: u64,
    /// When a refused caller is told to come back.
    #[serde(with = "humantime_serde")]
    pub retry_after: Duration,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_body_bytes: 4 * 1024 * 1024,
            max_questions: 64,
            max_concurrent: 256,
            max_step_tokens: 1 << 20,
            max_asset_bytes: 256 * 1024 * 1024,
            retry_after: Duration::from_secs(1),
        }
    }
}

/// How the gateway follows capability, policy and executors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FollowConfig {
    /// A view that is older than this counts for nothing.
    #[serde(with = "humantime_serde")]
    pub stale_after: Duration,
    /// How often an executor is asked whether it is there.
    #[serde(with = "humantime_serde")]
    pub ping_interval: Duration,
    /// How long a connection attempt may take.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// First and shortest pause before a broken watch is opened again.
    #[serde(with = "humantime_serde")]
    pub backoff_min: Duration,
    /// Longest pause before a broken watch is opened again.
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// A permit is not used in the last moments before it expires.
    #[serde(with = "humantime_serde")]
    pub permit_margin: Duration,
    /// How often readiness is judged anew when nothing is heard.
    #[serde(with = "humantime_serde")]
    pub readiness_interval: Duration,
}

impl Default for FollowConfig {
    fn default() -> Self {
        Self {
            stale_after: Duration::from_millis(1500),
            ping_interval: Duration::from_millis(400),
            connect_timeout: Duration::from_millis(500),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_millis(400),
            permit_margin: Duration::from_millis(100),
            readiness_interval: Duration::from_millis(100),
        }
    }
}

/// How the gateway leaves: not ready, still serving for `grace`, then no new connections, then at most `timeout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainConfig {
    /// Time in which load balancers learn that this gateway is leaving; it still serves.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Longest wait for requests in flight.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(500),
            timeout: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_default_is_valid_and_survives_the_round_trip() {
        let config = GatewayConfig::default();
        config.validate().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<GatewayConfig>(&text).unwrap(), config);
        assert!(text.contains(r#""request_timeout":"30s""#));
        assert!(text.contains(r#""special_tokens":"parity""#));
    }

    #[test]
    fn special_tokens_are_one_of_three_words() {
        for choice in SpecialTokens::ALL {
            let text = format!(r#"{{"special_tokens":"{choice}"}}"#);
            let config: GatewayConfig = serde_json::from_str(&text).unwrap();
            assert_eq!(config.special_tokens, choice);
            assert_eq!(choice.name().parse(), Ok(choice));
        }
        for text in [
            r#"{"special_tokens":"strip"}"#,
            r#"{"special_tokens":"Parity"}"#,
            r#"{"special_tokens":true}"#,
        ] {
            assert!(serde_json::from_str::<GatewayConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for text in [
            r#"{"polciy":"x"}"#,
            r#"{"limits":{"max_bodies":1}}"#,
            r#"{"follow":{"stale":"1s"}}"#,
            r#"{"drain":{"grcae":"1s"}}"#,
        ] {
            assert!(serde_json::from_str::<GatewayConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_that_answer_nothing_are_refused() {
        let refused = |change: fn(&mut GatewayConfig)| {
            let mut config = GatewayConfig::default();
            change(&mut config);
            config.validate().unwrap_err().key
        };
        assert_eq!(refused(|c| c.limits.max_concurrent = 0), "limits.max_concurrent");
        assert_eq!(refused(|c| c.request_timeout = Duration::ZERO), "request_timeout");
        let name = |alias: &str, name: &str| (alias.to_owned(), name.to_owned());
        let aliases = |pairs: &[(&str, &str)]| {
            let config = GatewayConfig {
                aliases: pairs.iter().map(|(a, n)| name(a, n)).collect(),
                ..GatewayConfig::default()
            };
            config.validate().map_err(|error| error.key)
        };
        assert_eq!(aliases(&[("latest", "mini"), ("stable", "mini")]), Ok(()));
        for bad in [&[("", "mini")][..], &[("latest", "")], &[("a", "b"), ("b", "c")]] {
            assert_eq!(aliases(bad), Err("aliases"), "{bad:?}");
        }
        assert_eq!(
            refused(|c| c.follow.ping_interval = Duration::from_secs(2)),
            "follow.ping_interval"
        );
        assert_eq!(
            refused(|c| c.follow.backoff_max = Duration::ZERO),
            "follow.backoff_max"
        );
    }
}
