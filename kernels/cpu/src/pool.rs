//! The threads of the CPU device.

use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::LoadError;

/// Threads that loading, probing and serving share.
#[derive(Clone, Debug)]
pub struct Pool(Arc<ThreadPool>);

impl Pool {
    /// A pool of so many threads; none: one per processor.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(threads: Option<usize>) -> Result<Self, LoadError> {
        let builder = ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0));
        let builder = builder.thread_name(|index| format!("deltagate-cpu-{index}"));
        Ok(Self(Arc::new(
            builder
                .build()
                .map_err(|error| LoadError::Device(error.to_string()))?,
        )))
    }

    /// Runs `f` on the pool: parallel loops inside use its threads.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.install(f)
    }
}
