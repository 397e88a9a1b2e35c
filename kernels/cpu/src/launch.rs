//! `launch`: the calls of a segment, one after another.

use deltagate_kernels_api::{LaunchBackend, OpError, SegmentCalls};

/// Runs each call as soon as the one before it has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eager;

impl LaunchBackend for Eager {
    fn launch(&self, calls: &mut dyn SegmentCalls) -> Result<(), OpError> {
        (0..calls.count()).try_for_each(|index| calls.run(index))
    }
}
