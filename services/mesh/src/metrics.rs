//! Metrics of this process, for Prometheus to fetch.
//!
//! Services count with the OpenTelemetry API (`opentelemetry::global::meter`); only this module knows what becomes of it.
//! Names are dotted there, `deltagate.<service>.<what>`, and `deltagate_<service>_<what>_total` here. A label has few
//! values, all known beforehand: never text of a request, never an id.

use std::sync::OnceLock;

use opentelemetry_sdk::{Resource, error::OTelSdkError, metrics::SdkMeterProvider};
use prometheus::{Encoder, Registry, TextEncoder};

/// Content type of [`text`]: Prometheus's text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// From now on, what this process counts can be fetched.
pub(crate) fn install(resource: Resource) -> Result<(), OTelSdkError> {
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        .scope_info_enabled(false)
        .build()?;
    let provider = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_reader(exporter)
        .build();
    opentelemetry::global::set_meter_provider(provider);
    // Called once: see `telemetry::init`.
    let _ = REGISTRY.set(registry);
    Ok(())
}

/// All metrics of this process, in Prometheus's text format. `None`: telemetry is not set up, or they cannot be written.
pub fn text() -> Option<String> {
    let mut out = Vec::new();
    TextEncoder::new()
        .encode(&REGISTRY.get()?.gather(), &mut out)
        .ok()?;
    String::from_utf8(out).ok()
}
