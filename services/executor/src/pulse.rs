//! The device's sign of life, for the watchdog: when it last finished a segment, while it runs something.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Time of the last progress, readable without stopping the device.
#[derive(Debug)]
pub(crate) struct Pulse {
    base: Instant,
    /// Milliseconds from `base` to the last progress, plus one; 0 while nothing runs.
    last: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            base: Instant::now(),
            last: AtomicU64::new(0),
        }
    }
}

impl Pulse {
    /// A job starts.
    pub(crate) fn start(&self) {
        self.beat();
    }

    /// A segment is done.
    pub(crate) fn beat(&self) {
        self.last.store(self.now(), Ordering::Release);
    }

    /// The job has ended.
    pub(crate) fn stop(&self) {
        self.last.store(0, Ordering::Release);
    }

    /// How long what runs has been without progress; zero while nothing runs.
    pub(crate) fn silence(&self) -> Duration {
        match self.last.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            last => Duration::from_millis(self.now().saturating_sub(last)),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_only_while_something_runs() {
        let pulse = Pulse::default();
        assert_eq!(pulse.silence(), Duration::ZERO);
        pulse.start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(pulse.silence() >= Duration::from_millis(15));
        pulse.beat();
        assert!(pulse.silence() < Duration::from_millis(15));
        pulse.stop();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pulse.silence(), Duration::ZERO);
    }
}
