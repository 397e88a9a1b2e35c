//! The gRPC face: `deltagate.v1.ClassifierService`.

mod decode;
mod encode;
mod readable;
mod service;

pub(crate) use readable::Readable;
pub use service::ClassifierFace;
