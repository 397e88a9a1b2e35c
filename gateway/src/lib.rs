//! The front door: gRPC and HTTP faces of one service.
//!
//! A call goes face → [`classify::Classifier`] (model, policy, decider loop, executor) → face. What may be used at
//! any moment is judged by [`view`], which follows capability, policy and executors in the background;
//! [`readiness`] publishes the same judgement. Only this crate tokenises.

mod channel;
pub mod classify;
mod config;
mod grpc;
mod http;
mod metrics;
pub mod readiness;
mod server;
mod tokenizer;
pub mod view;

pub use config::{DrainConfig, FollowConfig, GatewayConfig, InvalidConfig, LimitsConfig};
pub use grpc::ClassifierFace;
pub use server::{GatewayError, GatewayHandle, Listeners, run, start};
pub use tokenizer::{HfTokenizer, TokenizerError};
