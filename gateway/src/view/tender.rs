//! One task per executor of the registry: pings it, and loads its model when it is new or has changed.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Instant,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    model::{AssetCache, load_model},
    state::{ExecutorFacts, MeshView},
};
use crate::{channel, config::GatewayConfig};

/// Starts a tender for each executor that appears, and ends it when it leaves the registry. Runs until `stop`.
pub async fn tend_executors(view: Arc<MeshView>, config: Arc<GatewayConfig>, stop: CancellationToken) {
    let assets = Arc::new(AssetCache::new(config.limits.max_asset_bytes));
    let mut changes = view.changes();
    let mut tended: HashMap<String, (String, CancellationToken)> = HashMap::new();
    loop {
        let wanted = wanted(&view);
        tended.retain(|instance, (endpoint, token)| {
            let stays = wanted.get(instance).is_some_and(|wanted| wanted == endpoint);
            if !stays {
                token.cancel();
                view.update(|facts| facts.executors.remove(instance));
            }
            stays
        });
        for (instance, endpoint) in wanted {
            if tended.contains_key(&instance) {
                continue;
            }
            let channel = match channel::lazy(&endpoint, &config.follow) {
                Ok(channel) => channel,
                // The executor stays unreachable.
                Err(error) => {
                    tracing::warn!(instance, %error, "the registry names an endpoint that is none");
                    continue;
                }
            };
            let token = stop.child_token();
            let wake = Arc::new(Notify::new());
            view.update(|facts| {
                let executor = ExecutorFacts {
                    channel: channel.clone(),
                    reached: None,
                    model: None,
                    in_flight: Arc::new(AtomicUsize::new(0)),
                    wake: Arc::clone(&wake),
                };
                facts.executors.insert(instance.clone(), executor);
            });
            let tender = Tender {
                view: Arc::clone(&view),
                config: Arc::clone(&config),
                assets: Arc::clone(&assets),
                instance: instance.clone(),
                channel,
                wake,
            };
            let stop_tender = token.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = stop_tender.cancelled() => {}
                    () = tender.tend() => {}
                }
            });
            tended.insert(instance, (endpoint, token));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Instance id to endpoint. A stale view still says whom to tend, so that healing needs no second discovery.
fn wanted(view: &MeshView) -> HashMap<String, String> {
    view.read(|facts| {
        let executors = facts
            .capability
            .iter()
            .flat_map(|capability| &capability.executors);
        executors
            .map(|seen| (seen.snapshot.instance_id.clone(), seen.snapshot.endpoint.clone()))
            .collect()
    })
}

struct Tender {
    view: Arc<MeshView>,
    config: Arc<GatewayConfig>,
    assets: Arc<AssetCache>,
    instance: String,
    channel: Channel,
    wake: Arc<Notify>,
}

impl Tender {
    /// Pings and loading run side by side: a tokenizer of 20 MB must not make an executor look away.
    async fn tend(&self) {
        tokio::join!(self.keep_pinging(), self.keep_model());
    }

    async fn keep_pinging(&self) {
        loop {
            let sent = Instant::now();
            let answered = self.ping().await;
            self.view.update(|facts| {
                if answered && let Some(executor) = facts.executors.get_mut(&self.instance) {
                    executor.reached = Some(sent);
                }
            });
            tokio::select! {
                () = tokio::time::sleep(self.config.follow.ping_interval) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Any answer of a gRPC server counts, also one that says NOT_SERVING: readiness is judged elsewhere.
    async fn ping(&self) -> bool {
        let mut client = HealthClient::new(self.channel.clone());
        let check = client.check(HealthCheckRequest {
            service: String::new(),
        });
        match tokio::time::timeout(self.config.follow.stale_after, check).await {
            Ok(Ok(_)) => true,
            Ok(Err(status)) => matches!(status.code(), tonic::Code::NotFound | tonic::Code::Unimplemented),
            Err(_) => false,
        }
    }

    async fn keep_model(&self) {
        let mut changes = self.view.changes();
        let mut backoff = channel::backoff(&self.config.follow);
        loop {
            match self.digest_to_load() {
                Some(digest) => {
                    let loaded = load_model(self.channel.clone(), &digest, &self.assets).await;
                    let failed = loaded.is_err();
                    let model = loaded.map(Arc::new).map_err(|error| error.to_string());
                    if let Err(problem) = &model {
                        tracing::warn!(instance = self.instance, problem, "the model could not be loaded");
                    }
                    self.view.update(|facts| {
                        if let Some(executor) = facts.executors.get_mut(&self.instance) {
                            executor.model = Some(model);
                        }
                    });
                    if failed {
                        backoff.wait().await;
                    } else {
                        backoff.reset();
                    }
                }
                None => {
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// The digest that the registry names, unless it is loaded already.
    fn digest_to_load(&self) -> Option<String> {
        self.view.read(|facts| {
            let capability = facts.capability.as_ref()?;
            let seen = capability
                .executors
                .iter()
                .find(|seen| seen.snapshot.instance_id == self.instance)?;
            let wanted = &seen.snapshot.model.as_ref()?.digest;
            let loaded = match &facts.executors.get(&self.instance)?.model {
                Some(Ok(model)) => Some(&model.digest),
                _ => None,
            };
            (loaded != Some(wanted)).then(|| wanted.clone())
        })
    }
}
