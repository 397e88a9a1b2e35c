//! Owns one device: weights, layer plan, kernel workers, admission queue.
//!
//! Reading order: [`start`] puts the parts together; [`lifecycle`] says when it is ready; `forward` admits a plan
//! into the [`queue`]; `device` is the one thread that runs it on the [`engine`]; `heartbeat` keeps the mesh informed.

mod artifact;
pub mod config;
mod device;
pub mod engine;
pub mod failure;
mod forward;
mod heartbeat;
pub mod lifecycle;
mod loader;
mod permits;
pub mod plan;
mod progress;
mod pulse;
pub mod queue;
mod reason;
pub mod reload;
pub mod runner;
mod service;
mod snapshot;
mod spans;
pub mod start;

pub use config::ExecutorConfig;
pub use failure::{EXIT_DEVICE_LOST, EXIT_LOAD_FAILED};
pub use reload::{ConfigSource, Reload};
pub use start::{ExecutorError, ExecutorHandle, run, start, start_with};
