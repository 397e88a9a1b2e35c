//! The device thread: the one thread that owns the engine. It loads the model, then takes its turns from the queue:
//! jobs in their order, and swaps of kernels between two jobs.
//!
//! Nothing that a caller does or fails to do can hold it up: progress goes into a bounded channel and is dropped when
//! that is full, and the outcome goes into a slot that never blocks.

use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use deltagate_kernels_api::Preferences;
use deltagate_mesh::{deadline, error::ServiceError, trace::Parent, wire};
use deltagate_proto::v1;
use tokio::sync::{mpsc, oneshot};

use crate::{
    engine::{EngineError, ForwardObserver, ForwardOutput, SegmentDone},
    failure::{DeviceFailure, Failure},
    lifecycle::{Bound, Lifecycle},
    permits::PermitGate,
    plan::{self, ValidPlan},
    pulse::Pulse,
    queue::{Cancel, Queue, Turn},
    reason::Reason,
    runner::{LoadedModel, Loader, Runner},
    snapshot, spans,
};

/// A plan that was admitted.
#[derive(Debug)]
pub(crate) struct Work {
    /// What to run.
    pub plan: ValidPlan,
    /// The binding that it is for.
    pub fingerprint: Arc<str>,
    /// When it was admitted.
    pub queued: Instant,
    /// When its caller stops waiting.
    pub deadline: Option<Instant>,
    /// Where to hang its spans, if its trace is sampled.
    pub parent: Option<Parent>,
    /// Where to tell of segments, if the caller wants that.
    pub progress: Option<mpsc::Sender<v1::SegmentEvent>>,
    /// Where the outcome goes.
    pub reply: oneshot::Sender<Outcome>,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What it gave, with the plan that it answers.
    pub result: Result<(ValidPlan, ForwardOutput), ServiceError>,
    /// When the device took it; none when it was refused without running.
    pub dispatched: Option<Instant>,
    /// Segments that were done, if its trace is sampled.
    pub segments: Vec<SegmentDone>,
    /// Tokens of each sequence, if its trace is sampled.
    pub lengths: Vec<usize>,
}

/// Binds other kernels between two jobs.
#[derive(Debug)]
pub(crate) struct Rebind {
    /// What is preferred from now on.
    pub preferences: Preferences,
    /// The fingerprint then in force, or why the former binding stays.
    pub reply: oneshot::Sender<Result<Arc<str>, String>>,
}

/// The queue of the device thread.
pub(crate) type DeviceQueue = Queue<Work, Rebind>;

/// What the device thread shares with the rest of the executor.
#[derive(Clone)]
pub(crate) struct DeviceContext {
    /// Its work.
    pub queue: Arc<DeviceQueue>,
    /// Where it tells what is bound.
    pub lifecycle: Arc<Lifecycle>,
    /// Who may run.
    pub permits: Arc<PermitGate>,
    /// Its sign of life.
    pub pulse: Arc<Pulse>,
    /// Where it tells that it cannot go on.
    pub failure: Arc<Failure>,
}

/// Starts the device thread. It ends when the queue is closed and empty, or when the device fails.
pub(crate) fn spawn(context: DeviceContext, loader: Loader) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name("deltagate-device".to_owned())
        .spawn(move || {
            let failed = context.clone();
            let worked = catch_unwind(AssertUnwindSafe(|| match loader(&mut crate::progress::bar()) {
                Ok(model) => Device::new(context, model).work(),
                Err(error) => context.fail(DeviceFailure::Load(error.to_string())),
            }));
            if worked.is_err() {
                failed.fail(DeviceFailure::Panicked);
            }
        })
}

impl DeviceContext {
    /// Fails for good: no more admission, everybody who waits is answered.
    pub(crate) fn fail(&self, failure: DeviceFailure) {
        tracing::error!(reason = %failure, "executor failed");
        self.lifecycle
            .fail(Reason::new(failure.code(), failure.to_string()));
        self.queue.close();
        let (jobs, commands) = self.queue.evict();
        for work in jobs {
            refuse(work, failure.refusal());
        }
        for command in commands {
            // Whoever asked is gone.
            let _ = command.reply.send(Err(failure.to_string()));
        }
        self.failure.raise(failure);
    }
}

/// A failed device ends the thread.
struct Lost;

struct Device {
    context: DeviceContext,
    runner: Box<dyn Runner>,
    fingerprint: Arc<str>,
}

impl Device {
    fn new(context: DeviceContext, model: LoadedModel) -> Self {
        let bound = bound(model.runner.as_ref());
        let fingerprint = Arc::clone(&bound.fingerprint);
        context.lifecycle.loaded(model.served, bound);
        Self {
            context,
            runner: model.runner,
            fingerprint,
        }
    }

    fn work(mut self) {
        loop {
            let queue = Arc::clone(&self.context.queue);
            let went = match queue.next() {
                Turn::Command(command) => self.rebind(command),
                Turn::Closed => return,
                job => self.take(job),
            };
            if went.is_err() {
                return;
            }
        }
    }

    fn take(&mut self, turn: Turn<Work, Rebind>) -> Result<(), Lost> {
        match turn {
            Turn::Run(work, cancel) => self.run(work, &cancel),
            Turn::Expired(work) => {
                refuse(work, deadline::exceeded("queue"));
                Ok(())
            }
            Turn::Command(_) | Turn::Closed => Ok(()),
        }
    }

    fn run(&mut self, work: Work, cancel: &Cancel) -> Result<(), Lost> {
        if cancel.is_cancelled() {
            return Ok(());
        }
        // Time has passed since admission: policy may have changed its mind, the binding may be another one. Not that
        // the permit may have run out: it was good for admission, and who waits in a long queue must not lose the
        // place for it.
        let allowed = self.context.lifecycle.still_allows(&work.fingerprint);
        if let Err(error) = allowed.and_then(|()| self.is_bound_to(&work.fingerprint)) {
            refuse(work, error.with("stage", "dispatch"));
            return Ok(());
        }
        let Work {
            plan,
            parent,
            queued,
            deadline,
            progress,
            reply,
            ..
        } = work;
        let lengths = match parent {
            Some(_) => plan
                .plan
                .sequences
                .iter()
                .map(|sequence| sequence.token_ids.len())
                .collect(),
            None => Vec::new(),
        };
        let dispatched = Instant::now();
        let mut observer = Observer {
            pulse: &self.context.pulse,
            cancel,
            deadline,
            dispatched,
            progress,
            keep: parent.is_some(),
            segments: Vec::new(),
        };
        self.context.pulse.start();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            self.runner.forward(&plan.plan, &mut observer)
        }));
        self.context.pulse.stop();
        let segments = observer.segments;
        // Ends the caller's progress stream before the outcome is there.
        drop(observer.progress);
        self.context.queue.ran_for(dispatched.elapsed());

        let (result, lost) = match ran {
            Ok(Ok(output)) => (Ok((plan, output)), None),
            Ok(Err(error)) => {
                let lost = fatal(&error);
                (Err(refusal(&error, deadline)), lost)
            }
            Err(_) => {
                let failure = DeviceFailure::Panicked;
                (Err(failure.refusal()), Some(failure))
            }
        };
        let outcome = Outcome {
            result,
            dispatched: Some(dispatched),
            segments,
            lengths,
        };
        if let (Err(unread), Some(parent)) = (reply.send(outcome), parent) {
            // The caller is gone and cannot record its spans any more.
            spans::record(&parent, queued, &unread);
        }
        match lost {
            None => Ok(()),
            Some(failure) => {
                self.context.fail(failure);
                Err(Lost)
            }
        }
    }

    fn is_bound_to(&self, fingerprint: &str) -> Result<(), ServiceError> {
        if *self.fingerprint == *fingerprint {
            Ok(())
        } else {
            Err(swapped())
        }
    }

    /// Those who were admitted for the former binding run on it first; nobody new is admitted for it.
    fn rebind(&mut self, command: Rebind) -> Result<(), Lost> {
        let queue = Arc::clone(&self.context.queue);
        queue.hold();
        while let Some(turn) = queue.next_waiting() {
            self.take(turn)?;
        }
        let swapped = catch_unwind(AssertUnwindSafe(|| self.runner.rebind(&command.preferences)));
        let Ok(swapped) = swapped else {
            let _ = command.reply.send(Err(DeviceFailure::Panicked.to_string()));
            self.context.fail(DeviceFailure::Panicked);
            return Err(Lost);
        };
        // Also after a failure: the report then says why the former binding stays.
        let bound = bound(self.runner.as_ref());
        self.fingerprint = Arc::clone(&bound.fingerprint);
        self.context.lifecycle.rebound(bound);
        queue.release();
        let lost = swapped.as_ref().err().and_then(fatal);
        let answer = swapped
            .map(|()| Arc::clone(&self.fingerprint))
            .map_err(|error| error.to_string());
        let _ = command.reply.send(answer);
        match lost {
            None => Ok(()),
            Some(failure) => {
                self.context.fail(failure);
                Err(Lost)
            }
        }
    }
}

/// The binding has changed since the caller looked: come back with a new permit.
pub(crate) fn swapped() -> ServiceError {
    ServiceError::unavailable(
        "FINGERPRINT_MISMATCH",
        "the plan is for another binding than the one in force",
    )
    .retry_after(crate::reason::RETRY)
}

fn bound(runner: &dyn Runner) -> Bound {
    Bound {
        device: snapshot::device(&runner.device()),
        report: runner.report().clone(),
        unbound: runner.is_bound().err().unwrap_or_default(),
        fingerprint: runner.fingerprint().into(),
    }
}

fn refuse(work: Work, error: ServiceError) {
    // An unread refusal needs no other reader.
    let _ = work.reply.send(Outcome {
        result: Err(error),
        dispatched: None,
        segments: Vec::new(),
        lengths: Vec::new(),
    });
}

fn refusal(error: &EngineError, deadline: Option<Instant>) -> ServiceError {
    match error {
        EngineError::Cancelled if deadline.is_some_and(|at| at <= Instant::now()) => {
            deadline::exceeded("run")
        }
        EngineError::Cancelled => ServiceError::cancelled("CANCELLED", "the caller went away"),
        EngineError::NotFinite { .. } => plan::not_finite(),
        EngineError::InvalidPlan { field, reason } => ServiceError::invalid_argument(
            "INVALID_REQUEST",
            "the plan is not valid",
        )
        .field(field.to_string(), "INVALID", reason.to_string()),
        EngineError::NotBound { reasons } => Reason::new("KERNEL_NOT_BOUND", reasons.join("; ")).refusal(),
        EngineError::Kernel { family, backend, .. } => {
            ServiceError::internal("KERNEL_FAILED", "a kernel failed")
                .with("kernel_family", family.to_string())
                .with("kernel_backend", backend.to_string())
        }
        _ => ServiceError::internal("KERNEL_FAILED", "the forward pass failed"),
    }
}

/// Whether the engine can go on after this error.
fn fatal(error: &EngineError) -> Option<DeviceFailure> {
    match error {
        EngineError::Poisoned { .. } => Some(DeviceFailure::Poisoned(error.to_string())),
        _ => None,
    }
}

struct Observer<'a> {
    pulse: &'a Pulse,
    cancel: &'a Cancel,
    deadline: Option<Instant>,
    dispatched: Instant,
    progress: Option<mpsc::Sender<v1::SegmentEvent>>,
    keep: bool,
    segments: Vec<SegmentDone>,
}

impl ForwardObserver for Observer<'_> {
    fn segment(&mut self, event: &SegmentDone) -> ControlFlow<()> {
        self.pulse.beat();
        if let Some(progress) = &self.progress {
            // A reader that is behind loses events, never time of the device.
            let _ = progress.try_send(segment_event(event, self.dispatched));
        }
        if self.keep {
            self.segments.push(event.clone());
        }
        if self.cancel.is_cancelled() || self.deadline.is_some_and(|at| at <= Instant::now()) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

fn segment_event(event: &SegmentDone, dispatched: Instant) -> v1::SegmentEvent {
    let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    v1::SegmentEvent {
        step: 0,
        sequence: count(event.sequence),
        segment: count(event.segment),
        segments: count(event.segments),
        first_layer: count(event.layers.start),
        end_layer: count(event.layers.end),
        elapsed: Some(wire::duration(event.end.saturating_duration_since(dispatched))),
    }
}
