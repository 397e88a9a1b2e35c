//! Which stage a call is in, for the error that ends it at its deadline.

use parking_lot::Mutex;

/// Name of the current stage.
pub(super) struct Stage(Mutex<&'static str>);

impl Stage {
    pub(super) fn new() -> Self {
        Self(Mutex::new("admit"))
    }

    pub(super) fn set(&self, name: &'static str) {
        *self.0.lock() = name;
    }

    pub(super) fn name(&self) -> &'static str {
        *self.0.lock()
    }
}
