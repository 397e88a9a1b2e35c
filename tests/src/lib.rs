//! End-to-end, fault and conformance tests. What they share lives here.

pub mod calls;
pub mod cluster;
pub mod http;
pub mod model_folder;
pub mod otlp;
pub mod ports;
pub mod process;
pub mod requests;
pub mod tools;
pub mod traffic;
pub mod tree;
