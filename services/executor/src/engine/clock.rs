//! Time per kernel family: two reads of the clock per call, always on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_kernels_api::KernelFamily;

use super::KernelSpan;

#[derive(Clone, Copy)]
struct Entry {
    first_start: Instant,
    last_end: Instant,
    busy: Duration,
    launches: u64,
}

/// What each family did so far.
#[derive(Default)]
pub(super) struct Clock {
    entries: [Option<Entry>; KernelFamily::ALL.len()],
}

const fn index(family: KernelFamily) -> usize {
    family as usize
}

impl Clock {
    /// Adds calls of a family that ran from `start` to `end`.
    pub(super) fn add(
        &mut self,
        family: KernelFamily,
        start: Instant,
        end: Instant,
        busy: Duration,
        launches: u64,
    ) {
        let entry = self.entries[index(family)].get_or_insert(Entry {
            first_start: start,
            last_end: end,
            busy: Duration::ZERO,
            launches: 0,
        });
        entry.first_start = entry.first_start.min(start);
        entry.last_end = entry.last_end.max(end);
        entry.busy += busy;
        entry.launches += launches;
    }

    /// Sum over the families.
    pub(super) fn busy(&self) -> Duration {
        self.entries.iter().flatten().map(|entry| entry.busy).sum()
    }

    /// Adds what another clock counted.
    pub(super) fn merge(&mut self, other: &Self) {
        for family in KernelFamily::ALL {
            if let Some(e) = &other.entries[index(family)] {
                self.add(family, e.first_start, e.last_end, e.busy, e.launches);
            }
        }
    }

    /// Families that did something, in their order.
    pub(super) fn spans(&self, backend: impl Fn(KernelFamily) -> Arc<str>) -> Vec<KernelSpan> {
        let span = |family: KernelFamily| {
            let entry = self.entries[index(family)]?;
            Some(KernelSpan {
                family,
                backend: backend(family),
                first_start: entry.first_start,
                last_end: entry.last_end,
                busy: entry.busy,
                launches: entry.launches,
            })
        };
        KernelFamily::ALL.into_iter().filter_map(span).collect()
    }
}
