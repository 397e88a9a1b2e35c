//! End-to-end, fault and conformance tests. What they share lives here.

pub mod cluster;
pub mod otlp;
pub mod tree;
