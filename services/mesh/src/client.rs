//! Channels to other services, and the backoff between attempts.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

/// How a channel behaves.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// Bound for one attempt to connect.
    pub connect_timeout: Duration,
    /// HTTP/2 pings go out this often, also when idle.
    pub keep_alive_interval: Duration,
    /// A ping without an answer for this long closes the connection.
    pub keep_alive_timeout: Duration,
}

impl Default for ChannelOptions {
    /// A peer that hangs is noticed after at most 1.2 s.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            keep_alive_interval: Duration::from_millis(400),
            keep_alive_timeout: Duration::from_millis(800),
        }
    }
}

/// The endpoint is not a URI.
#[derive(Debug, thiserror::Error)]
#[error("`{endpoint}` is not an endpoint such as http://127.0.0.1:50051")]
pub struct EndpointError {
    /// What was given.
    pub endpoint: String,
    #[source]
    source: Option<tonic::transport::Error>,
}

/// A channel that connects on its first call, and again after a failure. Needs a tokio runtime.
pub fn channel(endpoint: &str, options: ChannelOptions) -> Result<Channel, EndpointError> {
    let refuse = |source| EndpointError {
        endpoint: endpoint.to_owned(),
        source,
    };
    let parsed = Endpoint::from_shared(endpoint.to_owned()).map_err(|e| refuse(Some(e)))?;
    if parsed.uri().scheme_str() != Some("http") || parsed.uri().host().is_none() {
        return Err(refuse(None));
    }
    Ok(parsed
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// Delays that double up to a bound, each shortened at random by up to a quarter so that peers spread out.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Delays from `first` up to `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    /// The next delay.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next.min(self.most);
        self.next = (delay * 2).min(self.most);
        // The low bits of a v4 UUID are random; no generator has to be carried along.
        let random = uuid::Uuid::new_v4().as_u128() as u32;
        delay.mul_f64(1.0 - 0.25 * f64::from(random) / f64::from(u32::MAX))
    }

    /// Waits for the next delay.
    pub async fn wait(&mut self) {
        let delay = self.delay();
        tokio::time::sleep(delay).await;
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

impl Default for Backoff {
    /// 50 ms up to 400 ms: a peer that came back is found well within two seconds.
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_millis(400))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn delays_double_to_the_bound_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        for most in [100, 200, 350, 350] {
            let delay = backoff.delay();
            assert!(
                delay <= ms(most) && delay >= ms(most).mul_f64(0.74),
                "{delay:?} of {most} ms"
            );
        }
        backoff.reset();
        assert!(backoff.delay() <= ms(100));
    }

    #[tokio::test]
    async fn only_http_endpoints_are_taken() {
        assert!(channel("http://127.0.0.1:1", ChannelOptions::default()).is_ok());
        for bad in ["127.0.0.1:50051", "https://127.0.0.1:1", "not a uri", ""] {
            assert!(channel(bad, ChannelOptions::default()).is_err(), "{bad}");
        }
    }
}
