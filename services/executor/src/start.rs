//! Starts an executor and sees it to its end.
//!
//! The listener accepts before the model is loaded: a loading executor is alive, and says that it is not ready.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use deltagate_kernels_api::KernelFamily;
use deltagate_mesh::{
    health::Health,
    server::{self, ServeError, ServeOptions, ServerHandle},
};
use deltagate_proto::v1;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ExecutorConfig, InvalidSetting},
    device::{self, DeviceContext},
    failure::{DeviceFailure, EXIT_DEVICE_LOST, EXIT_LOAD_FAILED},
    heartbeat::{Heartbeat, HeartbeatError, HeartbeatSettings},
    lifecycle::{Identity, Lifecycle, SERVICE_ENTRY, kernel_entry},
    loader,
    permits::PermitGate,
    pulse::Pulse,
    queue::Queue,
    reload::{self, ConfigSource, Reload},
    runner::Loader,
    service::Service,
};

/// Most time for the device thread to end once its queue is closed.
const DEVICE_END: Duration = Duration::from_secs(2);

/// The executor did not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A setting makes no sense.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The heartbeat did not start.
    #[error(transparent)]
    Heartbeat(#[from] HeartbeatError),
    /// The server did not start, or failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A thread did not start.
    #[error("device thread did not start")]
    Thread(#[from] std::io::Error),
    /// The device cannot go on.
    #[error("{0}")]
    Device(DeviceFailure),
    /// The task that holds it together panicked.
    #[error("executor task panicked")]
    Panicked,
}

impl ExecutorError {
    /// Exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Setting(_) | Self::Heartbeat(_) => EXIT_LOAD_FAILED,
            Self::Device(failure) => failure.exit_code(),
            Self::Serve(_) | Self::Thread(_) => 1,
            Self::Panicked => EXIT_DEVICE_LOST,
        }
    }
}

/// A running executor.
#[derive(Debug)]
pub struct ExecutorHandle {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Swaps its kernels.
    pub reload: Reload,
    lifecycle: Arc<Lifecycle>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ExecutorError>>,
}

impl ExecutorHandle {
    /// Its endpoint, such as `http://127.0.0.1:50061`.
    pub fn endpoint(&self) -> &str {
        &self.lifecycle.identity().endpoint
    }

    /// Unique per start.
    pub fn instance_id(&self) -> &str {
        &self.lifecycle.identity().instance_id
    }

    /// Its snapshot, and the changes.
    pub fn snapshots(&self) -> watch::Receiver<Arc<v1::CapabilitySnapshot>> {
        self.lifecycle.subscribe()
    }

    /// Begins the drain.
    pub fn shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits until it has ended. An error when it ended by itself.
    pub async fn wait(self) -> Result<(), ExecutorError> {
        self.task.await.unwrap_or(Err(ExecutorError::Panicked))
    }
}

/// Runs an executor until `shutdown` is cancelled and the drain is over, or until the device fails.
pub async fn run(
    config: ExecutorConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
) -> Result<(), ExecutorError> {
    start(config, listener, shutdown, None).await?.wait().await
}

/// Like [`run`], and swaps kernels when the configuration that it came from changes, or on SIGHUP.
pub async fn run_reloading(
    config: ExecutorConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
    source: ConfigSource,
) -> Result<(), ExecutorError> {
    start(config, listener, shutdown, Some(source))
        .await?
        .wait()
        .await
}

/// Starts an executor over the configured model. `source` is where the configuration came from; without it only
/// [`ExecutorHandle::reload`] swaps kernels.
pub async fn start(
    config: ExecutorConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
    source: Option<ConfigSource>,
) -> Result<ExecutorHandle, ExecutorError> {
    let loader = loader::of(&config);
    start_with(config, listener, shutdown, source, loader).await
}

/// Starts an executor over whatever the loader gives.
pub async fn start_with(
    config: ExecutorConfig,
    listener: Option<TcpListener>,
    shutdown: CancellationToken,
    source: Option<ConfigSource>,
    loader: Loader,
) -> Result<ExecutorHandle, ExecutorError> {
    config.validate()?;
    let listener = match listener {
        Some(listener) => listener,
        None => server::listen(config.listen).await?,
    };
    let addr = listener.local_addr().map_err(ServeError::LocalAddr)?;
    let endpoint = config
        .advertise
        .clone()
        .unwrap_or_else(|| format!("http://{addr}"));
    let identity = Identity {
        instance_id: uuid::Uuid::now_v7().to_string(),
        endpoint,
    };

    let context = DeviceContext {
        queue: Arc::new(Queue::new(config.queue.into()).busy_polled(config.busy_poll)),
        permits: Arc::new(PermitGate::new(&identity.instance_id)),
        lifecycle: Arc::new(Lifecycle::new(identity)),
        pulse: Arc::new(Pulse::default()),
        failure: Arc::default(),
    };
    let kernels = KernelFamily::ALL.into_iter().map(kernel_entry);
    let health = Health::new(kernels.chain([SERVICE_ENTRY.to_owned()])).await;
    let options = ServeOptions {
        grace: config.drain.grace,
        drain: config.drain.timeout,
        ..ServeOptions::new("executor")
    };
    let heartbeat = Heartbeat::spawn(HeartbeatSettings::from(&config), context.clone(), health.clone())?;
    let service = Service::new(context.clone());
    // The drain of the server begins with ours, but also when the device fails.
    let stop = CancellationToken::new();
    let server = server::serve(listener, health, stop, options, |routes| {
        routes.add_service(service.into_server());
    })
    .await?;
    let device = device::spawn(context.clone(), loader)?;

    let reload = Reload::new(Arc::clone(&context.queue), config.clone());
    let watcher = CancellationToken::new();
    if let Some(source) = source {
        tokio::spawn(reload::watch(
            source,
            reload.clone(),
            config.watch_config,
            watcher.clone(),
        ));
    }
    tracing::info!(%addr, instance_id = context.lifecycle.identity().instance_id, "executor listens");
    let lifecycle = Arc::clone(&context.lifecycle);
    let parts = Parts {
        context,
        server,
        heartbeat,
        device,
        watcher,
    };
    let task = tokio::spawn(parts.until(shutdown.clone()));
    Ok(ExecutorHandle {
        addr,
        reload,
        lifecycle,
        shutdown,
        task,
    })
}

/// What has to be ended, in order.
struct Parts {
    context: DeviceContext,
    server: ServerHandle,
    heartbeat: Heartbeat,
    device: std::thread::JoinHandle<()>,
    watcher: CancellationToken,
}

impl Parts {
    async fn until(self, shutdown: CancellationToken) -> Result<(), ExecutorError> {
        let _watcher = self.watcher.drop_guard();
        tokio::select! {
            () = shutdown.cancelled() => {}
            _ = self.context.failure.raised() => {}
        }
        self.context.lifecycle.drain();
        self.server.shutdown();
        // Health is off, then what was admitted ends, bounded; the heart beats on, so that everybody can see why.
        let served = self.server.wait().await;
        self.context.queue.close();
        let ends_by = tokio::time::Instant::now() + DEVICE_END;
        while !self.device.is_finished() && tokio::time::Instant::now() < ends_by {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.heartbeat.stop().await;
        match self.context.failure.cause() {
            Some(failure) => Err(ExecutorError::Device(failure)),
            None => Ok(served?),
        }
    }
}
