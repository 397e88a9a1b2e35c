//! The heartbeat: tells the capability service what is bound, and asks policy whether that may serve.
//!
//! It has a thread and a runtime of its own, so that neither a busy device nor busy handlers can delay it. An answer
//! is believed for as long as it says, counted from the moment of the question; then the executor is not ready, with
//! no one having to notice that an answer is missing.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_mesh::{
    client::{self, ChannelOptions},
    error::ServiceError,
    health::Health,
    wire,
};
use deltagate_proto::v1::{
    self, capability_service_client::CapabilityServiceClient, policy_service_client::PolicyServiceClient,
};
use tokio::{sync::Notify, time::Instant as Tick};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    config::ExecutorConfig,
    device::DeviceContext,
    failure::DeviceFailure,
    lifecycle::{Decision, believed_until, health_of},
};

/// How often it is checked whether an answer ran out or the device hangs.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After the registry took a new snapshot policy may need a moment to see it: until then it is asked this often.
const EAGER_EVERY: Duration = Duration::from_millis(50);
const EAGER_FOR: Duration = Duration::from_secs(1);
/// Most time for saying goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

/// How the heartbeat behaves.
#[derive(Clone, Debug)]
pub(crate) struct HeartbeatSettings {
    capability_endpoint: String,
    policy_endpoint: String,
    interval: Duration,
    call_timeout: Duration,
    lease: Duration,
    watchdog: Duration,
}

impl From<&ExecutorConfig> for HeartbeatSettings {
    fn from(config: &ExecutorConfig) -> Self {
        Self {
            capability_endpoint: config.capability.clone(),
            policy_endpoint: config.policy.clone(),
            interval: config.heartbeat,
            call_timeout: config.call_timeout,
            lease: config.lease,
            watchdog: config.watchdog,
        }
    }
}

/// The heartbeat did not start.
#[derive(Debug, thiserror::Error)]
pub enum HeartbeatError {
    /// An endpoint is not one.
    #[error(transparent)]
    Endpoint(#[from] client::EndpointError),
    /// The thread or its runtime did not start.
    #[error("heartbeat thread did not start")]
    Thread(#[from] std::io::Error),
}

/// A beating heart.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: CancellationToken,
    thread: std::thread::JoinHandle<()>,
}

impl Heartbeat {
    /// Starts the thread.
    pub(crate) fn spawn(
        settings: HeartbeatSettings,
        device: DeviceContext,
        health: Health,
    ) -> Result<Self, HeartbeatError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let beat = {
            // Channels belong to the runtime in which they are made.
            let _inside = runtime.enter();
            let options = ChannelOptions {
                connect_timeout: settings.call_timeout,
                ..ChannelOptions::default()
            };
            Beat {
                capability: CapabilityServiceClient::new(client::channel(
                    &settings.capability_endpoint,
                    options,
                )?),
                policy: PolicyServiceClient::new(client::channel(&settings.policy_endpoint, options)?),
                settings,
                device,
                health,
                ask_policy: Arc::default(),
            }
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("deltagate-heartbeat".to_owned())
            .spawn(move || {
                let device = beat.device.clone();
                if catch_unwind(AssertUnwindSafe(|| runtime.block_on(beat.run(stopped)))).is_err() {
                    device.fail(DeviceFailure::Heartbeat);
                }
            })?;
        Ok(Self { stop, thread })
    }

    /// Says goodbye to the registry and ends the thread. Takes at most half a second.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // A panic of the heartbeat has ended it as well.
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

#[derive(Clone)]
struct Beat {
    settings: HeartbeatSettings,
    device: DeviceContext,
    health: Health,
    capability: CapabilityServiceClient<Channel>,
    policy: PolicyServiceClient<Channel>,
    /// The registry has just taken a new snapshot.
    ask_policy: Arc<Notify>,
}

impl Beat {
    async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = self.clone().report() => {}
            () = self.clone().ask() => {}
            () = self.clone().look() => {}
            () = self.clone().show() => {}
            () = stop.cancelled() => {}
        }
        // What was last true is shown before the listener goes away.
        self.show_once(&self.device.lifecycle.snapshot()).await;
        self.leave().await;
    }

    /// Sends heartbeats, and the snapshot whenever the registry may not have it.
    async fn report(mut self) {
        let mut snapshots = self.device.lifecycle.subscribe();
        let mut known = None;
        let mut reachable = Reachable::new("capability");
        loop {
            let asked = Instant::now();
            let snapshot = snapshots.borrow_and_update().clone();
            let request = v1::ReportRequest {
                instance_id: snapshot.instance_id.clone(),
                revision: snapshot.revision,
                snapshot: (known != Some(snapshot.revision)).then(|| (*snapshot).clone()),
                leaving: false,
            };
            let mut next = Tick::from_std(asked) + self.settings.interval;
            match within(self.settings.call_timeout, self.capability.report(request)).await {
                Ok(answer) => {
                    reachable.yes();
                    let says = wire::std_duration(answer.lease.as_ref());
                    self.device
                        .lifecycle
                        .registered(believed_until(asked, says, self.settings.lease));
                    if answer.snapshot_wanted {
                        // At once, unless the registry asks for what it has just been sent.
                        if known.take().is_some() {
                            next = Tick::now();
                        }
                    } else if known.replace(snapshot.revision) != Some(snapshot.revision) {
                        self.ask_policy.notify_one();
                    }
                }
                Err(error) => {
                    reachable.no(&error);
                    self.device.lifecycle.registry_silent();
                    known = None;
                }
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                // Sent with a live sender: `changed` fails only when the executor is gone.
                _ = snapshots.changed() => {}
            }
        }
    }

    /// Asks policy about the binding of the moment.
    async fn ask(mut self) {
        let mut reachable = Reachable::new("policy");
        let mut eager_until = Tick::now();
        loop {
            let asked = Instant::now();
            let mut allowed = false;
            if let Some(fingerprint) = self.device.lifecycle.fingerprint() {
                let request = v1::DecideReadinessRequest {
                    instance_id: self.device.lifecycle.identity().instance_id.clone(),
                    capability_fingerprint: fingerprint.to_string(),
                };
                match within(self.settings.call_timeout, self.policy.decide_readiness(request)).await {
                    Ok(answer) => {
                        reachable.yes();
                        allowed = answer.allowed;
                        let says = wire::std_duration(answer.valid_for.as_ref());
                        self.device.permits.learn(&answer.keys);
                        self.device.lifecycle.decided(Decision {
                            fingerprint,
                            refused: (!answer.allowed).then_some(answer.reasons),
                            valid_until: believed_until(asked, says, self.settings.lease),
                        });
                    }
                    Err(error) => {
                        reachable.no(&error);
                        self.device.lifecycle.policy_silent();
                    }
                }
            }
            let eager = !allowed && Tick::now() < eager_until;
            let pause = if eager {
                EAGER_EVERY
            } else {
                self.settings.interval
            };
            tokio::select! {
                () = tokio::time::sleep_until(Tick::from_std(asked) + pause) => {}
                () = self.ask_policy.notified() => eager_until = Tick::now() + EAGER_FOR,
            }
        }
    }

    /// Notices what ran out, and a device that hangs.
    async fn look(self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.device.lifecycle.look();
            if self.device.pulse.silence() > self.settings.watchdog {
                self.device.pulse.stop();
                self.device.fail(DeviceFailure::Hangs);
            }
        }
    }

    /// Keeps the health entries equal to the snapshot.
    async fn show(self) {
        let mut snapshots = self.device.lifecycle.subscribe();
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            self.show_once(&snapshot).await;
            if snapshots.changed().await.is_err() {
                return;
            }
        }
    }

    async fn show_once(&self, snapshot: &v1::CapabilitySnapshot) {
        for (name, serving) in health_of(snapshot) {
            self.health.set(&name, serving).await;
        }
    }

    async fn leave(mut self) {
        let snapshot = self.device.lifecycle.snapshot();
        let request = v1::ReportRequest {
            instance_id: snapshot.instance_id.clone(),
            revision: snapshot.revision,
            snapshot: Some((*snapshot).clone()),
            leaving: true,
        };
        if let Err(error) = within(GOODBYE, self.capability.report(request)).await {
            tracing::debug!(reason = %error.reason, "the registry was not told that this executor leaves");
        }
    }
}

/// Bounds a call.
async fn within<T>(
    bound: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, ServiceError> {
    match tokio::time::timeout(bound, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(ServiceError::from(&status)),
        Err(_) => Err(ServiceError::deadline_exceeded(
            "DEADLINE_EXCEEDED",
            "no answer in time",
        )),
    }
}

/// Logs changes only: a service that is away for an hour is two lines.
struct Reachable {
    service: &'static str,
    last: Option<bool>,
}

impl Reachable {
    const fn new(service: &'static str) -> Self {
        Self { service, last: None }
    }

    fn yes(&mut self) {
        if self.last.replace(true) != Some(true) {
            tracing::info!(service = self.service, "answers");
        }
    }

    fn no(&mut self, error: &ServiceError) {
        if self.last.replace(false) != Some(false) {
            tracing::warn!(service = self.service, code = ?error.code, reason = %error.reason, "does not answer");
        }
    }
}
