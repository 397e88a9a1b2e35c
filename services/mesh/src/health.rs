//! Health entries (grpc.health.v1) that nothing can open by accident.
//!
//! Every entry, also `""` (the whole server), starts NOT_SERVING; tonic-health alone starts `""` SERVING. Once
//! [`Health::drain`] was called, every entry stays NOT_SERVING whatever is set afterwards.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Mutex;
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health as HealthService, HealthServer},
    server::HealthReporter,
};

/// Sets health entries.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    names: BTreeSet<String>,
    drained: bool,
}

impl Health {
    /// Entries for `""` and for each name, all NOT_SERVING.
    pub async fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        let reporter = HealthReporter::new();
        let mut all: BTreeSet<String> = names.into_iter().map(|n| n.as_ref().to_owned()).collect();
        all.insert(String::new());
        for name in &all {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
        Self { reporter, state: Arc::new(Mutex::new(State { names: all, drained: false })) }
    }

    /// Sets one entry. After [`drain`](Self::drain) it stays NOT_SERVING.
    pub async fn set(&self, name: &str, serving: bool) {
        let mut state = self.state.lock().await;
        state.names.insert(name.to_owned());
        let status =
            if serving && !state.drained { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(name, status).await;
    }

    /// Sets every entry that exists so far.
    pub async fn set_all(&self, serving: bool) {
        let state = self.state.lock().await;
        let status =
            if serving && !state.drained { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in &state.names {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// NOT_SERVING everywhere, for good.
    pub async fn drain(&self) {
        let mut state = self.state.lock().await;
        state.drained = true;
        for name in &state.names {
            self.reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    }

    /// The grpc.health.v1 service over these entries.
    pub fn service(&self) -> HealthServer<impl HealthService + use<>> {
        HealthServer::new(tonic_health::server::HealthService::from_health_reporter(self.reporter.clone()))
    }
}
