//! `Classify` and `ClassifyStream` over the one classifier.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use deltagate_decider::Limits;
use deltagate_mesh::{deadline::Deadline, error::ServiceError};
use deltagate_proto::v1::{
    ClassifyAccepted, ClassifyRequest, ClassifyResponse, ClassifyStreamRequest, ClassifyStreamResponse,
    classifier_service_server::ClassifierService, classify_stream_response::Event as WireEvent,
};
use futures::{Future, Stream};
use prost::Message;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    task::JoinHandle,
};
use tonic::{Request, Response, Status};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{decode::decode, encode::encode};
use crate::classify::{Call, Classified, Classifier, Event, Refusal, new_request_id};

/// The gRPC face of a classifier.
#[derive(Clone)]
pub struct ClassifierFace {
    classifier: Arc<Classifier>,
}

impl ClassifierFace {
    /// Over this classifier.
    pub fn new(classifier: Arc<Classifier>) -> Self {
        Self { classifier }
    }

    /// Everything that both methods do before they differ. The message is checked before anything is looked up.
    fn call(&self, envelope: Envelope, request: ClassifyRequest) -> Result<Call, Refusal> {
        let text_bytes = request.encoded_len();
        let model = Some(request.model.clone()).filter(|name| !name.is_empty());
        let max_questions = self.classifier.config().limits.max_questions;
        let request = decode(
            request,
            &Limits {
                max_questions,
                ..Limits::default()
            },
        )?;
        let request_id = new_request_id();
        tracing::Span::current().set_attribute("deltagate.request_id", request_id.clone());
        Ok(Call {
            request_id,
            model,
            decode: Box::new(move |_| Ok(request)),
            text_bytes,
            arrived: envelope.arrived,
            deadline: self.classifier.deadline(envelope.arrived, envelope.deadline),
        })
    }
}

/// What a request brings besides its message.
struct Envelope {
    arrived: Instant,
    deadline: Option<Instant>,
}

impl Envelope {
    fn of<T>(request: &Request<T>) -> Self {
        Self {
            arrived: Instant::now(),
            deadline: Deadline::from_request(request),
        }
    }
}

#[tonic::async_trait]
impl ClassifierService for ClassifierFace {
    async fn classify(
        &self,
        request: Request<ClassifyRequest>,
    ) -> Result<Response<ClassifyResponse>, Status> {
        let envelope = Envelope::of(&request);
        let call = self
            .call(envelope, request.into_inner())
            .map_err(Refusal::into_status)?;
        let classified = self
            .classifier
            .classify(call, None)
            .await
            .map_err(Refusal::into_status)?;
        Ok(Response::new(encode(classified)))
    }

    type ClassifyStreamStream = EventStream;

    async fn classify_stream(
        &self,
        request: Request<ClassifyStreamRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let envelope = Envelope::of(&request);
        let inner = request.into_inner().request.ok_or_else(|| {
            ServiceError::invalid_argument("INVALID_REQUEST", "request is required").field(
                "request",
                "REQUIRED",
                "is required",
            )
        })?;
        let call = self.call(envelope, inner).map_err(nested)?;
        // Unbounded, yet small: a plan has a bounded number of segments, and a slow reader must not hold up the
        // device. What is queued dies with the stream.
        let (sender, events) = mpsc::unbounded_channel();
        let classifier = Arc::clone(&self.classifier);
        let work = async move { classifier.classify(call, Some(sender)).await };
        let task = tokio::spawn(work.instrument(tracing::Span::current()));
        Ok(Response::new(EventStream {
            events: Some(events),
            task: Some(task),
        }))
    }
}

/// The fields of `ClassifyStream`'s request lie one level deeper.
fn nested(refusal: Refusal) -> Status {
    let mut error = refusal.into_service_error();
    for violation in &mut error.fields {
        violation.field = format!("request.{}", violation.field);
    }
    error.into()
}

/// Progress first, then the answers or the error. Dropping it ends the work.
pub struct EventStream {
    events: Option<UnboundedReceiver<Event>>,
    task: Option<JoinHandle<Result<Classified, Refusal>>>,
}

impl Stream for EventStream {
    type Item = Result<ClassifyStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(events) = &mut self.events {
            match events.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => return Poll::Ready(Some(Ok(wire(event)))),
                Poll::Ready(None) => self.events = None,
            }
        }
        let Some(task) = &mut self.task else {
            return Poll::Ready(None);
        };
        let Poll::Ready(joined) = Pin::new(task).poll(cx) else {
            return Poll::Pending;
        };
        self.task = None;
        let last = match joined {
            Ok(Ok(classified)) => Ok(ClassifyStreamResponse {
                event: Some(WireEvent::Answers(encode(classified))),
            }),
            Ok(Err(refusal)) => Err(nested(refusal)),
            Err(_) => Err(ServiceError::internal("INTERNAL", "the request was interrupted").into()),
        };
        Poll::Ready(Some(last))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn wire(event: Event) -> ClassifyStreamResponse {
    let event = match event {
        Event::Accepted {
            request_id,
            sequences,
            input_tokens,
        } => WireEvent::Accepted(ClassifyAccepted {
            request_id,
            sequences,
            input_tokens,
        }),
        Event::Segment(segment) => WireEvent::Segment(segment),
    };
    ClassifyStreamResponse { event: Some(event) }
}
