//! What goes to standard output, and how a command fails.

use std::{fmt, process::ExitCode};

use serde::Serialize;

/// Where and how results are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON document instead of text.
    pub(crate) json: bool,
}

/// Why a command failed, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    reasons: Vec<String>,
}

impl Failure {
    /// It was tried and did not work: exit code 1.
    pub(crate) fn failed(reason: impl fmt::Display) -> Self {
        Self {
            code: 1,
            reasons: vec![reason.to_string()],
        }
    }

    /// Wrong use, configuration or input: exit code 2.
    pub(crate) fn usage(reason: impl fmt::Display) -> Self {
        Self {
            code: 2,
            reasons: vec![reason.to_string()],
        }
    }

    /// Not ready: exit code 3, with every reason.
    pub(crate) fn not_ready(reasons: Vec<String>) -> Self {
        Self { code: 3, reasons }
    }

    /// A service's own exit code.
    pub(crate) fn with_code(code: u8, reason: impl fmt::Display) -> Self {
        Self {
            code,
            reasons: vec![reason.to_string()],
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

#[derive(Serialize)]
struct FailureDocument<'a> {
    error: &'a str,
    reasons: &'a [String],
}

#[allow(clippy::print_stdout, clippy::print_stderr)]
impl Output {
    /// Prints a JSON document, or the text that `text` makes.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            println!(
                "{}",
                serde_json::to_string_pretty(value).map_err(Failure::failed)?
            );
        } else {
            println!("{}", text(value));
        }
        Ok(())
    }

    /// Prints one line of progress for a person; nothing with `--json`.
    pub(crate) fn note(self, line: impl fmt::Display) {
        if !self.json {
            eprintln!("{line}");
        }
    }

    /// Prints why a command failed and gives its exit code.
    pub(crate) fn fail(self, failure: &Failure) -> ExitCode {
        if self.json {
            let error = failure.reasons.first().map_or("failed", String::as_str);
            let document = FailureDocument {
                error,
                reasons: &failure.reasons,
            };
            println!("{}", serde_json::to_string_pretty(&document).unwrap_or_default());
        } else {
            for reason in &failure.reasons {
                eprintln!("deltagate: {reason}");
            }
        }
        ExitCode::from(failure.code)
    }
}
