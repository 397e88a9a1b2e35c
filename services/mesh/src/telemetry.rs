//! Logs to stderr, spans to an OTLP collector, and [metrics]: set up once per process, and never in the way of a request.
//!
//! Spans go through a bounded queue to a thread of their own; when the collector is away they are dropped there. Logs
//! and spans are filtered apart: turning the log level down does not cut traces. Only spans are exported, no log
//! events, so no log line can reach a collector.
//!
//! [metrics]: crate::metrics

use std::{
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    time::Duration,
};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkError,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider},
};
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Layer, filter::filter_fn, fmt, layer::SubscriberExt};

use crate::metrics;

/// Spans that may wait for the collector; beyond that they are dropped.
const QUEUE_SPANS: usize = 16_384;
/// Bound for one export, and for the flush at the end of the process.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Section `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// OTLP/gRPC collector, such as `http://127.0.0.1:4317`. Absent: spans are not exported.
    pub otlp_endpoint: Option<String>,
    /// Share of new traces that is recorded, 0 to 1. A caller's `traceparent` decides for itself.
    pub sample_ratio: f64,
    /// `service.name` in traces instead of `deltagate-{service}`.
    pub service_name: Option<String>,
    /// `text` or `json`.
    pub log_format: LogFormat,
    /// Level or `tracing` directives, such as `info` or `warn,deltagate_executor=debug`.
    pub log_level: String,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            sample_ratio: 1.0,
            service_name: None,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
        }
    }
}

/// Telemetry was not set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `sample_ratio` is not in [0, 1].
    #[error("telemetry.sample_ratio must be between 0 and 1")]
    SampleRatio,
    /// `log_level` does not parse.
    #[error("telemetry.log_level is not a level or a list of directives")]
    LogLevel(#[from] tracing_subscriber::filter::ParseError),
    /// The exporter cannot be built for this endpoint.
    #[error("telemetry.otlp_endpoint is not usable")]
    Exporter(#[from] ExporterBuildError),
    /// The metrics cannot be set up.
    #[error("metrics are not usable")]
    Metrics(#[from] OTelSdkError),
    /// The exporter's runtime did not start.
    #[error("telemetry runtime did not start")]
    Runtime(#[source] std::io::Error),
    /// Another subscriber is installed in this process.
    #[error("another tracing subscriber is installed")]
    Subscriber(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// Set up before in this process, with another endpoint.
    #[error("telemetry is set up already, with another otlp_endpoint")]
    OtherEndpoint,
}

/// What lives as long as the process.
struct Installed {
    endpoint: Option<String>,
    provider: SdkTracerProvider,
    /// The exporter's connection lives here, not in a runtime that a service or a test may shut down.
    _runtime: Option<tokio::runtime::Runtime>,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// Flushes spans when dropped, for at most two seconds.
#[derive(Debug)]
#[must_use = "dropping the guard flushes: keep it until the service has stopped"]
pub struct TelemetryGuard(());

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        flush(EXPORT_TIMEOUT);
    }
}

/// Sets up logs and traces for this process. Again with the same endpoint, or with none, it does nothing.
///
/// `service` names the process in traces: `gateway` becomes `deltagate-gateway`.
pub fn init(service: &'static str, config: &TelemetryConfig) -> Result<TelemetryGuard, TelemetryError> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(installed) = INSTALLED.get() {
        return match &config.otlp_endpoint {
            wanted @ Some(_) if *wanted != installed.endpoint => Err(TelemetryError::OtherEndpoint),
            _ => Ok(TelemetryGuard(())),
        };
    }
    if !(0.0..=1.0).contains(&config.sample_ratio) {
        return Err(TelemetryError::SampleRatio);
    }
    // The libraries' own announcements are no news; a directive of the user's still wins.
    let log_filter = EnvFilter::builder().parse(format!("opentelemetry=warn,{}", config.log_level))?;
    let name = config
        .service_name
        .clone()
        .unwrap_or_else(|| format!("deltagate-{service}"));
    let resource = Resource::builder().with_service_name(name).build();
    let (provider, runtime) = provider(resource.clone(), config)?;

    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("deltagate"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_filter(
            filter_fn(|meta| meta.is_span() && meta.target().starts_with("deltagate"))
                .with_max_level_hint(LevelFilter::TRACE),
        );
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match config.log_format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // Without the bridge from the `log` crate, which `try_init` would add: through it a tokenizer tells of every piece
    // of a text, which costs a good part of a request and is nobody's business.
    tracing::subscriber::set_global_default(
        tracing_subscriber::registry()
            .with(spans)
            .with(lines.with_filter(log_filter)),
    )?;

    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    opentelemetry::global::set_tracer_provider(provider.clone());
    metrics::install(resource)?;
    let _ = INSTALLED.set(Installed {
        endpoint: config.otlp_endpoint.clone(),
        provider,
        _runtime: runtime,
    });
    Ok(TelemetryGuard(()))
}

/// Sends what is queued, waiting at most this long. Whether everything went out.
pub fn flush(bound: Duration) -> bool {
    let Some(installed) = INSTALLED.get() else {
        return true;
    };
    let provider = installed.provider.clone();
    let (sender, receiver) = mpsc::channel();
    let flushing = std::thread::Builder::new()
        .name("telemetry-flush".to_owned())
        .spawn(move || {
            // The receiver may have given up.
            let _ = sender.send(provider.force_flush().is_ok());
        });
    flushing.is_ok() && receiver.recv_timeout(bound).unwrap_or(false)
}

fn provider(
    resource: Resource,
    config: &TelemetryConfig,
) -> Result<(SdkTracerProvider, Option<tokio::runtime::Runtime>), TelemetryError> {
    let builder = SdkTracerProvider::builder().with_resource(resource);
    let Some(endpoint) = &config.otlp_endpoint else {
        // A caller's context still flows through to the services that do export.
        let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOff));
        return Ok((builder.with_sampler(sampler).build(), None));
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("telemetry")
        .enable_all()
        .build()
        .map_err(TelemetryError::Runtime)?;
    let exporter = {
        let _inside = runtime.enter();
        SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()?
    };
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(
            BatchConfigBuilder::default()
                .with_max_queue_size(QUEUE_SPANS)
                .with_max_export_batch_size(1024)
                .with_scheduled_delay(Duration::from_millis(500))
                .build(),
        )
        .build();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio)));
    Ok((
        builder
            .with_sampler(sampler)
            .with_span_processor(processor)
            .build(),
        Some(runtime),
    ))
}
