//! `[executor]`: every setting of the executor, with its default.

use std::{net::SocketAddr, time::Duration};

use deltagate_kernels_api::Preferences;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{Dtype, EngineSettings},
    queue::Limits,
};

/// Settings of the executor service. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecutorConfig {
    /// Address to listen on. Default `127.0.0.1:50061`.
    pub listen: SocketAddr,
    /// Endpoint that others use to reach this executor, such as `http://10.0.0.7:50061`. Default: `http://` and the
    /// address listened on; must be set when that is an unspecified one (`0.0.0.0`).
    pub advertise: Option<String>,
    /// Model folder, or `embedded` (default) for the small model that is part of the binary.
    pub model: String,
    /// Name under which the model is served. Default: the folder's name.
    pub model_name: Option<String>,
    /// Endpoint of the capability service. Default `http://127.0.0.1:50052`.
    pub capability: String,
    /// Endpoint of the policy service. Default `http://127.0.0.1:50053`.
    pub policy: String,
    /// dtype in which it computes: `f32` (default) or `bf16`.
    pub dtype: Dtype,
    /// Threads of the device, when the device is a CPU. Default: all of them.
    pub threads: Option<usize>,
    /// Waits for requests without sleeping, on the network and on the device thread: lower latency for two cores. Default no.
    pub busy_poll: bool,
    /// Backend preference per kernel family: a name, a list of names, or `auto` (default). The only settings that a
    /// reload applies.
    pub kernels: Preferences,
    /// Prompts of at most so many tokens run as one segment. Default 512.
    pub segment_tokens: usize,
    /// Most segments of a longer prompt. Default 8.
    pub max_segments: usize,
    /// Most time one probe of a backend may take. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub probe_timeout: Duration,
    /// Bounds of the admission queue.
    pub queue: QueueConfig,
    /// Time between two heartbeats, and between two readiness questions. Default 400 ms.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// Most time for one call to the capability or policy service. Default 500 ms.
    #[serde(with = "humantime_serde")]
    pub call_timeout: Duration,
    /// Longest time for which an answer of the capability or policy service is believed, whatever it says itself.
    /// Default 1.5 s.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How a shutdown goes.
    pub drain: DrainConfig,
    /// How often the config file is looked at for changes. Default 500 ms.
    #[serde(with = "humantime_serde")]
    pub watch_config: Duration,
    /// A forward pass without a finished segment for so long means that the device hangs: the executor fails and
    /// exits. Default 120 s.
    #[serde(with = "humantime_serde")]
    pub watchdog: Duration,
}

/// `[executor.queue]`: what may wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Most waiting requests. Default 64.
    pub max_requests: usize,
    /// Most tokens over all waiting requests. Default 65536.
    pub max_tokens: u64,
}

/// `[executor.drain]`: how a shutdown goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainConfig {
    /// Time between saying "not serving" and closing the listener. Default 500 ms.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Most time for accepted requests to end. Default 20 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

/// A setting that is of the right type and still makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("executor.{key}: {reason}")]
pub struct InvalidSetting {
    /// The key, below `[executor]`.
    pub key: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 50061)),
            advertise: None,
            model: EMBEDDED.to_owned(),
            model_name: None,
            capability: "http://127.0.0.1:50052".to_owned(),
            policy: "http://127.0.0.1:50053".to_owned(),
            dtype: Dtype::F32,
            threads: None,
            busy_poll: false,
            kernels: Preferences::default(),
            segment_tokens: 512,
            max_segments: 8,
            probe_timeout: Duration::from_secs(60),
            queue: QueueConfig::default(),
            heartbeat: Duration::from_millis(400),
            call_timeout: Duration::from_millis(500),
            lease: Duration::from_millis(1_500),
            drain: DrainConfig::default(),
            watch_config: Duration::from_millis(500),
            watchdog: Duration::from_secs(120),
        }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_requests: 64,
            max_tokens: 65_536,
        }
    }
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(500),
            timeout: Duration::from_secs(20),
        }
    }
}

/// Value of `model` that means the model inside the binary.
pub const EMBEDDED: &str = "embedded";

impl ExecutorConfig {
    /// Refuses what the types cannot: zero intervals, leases shorter than the heartbeat, empty names.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let require = |holds: bool, key, reason| {
            if holds {
                Ok(())
            } else {
                Err(InvalidSetting { key, reason })
            }
        };
        require(
            !self.model.is_empty(),
            "model",
            "must name a folder or be `embedded`",
        )?;
        require(
            self.model_name.as_deref() != Some(""),
            "model_name",
            "must not be empty",
        )?;
        require(
            self.advertise.as_deref() != Some(""),
            "advertise",
            "must not be empty",
        )?;
        require(
            self.advertise.is_some() || !self.listen.ip().is_unspecified(),
            "advertise",
            "must be set when `listen` is an unspecified address",
        )?;
        require(self.threads != Some(0), "threads", "must be at least 1")?;
        require(self.segment_tokens > 0, "segment_tokens", "must be at least 1")?;
        require(self.max_segments > 0, "max_segments", "must be at least 1")?;
        require(
            !self.probe_timeout.is_zero(),
            "probe_timeout",
            "must be more than zero",
        )?;
        require(!self.heartbeat.is_zero(), "heartbeat", "must be more than zero")?;
        require(
            !self.call_timeout.is_zero(),
            "call_timeout",
            "must be more than zero",
        )?;
        require(
            self.lease > self.heartbeat,
            "lease",
            "must be longer than `heartbeat`",
        )?;
        require(
            !self.watch_config.is_zero(),
            "watch_config",
            "must be more than zero",
        )?;
        require(!self.watchdog.is_zero(), "watchdog", "must be more than zero")
    }

    /// The settings of the engine.
    pub(crate) fn engine(&self) -> EngineSettings {
        EngineSettings {
            dtype: self.dtype,
            threads: self.threads,
            preferences: self.kernels.clone(),
            segment_tokens: self.segment_tokens,
            max_segments: self.max_segments,
            probe_timeout: self.probe_timeout,
        }
    }
}

impl From<QueueConfig> for Limits {
    fn from(config: QueueConfig) -> Self {
        Self {
            max_requests: config.max_requests,
            max_tokens: config.max_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use deltagate_kernels_api::{KernelFamily, Preference};
    use serde_json::json;

    use super::*;

    fn parse(value: serde_json::Value) -> Result<ExecutorConfig, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn defaults_are_valid_and_survive_a_round_trip() {
        let config = ExecutorConfig::default();
        config.validate().unwrap();
        assert_eq!(parse(serde_json::to_value(&config).unwrap()).unwrap(), config);
        assert_eq!(parse(json!({})).unwrap(), config);
    }

    #[test]
    fn reads_preferences_durations_and_bounds() {
        let config = parse(json!({
            "dtype": "bf16",
            "heartbeat": "250ms",
            "kernels": {"delta_rule": "cpu.chunked", "conv1d": ["a", "b"], "norm": "auto"},
            "queue": {"max_requests": 2},
        }))
        .unwrap();
        assert_eq!(config.dtype, Dtype::Bf16);
        assert_eq!(config.heartbeat, Duration::from_millis(250));
        assert_eq!(
            config.kernels.get(KernelFamily::DeltaRule),
            Preference::One("cpu.chunked".to_owned())
        );
        assert_eq!(config.kernels.get(KernelFamily::Conv1d).names(), ["a", "b"]);
        assert_eq!(config.kernels.get(KernelFamily::Norm), Preference::Auto);
        assert_eq!(
            config.queue,
            QueueConfig {
                max_requests: 2,
                max_tokens: 65_536
            }
        );
    }

    #[test]
    fn refuses_unknown_keys_everywhere() {
        for value in [
            json!({"lissten": "127.0.0.1:1"}),
            json!({"queue": {"max_request": 1}}),
            json!({"drain": {"gracee": "1s"}}),
            json!({"kernels": {"delta_rul": "auto"}}),
            json!({"dtype": "f16"}),
        ] {
            assert!(parse(value.clone()).is_err(), "{value} was accepted");
        }
    }

    #[test]
    fn refuses_settings_that_make_no_sense() {
        type Break = fn(&mut ExecutorConfig);
        let cases: [(&str, Break); 8] = [
            ("model", |c| c.model.clear()),
            ("model_name", |c| c.model_name = Some(String::new())),
            ("advertise", |c| c.listen = SocketAddr::from(([0, 0, 0, 0], 1))),
            ("threads", |c| c.threads = Some(0)),
            ("segment_tokens", |c| c.segment_tokens = 0),
            ("heartbeat", |c| c.heartbeat = Duration::ZERO),
            ("lease", |c| c.lease = c.heartbeat),
            ("watchdog", |c| c.watchdog = Duration::ZERO),
        ];
        for (key, break_it) in cases {
            let mut config = ExecutorConfig::default();
            break_it(&mut config);
            assert_eq!(config.validate().unwrap_err().key, key);
        }
    }
}
