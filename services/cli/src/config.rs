//! The whole configuration: one section a service, and `config show | check`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use deltagate_capability::CapabilityConfig;
use deltagate_executor::ExecutorConfig;
use deltagate_gateway::GatewayConfig;
use deltagate_mesh::{
    client::{self, ChannelOptions},
    config::Loaded,
    telemetry::TelemetryConfig,
};
use deltagate_policy::PolicyConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tonic::transport::Channel;

use crate::{
    args::{ConfigAction, ConfigArgs},
    executors::{self, UpConfig},
    output::{Failure, Output},
};

/// Every section; one file serves every service. Unknown keys are errors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The front door.
    pub gateway: GatewayConfig,
    /// The executor.
    pub executor: ExecutorConfig,
    /// The registry.
    pub capability: CapabilityConfig,
    /// The policy service.
    pub policy: PolicyConfig,
    /// Logs and traces of every service.
    pub telemetry: TelemetryConfig,
    /// What `up` starts.
    pub up: UpConfig,
}

/// Where the configuration comes from, besides the environment.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// `--config`.
    pub(crate) file: Option<PathBuf>,
    /// `--set`, as given.
    pub(crate) set: Vec<String>,
}

impl Sources {
    /// Loads it; `flags` are dotted keys that other flags stand for, and win.
    pub(crate) fn load(&self, flags: &[(String, Value)]) -> Result<Loaded<Config>, Failure> {
        let mut overrides = Vec::new();
        for text in &self.set {
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| Failure::usage(format!("--set {text}: KEY=VALUE is needed")))?;
            overrides.push((key.trim().to_owned(), parse(value)));
        }
        overrides.extend(flags.iter().cloned());
        deltagate_mesh::config::load(self.file.as_deref(), &overrides).map_err(|e| Failure::usage(chain(&e)))
    }

    /// The flags that give a child process the same sources.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Some(file) = &self.file {
            flags.extend(["--config".to_owned(), file.display().to_string()]);
        }
        for text in &self.set {
            flags.extend(["--set".to_owned(), text.clone()]);
        }
        flags
    }
}

/// A value of `--set`: numbers, booleans, lists and tables as JSON; everything else is text.
fn parse(value: &str) -> Value {
    match serde_json::from_str::<Value>(value) {
        Ok(parsed) if !parsed.is_null() => parsed,
        _ => Value::String(value.to_owned()),
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The URL under which a listener of this machine is reached.
pub(crate) fn local_url(listen: SocketAddr) -> String {
    let host = match listen {
        a if !a.ip().is_unspecified() => a.ip().to_string(),
        SocketAddr::V4(_) => "127.0.0.1".to_owned(),
        SocketAddr::V6(_) => "::1".to_owned(),
    };
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    format!("http://{host}:{}", listen.port())
}

/// The gateway's gRPC endpoint: what was given, or the configured one.
pub(crate) fn gateway_endpoint(given: Option<String>, config: &Config) -> String {
    given.unwrap_or_else(|| local_url(config.gateway.grpc_listen))
}

/// A channel that connects when it is first used.
pub(crate) fn channel(endpoint: &str) -> Result<Channel, Failure> {
    let options = ChannelOptions {
        connect_timeout: Duration::from_secs(2),
        ..ChannelOptions::default()
    };
    client::channel(endpoint, options).map_err(|e| Failure::usage(chain(&e)))
}

#[derive(Serialize)]
struct Shown {
    key: String,
    value: Value,
    origin: String,
}

#[derive(Serialize)]
struct Checked {
    ok: bool,
    keys: usize,
}

pub(crate) fn run(args: &ConfigArgs, sources: &Sources, output: Output) -> Result<ExitCode, Failure> {
    let loaded = sources.load(&[])?;
    validate(&loaded.value)?;
    match args.action {
        ConfigAction::Show => {
            let shown: Vec<_> = loaded
                .origins
                .into_iter()
                .map(|o| Shown {
                    key: o.key,
                    value: o.value,
                    origin: o.origin,
                })
                .collect();
            output.print(&shown, |all| {
                let width = all
                    .iter()
                    .map(|s| s.key.len() + s.value.to_string().len() + 3)
                    .max()
                    .unwrap_or(0)
                    .min(70);
                let line =
                    |s: &Shown| format!("{:<width$}  # {}", format!("{} = {}", s.key, s.value), s.origin);
                all.iter().map(line).collect::<Vec<_>>().join("\n")
            })?;
        }
        ConfigAction::Check => {
            output.print(
                &Checked {
                    ok: true,
                    keys: loaded.origins.len(),
                },
                |c| format!("the configuration is sound: {} keys", c.keys),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the types cannot refuse.
pub(crate) fn validate(config: &Config) -> Result<(), Failure> {
    config.executor.validate().map_err(Failure::usage)?;
    config.gateway.validate().map_err(Failure::usage)?;
    config.capability.validate().map_err(Failure::usage)?;
    config.policy.validate().map_err(Failure::usage)?;
    executors::plan(config)?;
    for (key, endpoint) in [
        ("gateway.capability", &config.gateway.capability),
        ("gateway.policy", &config.gateway.policy),
        ("executor.capability", &config.executor.capability),
        ("executor.policy", &config.executor.policy),
        ("policy.capability", &config.policy.capability),
    ] {
        let uri = endpoint.parse::<tonic::transport::Uri>();
        if !uri.is_ok_and(|u| u.scheme_str() == Some("http") && u.host().is_some()) {
            return Err(Failure::usage(format!(
                "{key}: `{endpoint}` is not an endpoint such as http://127.0.0.1:50051"
            )));
        }
    }
    Ok(())
}
