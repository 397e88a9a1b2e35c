//! Real processes: the command that was just compiled, started as a user would.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};

use crate::tree::root;

/// Where the embedded model is unpacked; shared, as it is on a machine of a user.
pub fn cache_dir() -> PathBuf {
    root().join("target/tmp/deltagate-cache")
}

/// The command under test, in the same profile as the tests. Nothing of the caller's configuration reaches it.
pub fn command(binary: &str) -> Command {
    let mut command = Command::new(binary);
    command.kill_on_drop(true).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELTAGATE_") {
            command.env_remove(name);
        }
    }
    command.env("DELTAGATE_CACHE_DIR", cache_dir());
    command
}

/// One running process.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts the command with these arguments; its output is added to `log`.
    pub fn start(binary: &str, arguments: &[String], log: &Path) -> anyhow::Result<Self> {
        let file = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = command(binary)
            .args(arguments)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self { child })
    }

    /// Process id, while it runs.
    pub fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("it has ended")
    }

    /// SIGKILL, as `kill -9` does, and the wait for its end.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// A signal by name.
    pub async fn signal(&self, name: &str) -> anyhow::Result<()> {
        signal(name, self.id()?).await
    }

    /// Waits for its end, at most so long, and gives its exit code.
    pub async fn wait(&mut self, within: Duration) -> anyhow::Result<Option<i32>> {
        Ok(tokio::time::timeout(within, self.child.wait())
            .await
            .context("it still runs")??
            .code())
    }
}

/// What a run of the command gave.
#[derive(Debug)]
pub struct Run {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Run {
    /// Standard output, as one JSON document.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }
}

/// Runs the command with these arguments and environment variables to its end, at most 100 s.
pub async fn run(binary: &str, arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Run> {
    let mut command = command(binary);
    command
        .args(arguments)
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn()?;
    let output = tokio::time::timeout(Duration::from_secs(100), child.wait_with_output())
        .await
        .context("it still runs")??;
    Ok(Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

/// A fresh folder, gone with its handle.
pub fn folder() -> anyhow::Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("deltagate-test-").tempdir()?)
}

/// Writes a file, and gives its path as an argument.
pub fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<String> {
    fs::write(dir.join(name), text)?;
    Ok(dir.join(name).display().to_string())
}

/// Sends a signal by name.
pub async fn signal(name: &str, id: u32) -> anyhow::Result<()> {
    let status = Command::new("kill")
        .args([format!("-{name}"), id.to_string()])
        .status()
        .await?;
    ensure!(status.success(), "kill -{name} {id} failed");
    Ok(())
}

/// Ids and first arguments of the processes whose parent is `id`.
pub fn children(id: u32) -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| parent(*pid) == Some(id))
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let first = line.split(|b| *b == 0).nth(1)?;
            Some((pid, String::from_utf8_lossy(first).into_owned()))
        })
        .collect()
}

/// Whether a process of this id runs. A zombie does not.
pub fn is_running(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| !matches!(state.as_str(), "Z" | "X"))
}

fn parent(id: u32) -> Option<u32> {
    stat(id).map(|(_, parent)| parent)
}

/// State and parent, from `/proc/{id}/stat`. The name of the command, in parentheses, may hold anything.
fn stat(id: u32) -> Option<(String, u32)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Asks again every 20 ms until `check` gives a value, at most so long; then the last reason why not. Gives the time
/// that it took, too.
pub async fn eventually<T, F, R>(within: Duration, mut check: F) -> anyhow::Result<(T, Duration)>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<T>>,
{
    let start = Instant::now();
    loop {
        let left = within
            .saturating_sub(start.elapsed())
            .max(Duration::from_millis(200));
        let why = match tokio::time::timeout(left, check()).await {
            Ok(Ok(value)) => return Ok((value, start.elapsed())),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no answer at all".to_owned(),
        };
        if start.elapsed() > within {
            bail!("not within {within:?}: {why}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
