//! The gateway against a scripted mesh: real sockets, real tokenizer and decider, no model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod bodies;
mod deadlines;
mod drain;
mod executor_errors;
mod faults;
mod http_face;
mod policy_rules;
mod refusals;
mod replicas;
mod support;
mod swap;
