//! What a trace shows of a forward pass: `queue`, then `segment {i}`, and below each `kernel {family}`. Times are the
//! device's own, taken while it ran; the spans are written afterwards, and only for sampled traces.

use std::time::Instant;

use deltagate_mesh::trace::{Anchor, Attribute, Parent};

use crate::{
    device::Outcome,
    engine::{KernelSpan, SegmentDone},
};

/// Writes the spans of a job.
pub(crate) fn record(parent: &Parent, queued: Instant, outcome: &Outcome) {
    let anchor = Anchor::now();
    record_queue(parent, queued, outcome.dispatched.unwrap_or_else(Instant::now));
    for segment in &outcome.segments {
        let tokens = outcome.lengths.get(segment.sequence).copied().unwrap_or_default();
        let span = parent.record(
            format!("segment {}", segment.segment),
            anchor.at(segment.start),
            anchor.at(segment.end),
            segment_attributes(segment, tokens),
        );
        for kernel in &segment.kernels {
            span.record(
                format!("kernel {}", kernel.family),
                anchor.at(kernel.first_start),
                anchor.at(kernel.last_end),
                kernel_attributes(kernel, segment, tokens),
            );
        }
    }
}

/// Writes the time in the queue, which is all there is of a job that never ran.
pub(crate) fn record_queue(parent: &Parent, queued: Instant, left: Instant) {
    let anchor = Anchor::now();
    parent.record("queue", anchor.at(queued), anchor.at(left), Vec::new());
}

fn segment_attributes(segment: &SegmentDone, tokens: usize) -> Vec<Attribute> {
    vec![
        Attribute::new(
            "deltagate.layers",
            format!("{}..{}", segment.layers.start, segment.layers.end),
        ),
        Attribute::new("deltagate.sequence", count(segment.sequence)),
        Attribute::new("deltagate.segments", count(segment.segments)),
        Attribute::new("deltagate.tokens", count(tokens)),
    ]
}

fn kernel_attributes(kernel: &KernelSpan, segment: &SegmentDone, tokens: usize) -> Vec<Attribute> {
    vec![
        Attribute::new("deltagate.kernel.family", kernel.family.as_str()),
        Attribute::new("deltagate.kernel.backend", kernel.backend.to_string()),
        Attribute::new(
            "deltagate.kernel.busy_ns",
            i64::try_from(kernel.busy.as_nanos()).unwrap_or(i64::MAX),
        ),
        Attribute::new(
            "deltagate.kernel.launches",
            i64::try_from(kernel.launches).unwrap_or(i64::MAX),
        ),
        Attribute::new(
            "deltagate.layers",
            format!("{}..{}", segment.layers.start, segment.layers.end),
        ),
        Attribute::new("deltagate.tokens", count(tokens)),
    ]
}

fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
