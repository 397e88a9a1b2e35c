//! The gRPC face: `deltagate.v1.ClassifierService`.

mod decode;
mod encode;
mod service;

pub use service::ClassifierFace;
