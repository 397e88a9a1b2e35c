//! Which of several executors takes a run: tower's power of two choices, over the runs that are outstanding on each.
//!
//! What may be chosen differs from run to run: permits expire, a request avoids what it has lost, and it stays with the
//! binding that it began with. So a balancer lives for one choice; the load that it compares lives with the executor.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures::FutureExt;
use tower::{Service, ServiceExt, balance::p2c::Balance, discover::ServiceList, load::Load};

/// What may be chosen, as the balancer sees it: always open, and its answer is itself.
struct Entrance<'a, T> {
    to: &'a T,
    outstanding: usize,
}

impl<T> Load for Entrance<'_, T> {
    type Metric = usize;

    fn load(&self) -> usize {
        self.outstanding
    }
}

impl<'a, T> Service<()> for Entrance<'a, T> {
    type Response = &'a T;
    type Error = Infallible;
    type Future = Ready<Result<&'a T, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(self.to))
    }
}

/// The less busy of two that are drawn at random; none of none.
pub(super) fn choose<'a, T>(among: &[&'a T], outstanding: impl Fn(&T) -> usize) -> Option<&'a T> {
    let first = *among.first()?;
    if among.len() == 1 {
        return Some(first);
    }
    let entrances: Vec<_> = among
        .iter()
        .map(|to| Entrance {
            to: *to,
            outstanding: outstanding(to),
        })
        .collect();
    let balance = Balance::new(ServiceList::new::<()>(entrances));
    // Every entrance is open, so the balancer never waits; if it ever did, the first one would be as good.
    let chosen = balance.oneshot(()).now_or_never();
    Some(chosen.and_then(Result::ok).unwrap_or(first))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// How often each is chosen when the loads are these.
    fn chosen(loads: &[usize], times: usize) -> Vec<usize> {
        let numbered: Vec<_> = loads.iter().copied().enumerate().collect();
        let all: Vec<_> = numbered.iter().collect();
        let mut counts = vec![0; loads.len()];
        for _ in 0..times {
            counts[choose(&all, |(_, load)| *load).unwrap().0] += 1;
        }
        counts
    }

    #[test]
    fn the_less_busy_of_two_is_chosen_and_the_busiest_never() {
        assert!(choose::<usize>(&[], |_| 0).is_none());
        assert_eq!(chosen(&[7], 3), [3]);
        assert_eq!(chosen(&[1, 0], 50), [0, 50]);
        // Of three, the busiest is always drawn together with one that is less busy.
        let counts = chosen(&[0, 9, 1], 300);
        assert!(
            counts[1] == 0 && counts[2] > 0 && counts[0] > counts[2],
            "{counts:?}"
        );
    }

    #[test]
    fn equals_share() {
        let counts = chosen(&[2, 2], 1_000);
        assert!(counts.iter().all(|count| *count > 400), "{counts:?}");
    }

    #[test]
    fn two_fill_evenly_while_nothing_ends() {
        let loads = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let all: Vec<_> = loads.iter().collect();
        for round in 1..=50 {
            for _ in 0..2 {
                let load = |load: &AtomicUsize| load.load(Ordering::Relaxed);
                choose(&all, load).unwrap().fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(
                loads.each_ref().map(|l| l.load(Ordering::Relaxed)),
                [round, round]
            );
        }
    }
}
