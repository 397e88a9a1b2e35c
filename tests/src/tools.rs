//! Programs of other people that ask a mesh: what `tests/scripts/tools.sh` has put into `.tools`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    process::{self, Run},
    tree::root,
};

/// A program of `.tools`, by its path there, such as `bin/buf`.
pub fn program(path: &str) -> anyhow::Result<PathBuf> {
    let program = root().join(".tools").join(path);
    ensure!(
        program.is_file(),
        "{} is missing: get it with `bash tests/scripts/tools.sh`",
        program.display()
    );
    Ok(program)
}

/// Runs a program of `.tools` to its end.
pub async fn run(path: &str, arguments: &[&str]) -> anyhow::Result<Run> {
    process::run(&program(path)?.display().to_string(), arguments, &[]).await
}

/// An environment with the System-One client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// As `pip install typesafe-sdk` gives it.
    Plain,
    /// With its extra `zstd`: it compresses what is longer than 1 KiB.
    Zstd,
}

impl Sdk {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Zstd];

    /// Runs a command of `tests/clients/sdk.py` against this base URL, and gives what it printed.
    pub async fn run(self, command: &str, base_url: &str) -> anyhow::Result<Value> {
        let python = match self {
            Self::Plain => "sdk/bin/python",
            Self::Zstd => "sdk-zstd/bin/python",
        };
        let script = root().join("tests/clients/sdk.py").display().to_string();
        let run = run(python, &[&script, command, base_url]).await?;
        ensure!(run.code == Some(0), "sdk.py {command} ({self:?}): {}", run.err);
        run.json().context("sdk.py")
    }
}
