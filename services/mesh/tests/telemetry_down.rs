//! A collector that takes connections and never answers delays nobody. One test: telemetry is set up once a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use deltagate_mesh::telemetry::{self, TelemetryConfig, TelemetryError};

#[test]
fn a_silent_collector_delays_neither_spans_nor_the_end() {
    for (config, refused) in [
        (
            TelemetryConfig {
                sample_ratio: 1.5,
                ..Default::default()
            },
            "sample_ratio",
        ),
        (
            TelemetryConfig {
                sample_ratio: f64::NAN,
                ..Default::default()
            },
            "sample_ratio",
        ),
        (
            TelemetryConfig {
                log_level: "a=b=c".to_owned(),
                ..Default::default()
            },
            "log_level",
        ),
        (
            TelemetryConfig {
                otlp_endpoint: Some("not a uri".to_owned()),
                ..Default::default()
            },
            "otlp_endpoint",
        ),
    ] {
        let error: TelemetryError = telemetry::init("test", &config).unwrap_err();
        assert!(error.to_string().contains(refused), "{error}");
    }

    let black_hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = TelemetryConfig {
        otlp_endpoint: Some(format!("http://{}", black_hole.local_addr().unwrap())),
        log_level: "off".to_owned(),
        ..Default::default()
    };
    let guard = telemetry::init("test", &config).unwrap();
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    // Far more than the queue holds.
    for _ in 0..40_000 {
        let one = Instant::now();
        drop(tracing::info_span!(target: "deltagate::test", "request").entered());
        slowest = slowest.max(one.elapsed());
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");

    let begun = Instant::now();
    assert!(
        !telemetry::flush(Duration::from_millis(200)),
        "nothing can have arrived"
    );
    drop(guard);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
