//! How loading shows itself: a bar on a terminal, a log line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::LoadProgress;

const LOG_EVERY: Duration = Duration::from_secs(2);

/// Called with the bytes read so far. The bar hides itself when standard error is no terminal.
pub(crate) fn bar() -> impl FnMut(LoadProgress) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
    {
        bar.set_style(style);
    }
    let begun = Instant::now();
    let mut last = None;
    move |progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if progress.done_bytes >= progress.total_bytes {
            bar.finish_and_clear();
            tracing::info!(
                bytes = progress.total_bytes,
                seconds = begun.elapsed().as_secs_f64(),
                "weights are loaded"
            );
        } else if bar.is_hidden() && last.is_none_or(|last: Instant| last.elapsed() >= LOG_EVERY) {
            last = Some(Instant::now());
            tracing::info!(
                done_bytes = progress.done_bytes,
                total_bytes = progress.total_bytes,
                "loading weights"
            );
        }
    }
}
