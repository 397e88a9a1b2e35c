//! Bounds, order, cancellation, deadlines and swaps, without a device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

type TestQueue = Queue<u32, &'static str>;

fn queue(max_requests: usize, max_tokens: u64) -> Arc<TestQueue> {
    Arc::new(Queue::new(Limits {
        max_requests,
        max_tokens,
    }))
}

/// Requests and tokens that wait and count against the bounds.
fn depth(queue: &TestQueue) -> (usize, u64) {
    let state = queue.state.lock();
    (state.counted, state.tokens)
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
fn a_device_that_polls_takes_jobs_and_commands_and_ends_as_one_that_sleeps() {
    let limits = Limits {
        max_requests: 0,
        max_tokens: 0,
    };
    let queue: Arc<TestQueue> = Arc::new(Queue::new(limits).busy_polled(true));
    let device = idle_device(&queue);
    let _place = queue.admit(7, 1_000_000, None, queue.era()).unwrap();
    assert_eq!(run(device.join().unwrap()), 7);
    let device = idle_device(&queue);
    queue.command("swap").unwrap();
    assert!(matches!(device.join().unwrap(), Turn::Command("swap")));
    let device = idle_device(&queue);
    queue.close();
    assert!(matches!(device.join().unwrap(), Turn::Closed));
}

#[test]
fn runs_in_the_order_of_admission() {
    let queue = queue(8, 100);
    let places: Vec<_> = (0..5)
        .map(|job| queue.admit(job, 1, None, queue.era()).unwrap())
        .collect();
    assert_eq!(
        places.iter().map(|place| place.position).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    let order: Vec<u32> = (0..5).map(|_| run(queue.next())).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

#[test]
fn refuses_one_request_too_many() {
    let queue = queue(2, 100);
    let _first = queue.admit(0, 1, None, queue.era()).unwrap();
    let _second = queue.admit(1, 1, None, queue.era()).unwrap();
    assert!(matches!(
        queue.admit(2, 1, None, queue.era()),
        Err(Refused::Full { .. })
    ));
    assert_eq!(run(queue.next()), 0);
    assert!(queue.admit(3, 1, None, queue.era()).is_ok());
}

#[test]
fn refuses_one_token_too_many() {
    let queue = queue(8, 10);
    let _first = queue.admit(0, 6, None, queue.era()).unwrap();
    assert!(matches!(
        queue.admit(1, 5, None, queue.era()),
        Err(Refused::Full { .. })
    ));
    let _second = queue.admit(2, 4, None, queue.era()).unwrap();
    assert_eq!(depth(&queue), (2, 10));
    assert!(matches!(
        queue.admit(3, u64::MAX, None, queue.era()),
        Err(Refused::Full { .. })
    ));
}

#[test]
fn an_idle_device_takes_a_job_of_any_size_but_only_one() {
    let queue = queue(0, 0);
    let device = idle_device(&queue);
    let place = queue.admit(7, 1_000_000, None, queue.era()).unwrap();
    assert_eq!(place.position, 0);
    assert_eq!(run(device.join().unwrap()), 7);
    assert_eq!(depth(&queue), (0, 0));
    assert!(
        matches!(queue.admit(8, 1, None, queue.era()), Err(Refused::Full { .. })),
        "the device is busy and no one may wait"
    );
}

#[test]
fn a_dropped_place_is_free_at_once() {
    let queue = queue(1, 10);
    let place = queue.admit(0, 10, None, queue.era()).unwrap();
    assert!(matches!(
        queue.admit(1, 1, None, queue.era()),
        Err(Refused::Full { .. })
    ));
    drop(place);
    assert_eq!(depth(&queue), (0, 0));
    let _next = queue.admit(2, 10, None, queue.era()).unwrap();
    assert_eq!(run(queue.next()), 2, "the one that left is not run");
}

#[test]
fn a_dropped_place_of_a_dispatched_job_raises_its_flag() {
    let queue = queue(1, 10);
    let place = queue.admit(0, 1, None, queue.era()).unwrap();
    assert!(!place.is_dispatched());
    let Turn::Run(_, cancel) = queue.next() else {
        panic!("not a job")
    };
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
    let _late = queue.admit(0, 1, Some(past), queue.era()).unwrap();
    let _early = queue.admit(1, 1, Some(future), queue.era()).unwrap();
    assert!(matches!(queue.next(), Turn::Expired(0)));
    assert_eq!(run(queue.next()), 1);
}

#[test]
fn a_hold_refuses_newcomers_and_keeps_those_who_wait() {
    let queue = queue(4, 10);
    let _place = queue.admit(0, 1, None, queue.era()).unwrap();
    let before = queue.era();
    queue.command("swap").unwrap();
    assert!(
        matches!(queue.next(), Turn::Command("swap")),
        "a command goes before jobs"
    );
    queue.hold();
    assert_eq!(queue.admit(1, 1, None, queue.era()).unwrap_err(), Refused::Held);
    assert_eq!(run(queue.next_waiting().unwrap()), 0);
    assert!(queue.next_waiting().is_none());
    let meanwhile = queue.era();
    queue.release();
    for stale in [before, meanwhile] {
        assert_eq!(
            queue.admit(3, 1, None, stale).unwrap_err(),
            Refused::Held,
            "checked before the swap was over"
        );
    }
    assert!(queue.admit(2, 1, None, queue.era()).is_ok());
}

#[test]
fn a_closed_queue_ends_after_its_last_job() {
    let queue = queue(4, 10);
    let _place = queue.admit(0, 1, None, queue.era()).unwrap();
    queue.close();
    queue.release();
    assert_eq!(queue.admit(1, 1, None, queue.era()).unwrap_err(), Refused::Closed);
    assert_eq!(queue.command("late"), Err("late"));
    assert_eq!(run(queue.next()), 0);
    assert!(matches!(queue.next(), Turn::Closed));
}

#[test]
fn the_retry_grows_with_what_waits() {
    let queue = queue(2, 10);
    queue.ran_for(Duration::from_millis(100));
    let _first = queue.admit(0, 1, None, queue.era()).unwrap();
    let _second = queue.admit(1, 1, None, queue.era()).unwrap();
    let Err(Refused::Full { retry_after }) = queue.admit(2, 1, None, queue.era()) else {
        panic!("admitted")
    };
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
                    (0..50)
                        .map(|i| queue.admit(caller * 50 + i, 1, None, queue.era()).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        callers
            .into_iter()
            .flat_map(|caller| caller.join().unwrap())
            .collect()
    });
    queue.close();
    let mut seen = device.join().unwrap();
    for caller in 0..8u32 {
        let own: Vec<u32> = seen.iter().copied().filter(|job| job / 50 == caller).collect();
        assert!(own.is_sorted(), "each caller's jobs run in its order");
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
    assert_eq!(depth(&queue), (0, 0));
    drop(places);
}
