//! Deadlines: `grpc-timeout` as an absolute instant, for handlers and for onward calls.
//!
//! tonic turns every timeout into CANCELLED. Here the server's own layer (see [`crate::server`]) ends a call whose
//! deadline passed with DEADLINE_EXCEEDED, also in the middle of a stream, and handlers find the instant in the
//! request's extensions.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tonic::metadata::MetadataValue;

use crate::ServiceError;

/// Name of the gRPC header.
pub const GRPC_TIMEOUT: &str = "grpc-timeout";

/// When the caller stops waiting. In the extensions of every request that carries `grpc-timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// The deadline of a request, if the caller set one.
    pub fn from_request<T>(request: &tonic::Request<T>) -> Option<Instant> {
        request.extensions().get::<Self>().map(|d| d.0)
    }

    /// This long from now. `None` when that is beyond what the clock can hold.
    pub fn after(timeout: Duration) -> Option<Self> {
        Instant::now().checked_add(timeout).map(Self)
    }

    /// Time left; zero when it passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Tells the callee how long is left. DEADLINE_EXCEEDED (stage `before_call`) when nothing is.
pub fn set_remaining<T>(
    request: &mut tonic::Request<T>,
    deadline: Option<Instant>,
) -> Result<(), ServiceError> {
    let Some(deadline) = deadline else { return Ok(()) };
    let left = Deadline(deadline).remaining();
    if left.is_zero() {
        return Err(exceeded("before_call"));
    }
    if let Ok(value) = MetadataValue::try_from(format(left)) {
        request.metadata_mut().insert(GRPC_TIMEOUT, value);
    }
    Ok(())
}

/// Runs a future until the deadline. DEADLINE_EXCEEDED names the stage.
pub async fn bound<F: Future>(
    deadline: Option<Instant>,
    stage: &'static str,
    future: F,
) -> Result<F::Output, ServiceError> {
    match deadline {
        None => Ok(future.await),
        Some(at) => tokio::time::timeout_at(at.into(), future)
            .await
            .map_err(|_| exceeded(stage)),
    }
}

/// DEADLINE_EXCEEDED in a stage, such as `queue` or `run`.
pub fn exceeded(stage: &'static str) -> ServiceError {
    ServiceError::deadline_exceeded("DEADLINE_EXCEEDED", "the deadline passed").with("stage", stage)
}

/// The header is not a timeout as the gRPC specification wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is not 1 to 8 digits and one of H, M, S, m, u, n")]
pub struct BadTimeout;

/// Parses a `grpc-timeout` value: 1 to 8 ASCII digits and a unit.
pub fn parse(value: &[u8]) -> Result<Duration, BadTimeout> {
    let (unit, digits) = value.split_last().ok_or(BadTimeout)?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BadTimeout);
    }
    let count = digits.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0'));
    Ok(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return Err(BadTimeout),
    })
}

/// The value for a timeout, in the finest unit that takes at most 8 digits, rounded down.
pub fn format(timeout: Duration) -> String {
    const MOST: u128 = 99_999_999;
    let units: [(u128, char); 6] = [
        (timeout.as_nanos(), 'n'),
        (timeout.as_micros(), 'u'),
        (timeout.as_millis(), 'm'),
        (u128::from(timeout.as_secs()), 'S'),
        (u128::from(timeout.as_secs() / 60), 'M'),
        (u128::from(timeout.as_secs() / 3600), 'H'),
    ];
    match units.into_iter().find(|(count, _)| *count <= MOST) {
        Some((count, unit)) => format!("{count}{unit}"),
        None => format!("{MOST}H"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parses_what_the_specification_allows_and_nothing_else() {
        assert_eq!(parse(b"1S"), Ok(Duration::from_secs(1)));
        assert_eq!(parse(b"99999999H"), Ok(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse(b"0n"), Ok(Duration::ZERO));
        assert_eq!(parse(b"250m"), Ok(Duration::from_millis(250)));
        for bad in [
            &b""[..],
            b"S",
            b"1",
            b"1s",
            b"123456789S",
            b"-1S",
            b"1.5S",
            b" 1S",
            b"+1S",
        ] {
            assert_eq!(parse(bad), Err(BadTimeout), "{bad:?}");
        }
    }

    #[test]
    fn formats_round_down_and_parse_back() {
        for timeout in [
            Duration::from_nanos(5),
            Duration::from_millis(1500),
            Duration::from_secs(86_400 * 365),
        ] {
            let back = parse(format(timeout).as_bytes()).unwrap();
            assert!(
                back <= timeout && timeout - back <= timeout / 1000,
                "{timeout:?} {back:?}"
            );
        }
        assert!(parse(format(Duration::MAX).as_bytes()).is_ok());
    }

    #[test]
    fn nothing_left_is_refused_before_the_call() {
        let mut request = tonic::Request::new(());
        let error = set_remaining(&mut request, Some(Instant::now())).unwrap_err();
        assert_eq!(error.fact("stage"), Some("before_call"));
        set_remaining(&mut request, Some(Instant::now() + Duration::from_secs(5))).unwrap();
        let left = parse(request.metadata().get(GRPC_TIMEOUT).unwrap().as_bytes()).unwrap();
        assert!(left > Duration::from_secs(4) && left <= Duration::from_secs(5));
    }

    #[tokio::test]
    async fn bound_names_the_stage() {
        let soon = Instant::now() + Duration::from_millis(5);
        let error = bound(Some(soon), "queue", std::future::pending::<()>())
            .await
            .unwrap_err();
        assert_eq!(
            (error.code, error.fact("stage")),
            (tonic::Code::DeadlineExceeded, Some("queue"))
        );
        assert_eq!(bound(None, "queue", async { 3 }).await.unwrap(), 3);
    }
}
