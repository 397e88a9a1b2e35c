//! A scripted executor: answers plans with numbers made from the token ids, or does what the test says.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use deltagate_mesh::{error::ServiceError, server::ServerHandle, wire::duration};
use deltagate_proto::v1::{
    self, Artifact, CapabilitySnapshot, DescribeRequest, DescribeResponse, ForwardRequest, ForwardResponse,
    GetArtifactRequest, GetArtifactResponse,
    executor_service_server::{ExecutorService, ExecutorServiceServer},
    forward_response::Event,
    readout::Projection,
};
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{
    model::{card_json, sha256, tokenizer_json},
    serve_at,
};

/// What the next call of `Forward` does. When nothing is scripted, it answers.
pub(crate) enum Act {
    /// Answers after a while.
    AnswerAfter(Duration),
    /// Accepts, and never ends.
    Hang,
    /// Refuses.
    Refuse(ServiceError),
    /// Accepts, and ends without a result.
    ShortRead,
    /// Answers with a value that is not finite.
    NotFinite,
    /// Answers, and from then on has this fingerprint.
    AnswerThenRebind(String),
}

/// What it saw of a call.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) request: ForwardRequest,
    #[allow(dead_code, reason = "read by the telemetry tests only")]
    pub(crate) traceparent: Option<String>,
    pub(crate) grpc_timeout: Option<String>,
}

#[derive(Clone)]
pub(crate) struct FakeExecutor {
    pub(crate) fingerprint: Arc<Mutex<String>>,
    pub(crate) digest: Arc<Mutex<String>>,
    pub(crate) script: Arc<Mutex<VecDeque<Act>>>,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    pub(crate) dropped: Arc<AtomicUsize>,
    pub(crate) tokenizer: Arc<Mutex<Vec<u8>>>,
    pub(crate) announced_sha: Arc<Mutex<Option<String>>>,
    pub(crate) segments: Arc<AtomicUsize>,
    pub(crate) finished: Arc<AtomicUsize>,
}

impl FakeExecutor {
    pub(crate) fn new(fingerprint: &str) -> Self {
        Self {
            fingerprint: Arc::new(Mutex::new(fingerprint.into())),
            digest: Arc::new(Mutex::new("model-digest".into())),
            script: Arc::default(),
            seen: Arc::default(),
            dropped: Arc::default(),
            tokenizer: Arc::new(Mutex::new(tokenizer_json())),
            announced_sha: Arc::default(),
            segments: Arc::new(AtomicUsize::new(2)),
            finished: Arc::default(),
        }
    }

    pub(crate) async fn serve(&self, addr: Option<SocketAddr>) -> ServerHandle {
        let service = ExecutorServiceServer::new(self.clone()).max_decoding_message_size(64 << 20);
        serve_at(addr, |routes| {
            routes.add_service(service);
        })
        .await
    }

    pub(crate) fn then(&self, act: Act) {
        self.script.lock().push_back(act);
    }

    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}

/// Counts a call that was dropped before it ended by itself.
struct Watched {
    counter: Arc<AtomicUsize>,
    done: bool,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.done {
            self.counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Deterministic logits: a function of the sequence and the position of the row's token.
pub(crate) fn logit(sequence: &[u32], index: usize) -> f32 {
    let mut hash = 17u32;
    for id in sequence {
        hash = hash.wrapping_mul(31).wrapping_add(*id);
    }
    let mixed = hash.wrapping_add(u32::try_from(index).unwrap().wrapping_mul(2_654_435_761));
    (mixed >> 8) as f32 / (1u32 << 24) as f32 * 8.0 - 4.0
}

fn answer(request: &ForwardRequest, broken: bool) -> v1::ForwardResult {
    let outputs = request.sequences.iter().map(|sequence| {
        let readout = sequence.readout.clone().unwrap();
        let Some(Projection::OutputEmbedding(rows)) = readout.projection else {
            panic!("StartLux reads letters")
        };
        let mut values: Vec<f32> = (0..rows.token_ids.len())
            .map(|index| logit(&sequence.token_ids, index))
            .collect();
        if broken {
            values[0] = f32::NAN;
        }
        let position = u32::try_from(sequence.token_ids.len() - 1).unwrap();
        v1::SequenceOutput {
            rows: vec![v1::ReadoutRow { position, values }],
        }
    });
    v1::ForwardResult {
        outputs: outputs.collect(),
        capability_fingerprint: request.capability_fingerprint.clone(),
        queue: Some(duration(Duration::from_micros(10))),
        forward: Some(duration(Duration::from_micros(500))),
        kernels: vec![v1::KernelTime {
            family: v1::KernelFamily::DeltaRule.into(),
            backend: "cpu.chunked".into(),
            busy: Some(duration(Duration::from_micros(300))),
            launches: 6,
        }],
    }
}

#[tonic::async_trait]
impl ExecutorService for FakeExecutor {
    type ForwardStream = Pin<Box<dyn Stream<Item = Result<ForwardResponse, Status>> + Send>>;

    async fn forward(
        &self,
        request: Request<ForwardRequest>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        let header = |name: &str| {
            request
                .metadata()
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let (traceparent, grpc_timeout) = (header("traceparent"), header("grpc-timeout"));
        // Tests look at whole sequences.
        let mut request = request.into_inner();
        let prefix = std::mem::take(&mut request.prefix_token_ids);
        for sequence in &mut request.sequences {
            sequence.token_ids.splice(..0, prefix.iter().copied());
        }
        let seen = Seen {
            traceparent,
            grpc_timeout,
            request: request.clone(),
        };
        self.seen.lock().push(seen);
        if request.permit.is_none() {
            return Err(ServiceError::permission_denied("PERMIT_MISSING", "no permit").into());
        }
        if request.capability_fingerprint != *self.fingerprint.lock() {
            return Err(ServiceError::permission_denied("FINGERPRINT_MISMATCH", "another binding").into());
        }
        let act = self.script.lock().pop_front();
        if let Some(Act::Refuse(error)) = act {
            return Err(error.into());
        }
        let (sender, receiver) = mpsc::channel(64);
        let this = self.clone();
        tokio::spawn(async move {
            let mut watched = Watched {
                counter: Arc::clone(&this.dropped),
                done: false,
            };
            let play = this.play(act, &request, &sender);
            tokio::select! {
                () = sender.closed() => {}
                () = play => {
                    watched.done = true;
                    this.finished.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let bytes = self.tokenizer.lock().clone();
        let announced = self.announced_sha.lock().clone();
        let artifact = Artifact {
            name: "tokenizer.json".into(),
            sha256: announced.unwrap_or_else(|| sha256(&bytes)),
            size_bytes: bytes.len() as u64,
        };
        let mut snapshot: CapabilitySnapshot =
            super::capability::ready_snapshot("executor-1", "", &self.fingerprint.lock());
        snapshot
            .model
            .as_mut()
            .unwrap()
            .digest
            .clone_from(&self.digest.lock());
        Ok(Response::new(DescribeResponse {
            snapshot: Some(snapshot),
            model_card_json: card_json(),
            artifacts: vec![artifact],
        }))
    }

    type GetArtifactStream = Pin<Box<dyn Stream<Item = Result<GetArtifactResponse, Status>> + Send>>;

    async fn get_artifact(
        &self,
        _: Request<GetArtifactRequest>,
    ) -> Result<Response<Self::GetArtifactStream>, Status> {
        let bytes = self.tokenizer.lock().clone();
        let chunks: Vec<_> = bytes
            .chunks(1000)
            .map(|chunk| {
                Ok(GetArtifactResponse {
                    chunk: bytes::Bytes::copy_from_slice(chunk),
                })
            })
            .collect();
        Ok(Response::new(Box::pin(futures::stream::iter(chunks))))
    }
}

impl FakeExecutor {
    async fn play(
        &self,
        act: Option<Act>,
        request: &ForwardRequest,
        sender: &mpsc::Sender<Result<ForwardResponse, Status>>,
    ) {
        let send = async |event: Event| {
            let _ = sender.send(Ok(ForwardResponse { event: Some(event) })).await;
        };
        send(Event::Accepted(v1::ForwardAccepted { queue_position: 0 })).await;
        match act {
            Some(Act::Hang) => std::future::pending().await,
            Some(Act::ShortRead) => return,
            Some(Act::AnswerAfter(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        if request.segment_events {
            let segments = self.segments.load(Ordering::SeqCst);
            for sequence in 0..request.sequences.len() {
                for segment in 0..segments {
                    let at = |index: usize| u32::try_from(index).unwrap();
                    send(Event::Segment(v1::SegmentEvent {
                        step: 0,
                        sequence: at(sequence),
                        segment: at(segment),
                        segments: at(segments),
                        first_layer: at(segment * 4),
                        end_layer: at(segment * 4 + 4),
                        elapsed: Some(duration(Duration::from_micros(100))),
                    }))
                    .await;
                }
            }
        }
        send(Event::Result(answer(
            request,
            matches!(act, Some(Act::NotFinite)),
        )))
        .await;
        if let Some(Act::AnswerThenRebind(fingerprint)) = act {
            *self.fingerprint.lock() = fingerprint;
        }
    }
}
