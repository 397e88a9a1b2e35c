//! Spans whose start and end were measured elsewhere: segments and kernel families.

use std::{
    borrow::Cow,
    time::{Instant, SystemTime},
};

use opentelemetry::{
    Context, KeyValue, global,
    trace::{Span as _, SpanBuilder, SpanKind, TraceContextExt, Tracer},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Name and value of a span attribute: `Attribute::new("deltagate.tokens", 136i64)`.
pub type Attribute = KeyValue;

/// A span to hang explicit-timestamp spans on. Cheap to clone, and may cross threads.
#[derive(Clone, Debug)]
pub struct Parent(Context);

impl Parent {
    /// The span, if its trace is sampled. `None` means that nothing needs to be recorded.
    pub fn of(span: &Span) -> Option<Self> {
        if span.is_disabled() {
            return None;
        }
        let cx = span.context();
        cx.span().span_context().is_sampled().then_some(Self(cx))
    }

    /// Records a finished span below this one, and returns it as a parent of its own.
    pub fn record(
        &self,
        name: impl Into<Cow<'static, str>>,
        start: SystemTime,
        end: SystemTime,
        attributes: Vec<Attribute>,
    ) -> Self {
        let mut span = global::tracer("deltagate").build_with_context(
            SpanBuilder::from_name(name)
                .with_kind(SpanKind::Internal)
                .with_start_time(start)
                .with_attributes(attributes),
            &self.0,
        );
        let context = span.span_context().clone();
        span.end_with_timestamp(end);
        Self(self.0.with_remote_span_context(context))
    }
}

/// Ties the monotonic clock to the wall clock, once, so that all spans of a request share one offset.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    instant: Instant,
    time: SystemTime,
}

impl Anchor {
    /// The offset as of now.
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }

    /// The wall-clock time of an instant.
    pub fn at(&self, instant: Instant) -> SystemTime {
        match instant.checked_duration_since(self.instant) {
            Some(later) => self.time.checked_add(later),
            None => self.time.checked_sub(self.instant - instant),
        }
        .unwrap_or(self.time)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    #[test]
    fn an_anchor_maps_both_directions() {
        let anchor = Anchor::now();
        let second = Duration::from_secs(1);
        assert_eq!(anchor.at(anchor.instant + second), anchor.time + second);
        if let Some(earlier) = anchor.instant.checked_sub(second) {
            assert_eq!(anchor.at(earlier), anchor.time - second);
        }
    }

    #[test]
    fn a_disabled_span_is_no_parent() {
        assert!(Parent::of(&Span::none()).is_none());
    }
}
