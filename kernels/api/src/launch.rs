//! `launch` is a family of another kind: it runs the calls of a segment, not an op.

use crate::OpError;

/// The op calls of one segment, in order.
pub trait SegmentCalls {
    /// How many there are.
    fn count(&self) -> usize;

    /// Runs call `index`; calls run once each, in order.
    fn run(&mut self, index: usize) -> Result<(), OpError>;
}

/// Launches segments.
pub trait LaunchBackend: Send + Sync {
    /// Runs every call of the segment in order, and stops at the first error.
    fn launch(&self, calls: &mut dyn SegmentCalls) -> Result<(), OpError>;
}
