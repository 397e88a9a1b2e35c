//! `up`: one child process per service, kept alive, and none left behind.
//!
//! A child is running, or waiting for its restart, or stopped for good. Its stdin is a pipe from this process:
//! closing it asks for a drain, and when this process dies the kernel closes it (see [`crate::lifeline`]).

mod child;
mod output;

use std::{collections::BTreeMap, ffi::OsString, io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// One child.
#[derive(Clone, Debug)]
pub struct ChildSpec {
    /// Name of the service; prefixes its output.
    pub name: String,
    /// Arguments for the program.
    pub args: Vec<OsString>,
    /// Environment variables on top of this process's.
    pub env: Vec<(OsString, OsString)>,
}

/// How children are kept alive and ended.
#[derive(Clone, Debug)]
pub struct SuperviseOptions {
    /// Wait before the first restart.
    pub first_restart: Duration,
    /// Longest wait; each restart doubles it.
    pub slowest_restart: Duration,
    /// After running this long a child's wait starts over.
    pub healthy_after: Duration,
    /// From the drain request to the kill.
    pub drain: Duration,
    /// Exit codes that no restart heals (usage, configuration): everything stops.
    pub fatal_exit_codes: Vec<i32>,
}

impl Default for SuperviseOptions {
    fn default() -> Self {
        Self {
            first_restart: Duration::from_millis(200),
            slowest_restart: Duration::from_secs(5),
            healthy_after: Duration::from_secs(10),
            drain: Duration::from_secs(6),
            fatal_exit_codes: vec![EXIT_USAGE, EXIT_CONFIG],
        }
    }
}

/// Exit code of a wrong command line.
pub const EXIT_USAGE: i32 = 2;
/// Exit code of a wrong configuration (`EX_CONFIG`).
pub const EXIT_CONFIG: i32 = 78;

/// The set cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// A child could not be started at all.
    #[error("cannot start `{name}`")]
    Spawn {
        /// The child.
        name: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A child said that a restart is no use.
    #[error("`{name}` ended with exit code {code}, which no restart heals")]
    Fatal {
        /// The child.
        name: String,
        /// Its exit code.
        code: i32,
    },
    /// A supervising task panicked.
    #[error("supervising task panicked")]
    Panicked,
}

/// What is known of one child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildStatus {
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// How often it was restarted.
    pub restarts: u64,
}

pub(crate) type Statuses = Arc<Mutex<BTreeMap<String, ChildStatus>>>;

/// A running set of children.
#[derive(Debug)]
pub struct Supervisor {
    ends: Vec<End>,
    statuses: Statuses,
    children: JoinSet<Result<(), SuperviseError>>,
}

/// Ends one child.
#[derive(Debug)]
struct End {
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Supervisor {
    /// Starts every child of `program`, in order.
    pub fn start(program: PathBuf, specs: Vec<ChildSpec>, options: SuperviseOptions) -> Self {
        let mut ends = Vec::new();
        let statuses = Statuses::default();
        let width = specs.iter().map(|s| s.name.len()).max().unwrap_or(0);
        let options = Arc::new(options);
        let mut children = JoinSet::new();
        for spec in specs {
            statuses.lock().insert(spec.name.clone(), ChildStatus::default());
            let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
            let guard = ended.clone().drop_guard();
            let alive = child::keep_alive(
                program.clone(),
                spec,
                Arc::clone(&options),
                width,
                Arc::clone(&statuses),
                stop.clone(),
            );
            children.spawn(async move {
                let _ended = guard;
                alive.await
            });
            ends.push(End { stop, ended });
        }
        Self {
            ends,
            statuses,
            children,
        }
    }

    /// What is known of a child.
    pub fn status(&self, name: &str) -> Option<ChildStatus> {
        self.statuses.lock().get(name).copied()
    }

    /// Runs until `shutdown` is cancelled or a child fails for good; then drains and ends every child, the last one
    /// first: what the front door has accepted may still need those behind it.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SuperviseError> {
        let mut outcome = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = self.children.join_next() => flatten(ended),
        };
        for end in self.ends.iter().rev() {
            end.stop.cancel();
            end.ended.cancelled().await;
        }
        while let Some(ended) = self.children.join_next().await {
            let ended = flatten(Some(ended));
            if outcome.is_ok() {
                outcome = ended;
            }
        }
        outcome
    }
}

fn flatten(
    ended: Option<Result<Result<(), SuperviseError>, tokio::task::JoinError>>,
) -> Result<(), SuperviseError> {
    match ended {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(SuperviseError::Panicked),
    }
}
