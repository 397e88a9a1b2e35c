//! Keeps a watch open: connect, read until it breaks or falls silent, pause, connect again.

use std::{future::Future, time::Duration};

use deltagate_mesh::client::Backoff;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// Whether a message is the first of its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    Later,
}

/// Follows one watch until `stop`. `open` starts it; `heard` gets every message.
///
/// A stream that is silent for `patience`, which is how old a view may be, is taken for dead: a peer that hangs or
/// a link that swallows packets looks just like that.
pub(super) async fn keep_following<M, Open, Opening>(
    what: &'static str,
    patience: Duration,
    mut backoff: Backoff,
    stop: CancellationToken,
    mut open: Open,
    mut heard: impl FnMut(M, Turn),
) where
    Open: FnMut() -> Opening,
    Opening: Future<Output = Result<Streaming<M>, Status>>,
{
    let following = async {
        loop {
            let ended = read(patience, &mut backoff, open(), &mut heard).await;
            tracing::debug!(watch = what, ended, "watch ended");
            backoff.wait().await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = following => {}
    }
}

/// Reads one stream to its end; says how it ended.
async fn read<M>(
    patience: Duration,
    backoff: &mut Backoff,
    opening: impl Future<Output = Result<Streaming<M>, Status>>,
    heard: &mut impl FnMut(M, Turn),
) -> &'static str {
    let mut stream = match tokio::time::timeout(patience, opening).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) => return "refused",
        Err(_) => return "not opened in time",
    };
    let mut turn = Turn::First;
    loop {
        match tokio::time::timeout(patience, stream.message()).await {
            Ok(Ok(Some(message))) => {
                backoff.reset();
                heard(message, turn);
                turn = Turn::Later;
            }
            Ok(Ok(None)) => return "closed",
            Ok(Err(_)) => return "broken",
            Err(_) => return "silent",
        }
    }
}
