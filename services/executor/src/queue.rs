//! The admission queue between the handlers and the device thread: bounded in requests and in tokens, strictly
//! first come, first served.
//!
//! A caller that is admitted holds a [`Place`]. Dropping it gives the place back: a waiting job leaves the queue at
//! once, a dispatched one sees its [`Cancel`] flag at the next segment boundary. A job goes straight to the device,
//! without counting against the bounds, only when the device is idle and nobody waits; so a newcomer never passes
//! one that was refused room for its size.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most waiting requests.
    pub max_requests: usize,
    /// Most tokens over all waiting requests.
    pub max_tokens: u64,
}

/// Why a job was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The queue has no room for another request, or none for so many tokens.
    #[error("the queue is full")]
    Full {
        /// When room is likely.
        retry_after: Duration,
    },
    /// Kernels are being swapped, or were since the job was checked.
    #[error("kernels are swapped")]
    Held,
    /// The executor takes nothing any more.
    #[error("the queue is closed")]
    Closed,
}

const WAITING: u8 = 0;
const DISPATCHED: u8 = 1;
const CANCELLED: u8 = 2;

/// The time between two swaps of kernels. What was checked in one era is not admitted in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era(u64);

/// Whether the caller of a job is still there. Shared by its place and by the device thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<AtomicU8>);

impl Cancel {
    /// True when the caller is gone: stop at the next segment boundary.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }
}

/// A place in the queue, held by the caller. Dropping it cancels the job.
#[derive(Debug)]
pub(crate) struct Place<J, C> {
    id: u64,
    cancel: Cancel,
    queue: Arc<Queue<J, C>>,
    /// Jobs ahead of this one when it was admitted, the running one included.
    pub position: u32,
}

impl<J, C> Place<J, C> {
    /// True once the device thread has taken the job.
    pub(crate) fn is_dispatched(&self) -> bool {
        self.cancel.0.load(Ordering::Acquire) != WAITING
    }
}

impl<J, C> Drop for Place<J, C> {
    fn drop(&mut self) {
        self.cancel.0.store(CANCELLED, Ordering::Release);
        // The job is dropped after the lock is released: its destructor is not ours.
        let _job = self.queue.withdraw(self.id);
    }
}

/// What the device thread does next.
#[derive(Debug)]
pub(crate) enum Turn<J, C> {
    /// Run this job.
    Run(J, Cancel),
    /// Its deadline passed while it waited: answer it, do not run it.
    Expired(J),
    /// Do this between two jobs.
    Command(C),
    /// The queue is closed and empty: end.
    Closed,
}

/// Admission of jobs `J`, and commands `C` that the device thread carries out between jobs.
#[derive(Debug)]
pub(crate) struct Queue<J, C> {
    limits: Limits,
    /// The device thread looks for the next turn without sleeping.
    busy_poll: bool,
    state: Mutex<State<J, C>>,
    turn: Condvar,
}

#[derive(Debug)]
struct State<J, C> {
    waiting: VecDeque<Waiting<J>>,
    commands: VecDeque<C>,
    counted: usize,
    tokens: u64,
    gate: Gate,
    /// The device thread waits in `next` and nothing was handed to it.
    idle: bool,
    next_id: u64,
    era: u64,
    mean_run: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Held,
    Closed,
}

#[derive(Debug)]
struct Waiting<J> {
    id: u64,
    job: J,
    /// Tokens counted against the bound.
    tokens: u64,
    /// Handed to an idle device: not counted.
    direct: bool,
    deadline: Option<Instant>,
    cancel: Cancel,
}

/// Before anything ran, a retry is suggested after this time.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Looks at the queue are so many spins apart: about a microsecond, which leaves the lock to others.
const SPINS: u32 = 32;
const LONGEST_RETRY: Duration = Duration::from_secs(5);

impl<J, C> Queue<J, C> {
    /// An empty, open queue.
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            commands: VecDeque::new(),
            counted: 0,
            tokens: 0,
            gate: Gate::Open,
            idle: false,
            next_id: 0,
            era: 0,
            mean_run: Duration::ZERO,
        };
        Self {
            limits,
            busy_poll: false,
            state: Mutex::new(state),
            turn: Condvar::new(),
        }
    }

    /// The same, whose device thread never sleeps while it waits: a job is taken within microseconds, for a core.
    pub(crate) fn busy_polled(self, busy_poll: bool) -> Self {
        Self { busy_poll, ..self }
    }

    /// The era of this moment. Take it before looking at what is bound.
    pub(crate) fn era(&self) -> Era {
        Era(self.state.lock().era)
    }

    /// Puts a job of so many tokens, checked in this era, at the end of the queue.
    pub(crate) fn admit(
        self: &Arc<Self>,
        job: J,
        tokens: u64,
        deadline: Option<Instant>,
        era: Era,
    ) -> Result<Place<J, C>, Refused> {
        let mut state = self.state.lock();
        match state.gate {
            Gate::Open if state.era == era.0 => {}
            Gate::Open | Gate::Held => return Err(Refused::Held),
            Gate::Closed => return Err(Refused::Closed),
        }
        let direct = state.idle && state.waiting.is_empty();
        if !direct {
            let tokens_then = state.tokens.saturating_add(tokens);
            if state.counted >= self.limits.max_requests || tokens_then > self.limits.max_tokens {
                return Err(Refused::Full {
                    retry_after: state.retry_after(),
                });
            }
            state.counted += 1;
            state.tokens = tokens_then;
        }
        // A direct job that the device has not picked up yet is the running one.
        let ahead = state.waiting.iter().filter(|waiting| !waiting.direct).count() + usize::from(!state.idle);
        state.idle = false;
        let id = state.next_id;
        state.next_id += 1;
        let cancel = Cancel::default();
        state.waiting.push_back(Waiting {
            id,
            job,
            tokens,
            direct,
            deadline,
            cancel: cancel.clone(),
        });
        drop(state);
        self.turn.notify_one();
        let position = u32::try_from(ahead).unwrap_or(u32::MAX);
        Ok(Place {
            id,
            cancel,
            queue: Arc::clone(self),
            position,
        })
    }

    /// Asks the device thread to do something between two jobs. Gives it back when the queue is closed.
    pub(crate) fn command(&self, command: C) -> Result<(), C> {
        let mut state = self.state.lock();
        if state.gate == Gate::Closed {
            return Err(command);
        }
        state.commands.push_back(command);
        drop(state);
        self.turn.notify_one();
        Ok(())
    }

    /// Waits for the next thing to do. Commands come before jobs.
    pub(crate) fn next(&self) -> Turn<J, C> {
        let mut state = self.state.lock();
        loop {
            if let Some(command) = state.commands.pop_front() {
                state.idle = false;
                return Turn::Command(command);
            }
            if let Some(turn) = state.pop(Instant::now()) {
                return turn;
            }
            if state.gate == Gate::Closed {
                return Turn::Closed;
            }
            state.idle = true;
            if self.busy_poll {
                MutexGuard::unlocked(&mut state, || (0..SPINS).for_each(|_| std::hint::spin_loop()));
            } else {
                self.turn.wait(&mut state);
            }
        }
    }

    /// The next waiting job, or none: what is left to run before a swap.
    pub(crate) fn next_waiting(&self) -> Option<Turn<J, C>> {
        self.state.lock().pop(Instant::now())
    }

    /// Refuses newcomers until [`Queue::release`]; those who wait keep their places. Begins an era, as does the
    /// release: whoever looked at the bindings before or meanwhile has to look again.
    pub(crate) fn hold(&self) {
        let mut state = self.state.lock();
        state.era += 1;
        if state.gate == Gate::Open {
            state.gate = Gate::Held;
        }
    }

    /// Admits again after [`Queue::hold`].
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.era += 1;
        if state.gate == Gate::Held {
            state.gate = Gate::Open;
        }
    }

    /// Refuses newcomers for good. Those who wait are still run.
    pub(crate) fn close(&self) {
        self.state.lock().gate = Gate::Closed;
        self.turn.notify_all();
    }

    /// Takes out everything that waits, to be answered by the caller of this function.
    pub(crate) fn evict(&self) -> (Vec<J>, Vec<C>) {
        let mut state = self.state.lock();
        state.counted = 0;
        state.tokens = 0;
        let commands = state.commands.drain(..).collect();
        let jobs = state.waiting.drain(..).map(|waiting| waiting.job).collect();
        (jobs, commands)
    }

    /// Tells how long a job ran, from which the time of a retry is estimated.
    pub(crate) fn ran_for(&self, run: Duration) {
        let mut state = self.state.lock();
        state.mean_run = if state.mean_run.is_zero() {
            run
        } else {
            (state.mean_run * 7 + run) / 8
        };
    }

    fn withdraw(&self, id: u64) -> Option<J> {
        let mut state = self.state.lock();
        let index = state.waiting.iter().position(|waiting| waiting.id == id)?;
        let gone = state.waiting.remove(index)?;
        // It was handed to a device thread that has not woken up yet.
        state.idle |= gone.direct;
        state.uncount(&gone);
        Some(gone.job)
    }
}

impl<J, C> State<J, C> {
    fn pop(&mut self, now: Instant) -> Option<Turn<J, C>> {
        let next = self.waiting.pop_front()?;
        self.idle = false;
        self.uncount(&next);
        if next.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Turn::Expired(next.job));
        }
        // A place that is dropped at this very moment has stored CANCELLED already; keep it.
        let _ = next
            .cancel
            .0
            .compare_exchange(WAITING, DISPATCHED, Ordering::AcqRel, Ordering::Acquire);
        Some(Turn::Run(next.job, next.cancel))
    }

    fn uncount(&mut self, waiting: &Waiting<J>) {
        if !waiting.direct {
            self.counted -= 1;
            self.tokens -= waiting.tokens;
        }
    }

    fn retry_after(&self) -> Duration {
        let jobs = u32::try_from(self.waiting.len() + 1).unwrap_or(u32::MAX);
        self.mean_run
            .saturating_mul(jobs)
            .clamp(FIRST_RETRY, LONGEST_RETRY)
    }
}

#[cfg(test)]
mod tests;
