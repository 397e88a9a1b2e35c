//! Owns one device: weights, layer plan, kernel workers, admission queue.
//!
//! Reading order: `start` puts the parts together; `lifecycle` says when it is ready; `forward` admits a plan into the
//! `queue`; `device` is the one thread that runs it on the [`engine`]; `heartbeat` keeps the mesh informed; `reload`
//! swaps kernels. Nothing here knows what a decision is: plans come in, rows of numbers go out.

mod artifact;
mod config;
mod device;
pub mod engine;
mod failure;
mod forward;
mod heartbeat;
mod lifecycle;
mod loader;
mod permits;
mod plan;
mod progress;
mod pulse;
mod queue;
mod reason;
mod reload;
pub mod runner;
mod service;
mod snapshot;
mod spans;
mod start;

pub use config::{DrainConfig, EMBEDDED, ExecutorConfig, InvalidSetting, QueueConfig};
pub use failure::{DeviceFailure, EXIT_DEVICE_LOST, EXIT_LOAD_FAILED};
pub use heartbeat::HeartbeatError;
pub use lifecycle::{SERVICE_ENTRY, kernel_entry};
pub use reload::{ConfigSource, LoadConfig, Reload, ReloadError};
pub use start::{ExecutorError, ExecutorHandle, run, run_reloading, start, start_with};
