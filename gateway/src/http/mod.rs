//! The HTTP face: `POST /v1/systemone` as existing System-One clients speak it, discovery, and health.

mod body;
mod envelope;
mod linger;
mod models;
mod peek;
mod probes;
mod respond;
mod systemone;

use std::sync::Arc;

use axum::{Router, middleware, routing};

use crate::{classify::Classifier, readiness::Readiness};

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Face {
    pub(crate) classifier: Arc<Classifier>,
    pub(crate) readiness: Arc<Readiness>,
}

/// All routes.
pub(crate) fn router(face: Face) -> Router {
    Router::new()
        .route("/v1/systemone", routing::post(systemone::classify))
        .route("/v1/models", routing::get(models::list))
        .route("/health", routing::get(probes::health))
        .route("/v1/health", routing::get(probes::health))
        .route("/livez", routing::get(probes::live))
        .route("/readyz", routing::get(probes::ready))
        .route("/metrics", routing::get(probes::metrics))
        .fallback(respond::unknown_route)
        .method_not_allowed_fallback(respond::wrong_method)
        .layer(middleware::from_fn(envelope::wrap))
        .layer(middleware::from_fn(linger::drain))
        .with_state(face)
}
