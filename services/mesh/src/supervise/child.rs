//! The life of one child: start, wait, restart; drain and kill at the end.

use std::{path::PathBuf, process::Stdio, sync::Arc, time::Instant};

use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::{ChildSpec, Statuses, SuperviseError, SuperviseOptions, output};
use crate::client::Backoff;

/// Keeps one child alive until `stop` is cancelled.
pub(super) async fn keep_alive(
    program: PathBuf,
    spec: ChildSpec,
    options: Arc<SuperviseOptions>,
    width: usize,
    statuses: Statuses,
    stop: CancellationToken,
) -> Result<(), SuperviseError> {
    let mut backoff = Backoff::new(options.first_restart, options.slowest_restart);
    loop {
        let started = Instant::now();
        let mut child = spawn(&program, &spec, width).map_err(|source| SuperviseError::Spawn {
            name: spec.name.clone(),
            source,
        })?;
        // Taken out, because `Child::wait` would close it, and closing it asks the child to drain.
        let lifeline = child.stdin.take();
        set_pid(&statuses, &spec.name, child.id());
        tracing::info!(child = spec.name, pid = child.id(), "started");
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => {
                drop(lifeline);
                drain(&mut child, &spec.name, &options).await;
                set_pid(&statuses, &spec.name, None);
                return Ok(());
            }
        };
        set_pid(&statuses, &spec.name, None);
        let code = status.as_ref().ok().and_then(std::process::ExitStatus::code);
        if let Some(code) = code.filter(|code| options.fatal_exit_codes.contains(code)) {
            return Err(SuperviseError::Fatal {
                name: spec.name,
                code,
            });
        }
        if started.elapsed() >= options.healthy_after {
            backoff.reset();
        }
        let delay = backoff.delay();
        let ended = status.map_or_else(|e| e.to_string(), |s| s.to_string());
        tracing::warn!(
            child = spec.name,
            ended,
            delay_ms = delay.as_millis() as u64,
            "ended, restarting"
        );
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.cancelled() => return Ok(()),
        }
        if let Some(status) = statuses.lock().get_mut(&spec.name) {
            status.restarts += 1;
        }
    }
}

fn spawn(program: &PathBuf, spec: &ChildSpec, width: usize) -> std::io::Result<Child> {
    let mut child = Command::new(program)
        .args(&spec.args)
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The terminal's Ctrl-C goes to the supervisor only, which drains the children in its own way.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let prefix = format!("{:width$} | ", spec.name);
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(output::forward(stdout, tokio::io::stdout(), prefix.clone()));
    }
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(output::forward(stderr, tokio::io::stderr(), prefix));
    }
    Ok(child)
}

/// Waits for a child whose lifeline is closed, then kills it.
async fn drain(child: &mut Child, name: &str, options: &SuperviseOptions) {
    if tokio::time::timeout(options.drain, child.wait()).await.is_err() {
        tracing::warn!(child = name, "did not end in time, killing it");
        // It may have ended just now.
        let _ = child.kill().await;
    }
}

fn set_pid(statuses: &Statuses, name: &str, pid: Option<u32>) {
    if let Some(status) = statuses.lock().get_mut(name) {
        status.pid = pid;
    }
}
