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

use parking_lot::{Condvar, Mutex};

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most waiting requests.
    pub max_requests: usize,
    /// Most tokens over all waiting requests.
    pub max_tokens: u64,
}

/// Why a job was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue has no room for another request, or none for so many tokens.
    #[error("the queue is full")]
    Full {
        /// When room is likely.
        retry_after: Duration,
    },
    /// A kernel swap waits for the admitted jobs to end.
    #[error("kernels are being swapped")]
    Held,
    /// The executor takes nothing any more.
    #[error("the queue is closed")]
    Closed,
}

const WAITING: u8 = 0;
const DISPATCHED: u8 = 1;
const CANCELLED: u8 = 2;

/// Whether the caller of a job is still there. Shared by its place and by the device thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicU8>);

impl Cancel {
    /// True when the caller is gone: stop at the next segment boundary.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }
}

/// A place in the queue, held by the caller. Dropping it cancels the job.
#[derive(Debug)]
pub struct Place<J, C> {
    id: u64,
    cancel: Cancel,
    queue: Arc<Queue<J, C>>,
    /// Jobs ahead of this one when it was admitted, the running one included.
    pub position: u32,
}

impl<J, C> Place<J, C> {
    /// True once the device thread has taken the job.
    pub fn is_dispatched(&self) -> bool {
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
pub enum Turn<J, C> {
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
pub struct Queue<J, C> {
    limits: Limits,
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
const LONGEST_RETRY: Duration = Duration::from_secs(5);

impl<J, C> Queue<J, C> {
    /// An empty, open queue.
    pub fn new(limits: Limits) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            commands: VecDeque::new(),
            counted: 0,
            tokens: 0,
            gate: Gate::Open,
            idle: false,
            next_id: 0,
            mean_run: Duration::ZERO,
        };
        Self { limits, state: Mutex::new(state), turn: Condvar::new() }
    }

    /// Puts a job of so many tokens at the end of the queue.
    pub fn admit(self: &Arc<Self>, job: J, tokens: u64, deadline: Option<Instant>) -> Result<Place<J, C>, Refused> {
        let mut state = self.state.lock();
        match state.gate {
            Gate::Open => {}
            Gate::Held => return Err(Refused::Held),
            Gate::Closed => return Err(Refused::Closed),
        }
        let direct = state.idle && state.waiting.is_empty();
        if !direct {
            let tokens_then = state.tokens.saturating_add(tokens);
            if state.counted >= self.limits.max_requests || tokens_then > self.limits.max_tokens {
                return Err(Refused::Full { retry_after: state.retry_after() });
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
        state.waiting.push_back(Waiting { id, job, tokens, direct, deadline, cancel: cancel.clone() });
        drop(state);
        self.turn.notify_one();
        let position = u32::try_from(ahead).unwrap_or(u32::MAX);
        Ok(Place { id, cancel, queue: Arc::clone(self), position })
    }

    /// Asks the device thread to do something between two jobs. Gives it back when the queue is closed.
    pub fn command(&self, command: C) -> Result<(), C> {
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
    pub fn next(&self) -> Turn<J, C> {
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
            self.turn.wait(&mut state);
        }
    }

    /// The next waiting job, or none: what is left to run before a swap.
    pub fn next_waiting(&self) -> Option<Turn<J, C>> {
        self.state.lock().pop(Instant::now())
    }

    /// Refuses newcomers until [`Queue::release`]; those who wait keep their places.
    pub fn hold(&self) {
        let mut state = self.state.lock();
        if state.gate == Gate::Open {
            state.gate = Gate::Held;
        }
    }

    /// Admits again after [`Queue::hold`].
    pub fn release(&self) {
        let mut state = self.state.lock();
        if state.gate == Gate::Held {
            state.gate = Gate::Open;
        }
    }

    /// Refuses newcomers for good. Those who wait are still run.
    pub fn close(&self) {
        self.state.lock().gate = Gate::Closed;
        self.turn.notify_all();
    }

    /// Takes out everything that waits, to be answered by the caller of this function.
    pub fn evict(&self) -> (Vec<J>, Vec<C>) {
        let mut state = self.state.lock();
        state.counted = 0;
        state.tokens = 0;
        let commands = state.commands.drain(..).collect();
        let jobs = state.waiting.drain(..).map(|waiting| waiting.job).collect();
        (jobs, commands)
    }

    /// Tells how long a job ran, from which the time of a retry is estimated.
    pub fn ran_for(&self, run: Duration) {
        let mut state = self.state.lock();
        state.mean_run = if state.mean_run.is_zero() { run } else { (state.mean_run * 7 + run) / 8 };
    }

    /// Requests and tokens that wait and count against the bounds.
    pub fn depth(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.counted, state.tokens)
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
        let _ = next.cancel.0.compare_exchange(WAITING, DISPATCHED, Ordering::AcqRel, Ordering::Acquire);
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
        self.mean_run.saturating_mul(jobs).clamp(FIRST_RETRY, LONGEST_RETRY)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    type TestQueue = Queue<u32, &'static str>;

    fn queue(max_requests: usize, max_tokens: u64) -> Arc<TestQueue> {
        Arc::new(Queue::new(Limits { max_requests, max_tokens }))
    }

    fn run(turn: Turn<u32, &'static str>) -> u32 {
        match turn {
            Turn::Run(job, _) => job,
            other => panic!("not a job to run: {other:?}"),
        }
    }

    /// Puts the device thread in `next` and waits until it is seen idle.
    fn idle_device(queue: &Arc<TestQueue>) -> std::thread::JoinHandle<Turn<u32, &'static str>> {
        let device = std::thread::spawn({
            let queue = Arc::clone(queue);
            move || queue.next()
        });
        while !queue.state.lock().idle {
            std::thread::yield_now();
        }
        device
    }

    #[test]
    fn runs_in_the_order_of_admission() {
        let queue = queue(8, 100);
        let places: Vec<_> = (0..5).map(|job| queue.admit(job, 1, None).unwrap()).collect();
        assert_eq!(places.iter().map(|place| place.position).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let order: Vec<u32> = (0..5).map(|_| run(queue.next())).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn refuses_one_request_too_many() {
        let queue = queue(2, 100);
        let _first = queue.admit(0, 1, None).unwrap();
        let _second = queue.admit(1, 1, None).unwrap();
        assert!(matches!(queue.admit(2, 1, None), Err(Refused::Full { .. })));
        assert_eq!(run(queue.next()), 0);
        assert!(queue.admit(3, 1, None).is_ok());
    }

    #[test]
    fn refuses_one_token_too_many() {
        let queue = queue(8, 10);
        let _first = queue.admit(0, 6, None).unwrap();
        assert!(matches!(queue.admit(1, 5, None), Err(Refused::Full { .. })));
        let _second = queue.admit(2, 4, None).unwrap();
        assert_eq!(queue.depth(), (2, 10));
        assert!(matches!(queue.admit(3, u64::MAX, None), Err(Refused::Full { .. })));
    }

    #[test]
    fn an_idle_device_takes_a_job_of_any_size_but_only_one() {
        let queue = queue(0, 0);
        let device = idle_device(&queue);
        let place = queue.admit(7, 1_000_000, None).unwrap();
        assert_eq!(place.position, 0);
        assert_eq!(run(device.join().unwrap()), 7);
        assert_eq!(queue.depth(), (0, 0));
        assert!(matches!(queue.admit(8, 1, None), Err(Refused::Full { .. })), "the device is busy and no one may wait");
    }

    #[test]
    fn a_dropped_place_is_free_at_once() {
        let queue = queue(1, 10);
        let place = queue.admit(0, 10, None).unwrap();
        assert!(matches!(queue.admit(1, 1, None), Err(Refused::Full { .. })));
        drop(place);
        assert_eq!(queue.depth(), (0, 0));
        let _next = queue.admit(2, 10, None).unwrap();
        assert_eq!(run(queue.next()), 2, "the one that left is not run");
    }

    #[test]
    fn a_dropped_place_of_a_dispatched_job_raises_its_flag() {
        let queue = queue(1, 10);
        let place = queue.admit(0, 1, None).unwrap();
        assert!(!place.is_dispatched());
        let Turn::Run(_, cancel) = queue.next() else { panic!("not a job") };
        assert!(place.is_dispatched());
        assert!(!cancel.is_cancelled());
        drop(place);
        assert!(cancel.is_cancelled());
    }

    #[test]
    fn an_expired_job_is_not_run() {
        let queue = queue(4, 10);
        let past = Instant::now() - Duration::from_millis(1);
        let future = Instant::now() + Duration::from_secs(60);
        let _late = queue.admit(0, 1, Some(past)).unwrap();
        let _early = queue.admit(1, 1, Some(future)).unwrap();
        assert!(matches!(queue.next(), Turn::Expired(0)));
        assert_eq!(run(queue.next()), 1);
    }

    #[test]
    fn a_hold_refuses_newcomers_and_keeps_those_who_wait() {
        let queue = queue(4, 10);
        let _place = queue.admit(0, 1, None).unwrap();
        queue.command("swap").unwrap();
        assert!(matches!(queue.next(), Turn::Command("swap")), "a command goes before jobs");
        queue.hold();
        assert_eq!(queue.admit(1, 1, None).unwrap_err(), Refused::Held);
        assert_eq!(run(queue.next_waiting().unwrap()), 0);
        assert!(queue.next_waiting().is_none());
        queue.release();
        assert!(queue.admit(2, 1, None).is_ok());
    }

    #[test]
    fn a_closed_queue_ends_after_its_last_job() {
        let queue = queue(4, 10);
        let _place = queue.admit(0, 1, None).unwrap();
        queue.close();
        queue.release();
        assert_eq!(queue.admit(1, 1, None).unwrap_err(), Refused::Closed);
        assert_eq!(queue.command("late"), Err("late"));
        assert_eq!(run(queue.next()), 0);
        assert!(matches!(queue.next(), Turn::Closed));
    }

    #[test]
    fn the_retry_grows_with_what_waits() {
        let queue = queue(2, 10);
        queue.ran_for(Duration::from_millis(100));
        let _first = queue.admit(0, 1, None).unwrap();
        let _second = queue.admit(1, 1, None).unwrap();
        let Err(Refused::Full { retry_after }) = queue.admit(2, 1, None) else { panic!("admitted") };
        assert_eq!(retry_after, Duration::from_millis(300));
    }

    #[test]
    fn many_callers_lose_and_duplicate_nothing() {
        let queue = queue(1_000, 10_000);
        let device = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let mut seen = Vec::new();
                loop {
                    match queue.next() {
                        Turn::Run(job, _) => seen.push(job),
                        Turn::Closed => return seen,
                        other => panic!("unexpected turn {other:?}"),
                    }
                }
            }
        });
        let places: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8u32)
                .map(|caller| {
                    let queue = &queue;
                    scope.spawn(move || {
                        (0..50).map(|i| queue.admit(caller * 50 + i, 1, None).unwrap()).collect::<Vec<_>>()
                    })
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        queue.close();
        let mut seen = device.join().unwrap();
        for caller in 0..8u32 {
            let own: Vec<u32> = seen.iter().copied().filter(|job| job / 50 == caller).collect();
            assert!(own.is_sorted(), "each caller's jobs run in its order");
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
        assert_eq!(queue.depth(), (0, 0));
        drop(places);
    }
}
