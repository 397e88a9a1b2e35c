//! What a panic may say: where it happened, and never what was being worked on.
//!
//! The message of a panic can quote the value at fault (a slice of a prompt, say), and the default hook prints it.

use std::{
    any::Any,
    panic::{self, PanicHookInfo},
};

/// Replaces the process's panic hook: panics are logged with their place, and with their message only when that is a
/// literal of the program. For the processes that serve; a test wants to see its own assertions.
pub fn hide_payloads() {
    panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = literal(info.payload()).unwrap_or("message withheld");
    tracing::error!(place, thread, message, "panicked");
}

/// A formatted message is a `String`; a literal is a `&'static str`.
fn literal(payload: &(dyn Any + Send)) -> Option<&'static str> {
    payload.downcast_ref::<&'static str>().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[test]
    fn a_formatted_message_is_withheld() {
        let secret = std::hint::black_box("state of the user");
        let formatted = panic::catch_unwind(|| panic!("{secret}")).unwrap_err();
        assert_eq!(literal(formatted.as_ref()), None);
        let plain = panic::catch_unwind(|| panic!("an invariant")).unwrap_err();
        assert_eq!(literal(plain.as_ref()), Some("an invariant"));
    }
}
