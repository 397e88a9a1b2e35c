//! Model folders: every spelling that loads, everything that is refused, and what loading costs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod adapter;
mod broken;
mod cost;
mod damage;
mod folder;
mod spellings;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");
