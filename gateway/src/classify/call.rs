//! What goes into the classifier and what comes out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_decider::{Answers, DecisionRequest, Family, RequestError};
use deltagate_proto::v1::{self, KernelFamily, SegmentEvent};
use tokio::sync::mpsc::UnboundedSender;

/// One call, from either face.
pub struct Call {
    /// Id of this request.
    pub request_id: String,
    /// Model or alias that was asked for.
    pub model: Option<String>,
    /// Gives the request by the rules of the model's family. Runs once, when the model is known.
    pub decode: Decode,
    /// About how many bytes of text there are to render and tokenise: beyond some KiB it is not done on the reactor.
    pub text_bytes: usize,
    /// When it came.
    pub arrived: Instant,
    /// When it is over.
    pub deadline: Instant,
}

/// See [`Call::decode`].
pub type Decode = Box<dyn FnOnce(&dyn Family) -> Result<DecisionRequest, RequestError> + Send>;

/// Where progress goes. Never blocks; a receiver that is gone is no error.
pub type Events = UnboundedSender<Event>;

/// Progress of a call.
pub enum Event {
    /// The first plan is queued.
    Accepted {
        /// Id of the request.
        request_id: String,
        /// Sequences of the first step.
        sequences: u32,
        /// Their tokens.
        input_tokens: u64,
    },
    /// A segment of layers is done.
    Segment(SegmentEvent),
}

/// All answers to one call.
pub struct Classified {
    /// Id of the request.
    pub request_id: String,
    /// The model that answered.
    pub model: String,
    /// Its family.
    pub family: Arc<dyn Family>,
    /// What was asked.
    pub request: Arc<DecisionRequest>,
    /// The answers, in the order of the questions.
    pub answers: Answers,
    /// The binding that computed all of them.
    pub fingerprint: String,
    /// Where the time went.
    pub timings: Timings,
}

/// Where the time of one call went.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// All of it, in the gateway.
    pub total: Duration,
    /// Rendering and tokenising.
    pub tokenize: Duration,
    /// Request rules.
    pub policy: Duration,
    /// Waiting in executors' queues.
    pub queue: Duration,
    /// On the device.
    pub forward: Duration,
    /// By kernel family and backend.
    pub kernels: Vec<KernelTime>,
}

/// How long one kernel family was busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// The family.
    pub family: KernelFamily,
    /// The backend that ran.
    pub backend: String,
    /// Sum over launches.
    pub busy: Duration,
    /// How many.
    pub launches: u64,
}

impl Timings {
    /// Adds what one forward call took.
    pub(super) fn add(&mut self, result: &v1::ForwardResult) {
        let wire = |value: Option<&prost_types::Duration>| {
            deltagate_mesh::wire::std_duration(value).unwrap_or_default()
        };
        self.queue += wire(result.queue.as_ref());
        self.forward += wire(result.forward.as_ref());
        for kernel in &result.kernels {
            let (family, busy) = (kernel.family(), wire(kernel.busy.as_ref()));
            let known = self
                .kernels
                .iter_mut()
                .find(|k| k.family == family && k.backend == kernel.backend);
            match known {
                Some(known) => {
                    known.busy += busy;
                    known.launches += kernel.launches;
                }
                None => self.kernels.push(KernelTime {
                    family,
                    backend: kernel.backend.clone(),
                    busy,
                    launches: kernel.launches,
                }),
            }
        }
    }

    /// Forgets what an abandoned binding did; its time remains in `total`.
    pub(super) fn forget_forward(&mut self) {
        self.queue = Duration::ZERO;
        self.forward = Duration::ZERO;
        self.kernels.clear();
    }
}

/// A fresh id: UUID version 7, so that ids sort by time.
pub fn new_request_id() -> String {
    uuid::Uuid::now_v7().to_string()
}
