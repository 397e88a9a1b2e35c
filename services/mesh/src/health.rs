//! Health entries (grpc.health.v1) that nothing can open by accident.
//!
//! Every entry, also `""` (the whole server), starts NOT_SERVING; tonic-health's own service starts `""` SERVING, and
//! ends a watch of an unknown name instead of saying SERVICE_UNKNOWN, so only its generated types are used here. Once
//! [`Health::drain`] was called, every entry stays NOT_SERVING whatever is set afterwards.

use std::{collections::BTreeMap, pin::Pin};

use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health as HealthService, HealthServer},
};

use crate::ServiceError;

/// Sets health entries. Clones share them.
#[derive(Clone, Debug)]
pub struct Health(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    serving: BTreeMap<String, bool>,
    drained: bool,
}

impl State {
    fn set(&mut self, name: &str, serving: bool) -> bool {
        let serving = serving && !self.drained;
        self.serving.insert(name.to_owned(), serving) != Some(serving)
    }

    fn status(&self, name: &str) -> ServingStatus {
        match self.serving.get(name) {
            None => ServingStatus::ServiceUnknown,
            Some(true) => ServingStatus::Serving,
            Some(false) => ServingStatus::NotServing,
        }
    }
}

impl Health {
    /// Entries for `""` and for each name, all NOT_SERVING.
    pub async fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        let mut state = State::default();
        state.set("", false);
        for name in names {
            state.set(name.as_ref(), false);
        }
        Self(watch::Sender::new(state))
    }

    /// Sets one entry. After [`drain`](Self::drain) it stays NOT_SERVING.
    pub async fn set(&self, name: &str, serving: bool) {
        self.0.send_if_modified(|state| state.set(name, serving));
    }

    /// Sets every entry that exists so far.
    pub async fn set_all(&self, serving: bool) {
        self.0.send_if_modified(|state| {
            let serving = serving && !state.drained;
            let mut changed = false;
            for entry in state.serving.values_mut() {
                changed |= std::mem::replace(entry, serving) != serving;
            }
            changed
        });
    }

    /// NOT_SERVING everywhere, for good.
    pub async fn drain(&self) {
        self.0.send_modify(|state| {
            state.drained = true;
            for serving in state.serving.values_mut() {
                *serving = false;
            }
        });
    }

    /// The grpc.health.v1 service over these entries.
    pub fn service(&self) -> HealthServer<impl HealthService + use<>> {
        HealthServer::new(Entries(self.0.subscribe()))
    }
}

struct Entries(watch::Receiver<State>);

#[tonic::async_trait]
impl HealthService for Entries {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.0.borrow().status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => {
                Err(ServiceError::not_found("SERVICE_UNKNOWN", "no health entry has this name").into())
            }
            status => Ok(Response::new(HealthCheckResponse {
                status: status.into(),
            })),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = (self.0.clone(), request.into_inner().service, None);
        let changes = futures::stream::unfold(watcher, |(mut entries, name, mut sent)| async move {
            loop {
                let status = entries.borrow_and_update().status(&name);
                if sent != Some(status) {
                    sent = Some(status);
                    return Some((
                        Ok(HealthCheckResponse {
                            status: status.into(),
                        }),
                        (entries, name, sent),
                    ));
                }
                entries.changed().await.ok()?;
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
