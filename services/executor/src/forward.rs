//! `Forward`: from a request to a place in the queue, and from there to a stream of events.
//!
//! The stream holds the place. A caller that goes away drops the stream, and with it the place; a caller that reads
//! slowly makes the outcome wait here, not on the device.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use deltagate_mesh::{
    deadline::{self, Deadline},
    error::ServiceError,
    trace::Parent,
    wire,
};
use deltagate_proto::v1::{self, forward_response::Event};
use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Status};

use crate::{
    device::{DeviceContext, Outcome, Rebind, Work, swapped},
    failure::Failure,
    plan::{self},
    queue::{Place, Refused},
    reason::Reason,
    runner::ModelLimits,
    snapshot, spans,
};

/// Segment events that may wait for a slow reader; more are dropped.
const PROGRESS_BUFFER: usize = 64;

/// The stream of events of one forward pass.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<v1::ForwardResponse, Status>> + Send>>;

/// Runs a request, or says why not: a stream of its events, or, if that is all that is asked for, of its result alone,
/// which is then there before the first byte of the response is sent.
pub(crate) async fn run(
    device: &DeviceContext,
    request: Request<v1::ForwardRequest>,
) -> Result<Events, ServiceError> {
    let result_only = request.get_ref().result_only;
    let mut flight = admit(device, request)?;
    if !result_only {
        return Ok(events(flight));
    }
    // Dropping this future, as the server does when the caller leaves, drops the place.
    let event = flight.next().await?;
    Ok(Box::pin(futures::stream::iter([Ok(response(event))])))
}

/// Admits a request, or says why not.
fn admit(device: &DeviceContext, request: Request<v1::ForwardRequest>) -> Result<Flight, ServiceError> {
    let deadline = Deadline::from_request(&request);
    let parent = Parent::of(&tracing::Span::current());
    let request = request.into_inner();
    // The permit comes first: who has none learns nothing about the request or the executor.
    if request.permit.is_none() {
        device.permits.check(None, "")?;
    }
    let era = device.queue.era();
    let current = device.lifecycle.fingerprint();
    let same = current
        .as_ref()
        .is_some_and(|current| **current == *request.capability_fingerprint);
    if let Err(error) = device.lifecycle.admits() {
        // Right after a swap policy has not decided about the new binding yet; the caller needs its new permit.
        return Err(if current.is_some() && !same {
            swapped()
        } else {
            error
        });
    }
    let claims = device
        .permits
        .check(request.permit.as_ref(), &request.capability_fingerprint)?;
    let current = current.filter(|_| same).ok_or_else(swapped)?;
    let served = device
        .lifecycle
        .served()
        .ok_or_else(|| Reason::bare("LOADING").refusal())?;
    if request.result_only && request.segment_events {
        return Err(ServiceError::invalid_argument(
            "INVALID_REQUEST",
            "events and the result only cannot both be sent",
        )
        .field("result_only", "CONTRADICTORY", "excludes segment_events"));
    }
    let plan = plan::validate(&request, &served.limits)?;
    plan::within_permit(&plan, &claims)?;

    let queued = Instant::now();
    if deadline.is_some_and(|deadline| deadline <= queued) {
        return Err(deadline::exceeded("queue"));
    }
    let (reply, outcome) = oneshot::channel();
    let (sender, progress) = mpsc::channel(PROGRESS_BUFFER);
    let tokens = plan.tokens;
    let work = Work {
        plan,
        fingerprint: Arc::clone(&current),
        queued,
        deadline,
        parent: parent.clone(),
        progress: request.segment_events.then_some(sender),
        reply,
    };
    let place = device
        .queue
        .admit(work, tokens, deadline, era)
        .map_err(|refused| refusal(refused, device))?;
    Ok(Flight {
        place,
        outcome,
        progress: request.segment_events.then_some(progress),
        queued,
        deadline,
        parent,
        failure: Arc::clone(&device.failure),
        fingerprint: current,
        limits: served.limits,
    })
}

fn refusal(refused: Refused, device: &DeviceContext) -> ServiceError {
    match refused {
        Refused::Full { retry_after } => {
            ServiceError::resource_exhausted("QUEUE_FULL", "the queue of the executor is full")
                .retry_after(retry_after)
        }
        Refused::Held => swapped(),
        Refused::Closed => match device.lifecycle.admits() {
            Err(error) => error,
            Ok(()) => Reason::bare("EXECUTOR_NOT_READY").refusal(),
        },
    }
}

/// An admitted request, seen from its caller.
struct Flight {
    place: Place<Work, Rebind>,
    outcome: oneshot::Receiver<Outcome>,
    progress: Option<mpsc::Receiver<v1::SegmentEvent>>,
    queued: Instant,
    deadline: Option<Instant>,
    parent: Option<Parent>,
    failure: Arc<Failure>,
    fingerprint: Arc<str>,
    limits: ModelLimits,
}

enum Stage {
    Accepted(Flight),
    Running(Flight),
    Ended,
}

fn events(flight: Flight) -> Events {
    Box::pin(futures::stream::unfold(Stage::Accepted(flight), |stage| async {
        match stage {
            Stage::Accepted(flight) => {
                let accepted = v1::ForwardAccepted {
                    queue_position: flight.place.position,
                };
                Some((Ok(response(Event::Accepted(accepted))), Stage::Running(flight)))
            }
            Stage::Running(mut flight) => match flight.next().await {
                Ok(Event::Result(result)) => Some((Ok(response(Event::Result(result))), Stage::Ended)),
                Ok(event) => Some((Ok(response(event)), Stage::Running(flight))),
                Err(error) => Some((Err(Status::from(error)), Stage::Ended)),
            },
            Stage::Ended => None,
        }
    }))
}

/// Ends when the instant is past. The clock is asked before the timer, which is late by up to a millisecond: others
/// look at the same deadline, and only this future knows the stage in which it passed.
async fn passed(deadline: Instant) {
    let sleep = tokio::time::sleep_until(deadline.into());
    tokio::pin!(sleep);
    std::future::poll_fn(|cx| {
        if Instant::now() >= deadline {
            return Poll::Ready(());
        }
        sleep.as_mut().poll(cx)
    })
    .await;
}

fn response(event: Event) -> v1::ForwardResponse {
    v1::ForwardResponse { event: Some(event) }
}

impl Flight {
    async fn next(&mut self) -> Result<Event, ServiceError> {
        let expired = async {
            match self.deadline {
                Some(deadline) => passed(deadline).await,
                None => std::future::pending().await,
            }
        };
        let segment = async {
            match &mut self.progress {
                Some(progress) => match progress.recv().await {
                    Some(event) => event,
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        // Segments of this job were sent before its outcome, so they are looked at first.
        tokio::select! {
            biased;
            event = segment => Ok(Event::Segment(event)),
            outcome = &mut self.outcome => self.finish(outcome),
            () = expired => {
                let stage = if self.place.is_dispatched() { "run" } else { "queue" };
                if let (Some(parent), "queue") = (&self.parent, stage) {
                    spans::record_queue(parent, self.queued, Instant::now());
                }
                Err(deadline::exceeded(stage))
            }
            failure = self.failure.raised() => Err(failure.refusal()),
        }
    }

    fn finish(&self, outcome: Result<Outcome, oneshot::error::RecvError>) -> Result<Event, ServiceError> {
        let outcome = outcome.map_err(|_| {
            ServiceError::internal("KERNEL_FAILED", "the device thread ended without an answer")
        })?;
        if let Some(parent) = &self.parent {
            spans::record(parent, self.queued, &outcome);
        }
        let queue = outcome
            .dispatched
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(self.queued));
        let (plan, output) = outcome.result?;
        let forward = output.end.saturating_duration_since(output.start);
        let kernels = output.kernels.iter().map(|kernel| v1::KernelTime {
            family: snapshot::family(kernel.family).into(),
            backend: kernel.backend.to_string(),
            busy: Some(wire::duration(kernel.busy)),
            launches: kernel.launches,
        });
        let kernels = kernels.collect();
        Ok(Event::Result(v1::ForwardResult {
            outputs: plan::outputs(&plan.plan, &self.limits, output)?,
            capability_fingerprint: self.fingerprint.to_string(),
            queue: Some(wire::duration(queue)),
            forward: Some(wire::duration(forward)),
            kernels,
        }))
    }
}
