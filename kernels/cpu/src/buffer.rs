//! Memory that an op is going to write entirely.

use std::cell::Cell;

use crate::element::Element;

thread_local! {
    static POISON: Cell<bool> = const { Cell::new(false) };
}

/// Memory for `count` results. While poisoned it holds NaN, so that an element that is never written is seen.
pub(crate) fn output<E: Element>(count: usize) -> Vec<E> {
    vec![if POISON.get() { E::NAN } else { E::ZERO }; count]
}

/// Runs `f` with the outputs of this thread's ops poisoned.
pub(crate) fn poisoned<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            POISON.set(self.0);
        }
    }
    let _restore = Restore(POISON.replace(true));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_ends_with_its_closure_also_by_panic() {
        assert!(poisoned(|| output::<f32>(3)).iter().all(|v| v.is_nan()));
        assert_eq!(output::<f32>(2), [0.0, 0.0]);
        let panicked = std::panic::catch_unwind(|| poisoned(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err());
        assert_eq!(output::<f32>(2), [0.0, 0.0]);
    }
}
