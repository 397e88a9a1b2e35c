//! What every service shares: config, telemetry, status mapping, deadlines, health, drain, supervision.
//!
//! Nothing here knows decisions, kernels or policy rules. OpenTelemetry exporters are known only here.

pub mod client;
pub mod config;
pub mod deadline;
pub mod error;
pub mod health;
mod interrupt;
pub mod lifeline;
pub mod metrics;
pub mod panics;
pub mod permit;
pub mod server;
pub mod signal;
pub mod supervise;
pub mod telemetry;
pub mod trace;
pub mod wire;

pub use error::ServiceError;
