//! Ctrl-C and SIGTERM.

use tokio_util::sync::CancellationToken;

/// Exit code after a second signal.
pub const EXIT_IMPATIENT: i32 = 130;

/// Cancelled by the first SIGINT or SIGTERM; a second one ends the process at once. Needs a tokio runtime.
pub fn shutdown() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut signals = Signals::new()?;
    let first = token.clone();
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("shutting down");
        first.cancel();
        signals.next().await;
        exit_now();
    });
    Ok(token)
}

/// Whoever signals twice does not want to wait for a drain or a flush.
#[allow(clippy::disallowed_methods)]
fn exit_now() -> ! {
    std::process::exit(EXIT_IMPATIENT)
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
