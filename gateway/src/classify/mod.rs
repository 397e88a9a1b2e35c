//! The one service behind both faces: resolve the model, ask policy, and drive the decider over an executor.

mod call;
mod classifier;
mod forward;
mod progress;
mod refusal;
mod resolve;
mod rounds;
mod special;

pub use call::{Call, Classified, Decode, Event, Events, KernelTime, Timings, new_request_id};
pub use classifier::Classifier;
pub use refusal::Refusal;
