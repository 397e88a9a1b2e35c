//! Deltagate's gRPC contract, generated from the `.proto` files beside this crate.
//!
//! The documentation of every message lives in the `.proto` files: they are the contract.

/// Package `deltagate.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    tonic::include_proto!("deltagate.v1");
}

/// Encoded `FileDescriptorSet` of `deltagate.v1` and what it imports, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("deltagate");
