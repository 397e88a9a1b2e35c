//! Follows `PolicyService.Watch`: the bundle with its request rules, permits and refusals.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use deltagate_proto::v1::{
    IssuedPermit, PermitClaims, PolicyServiceWatchRequest, PolicyServiceWatchResponse,
    policy_service_client::PolicyServiceClient,
};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::channel::backoff;

use super::{
    bundle::ActiveBundle,
    follow::{Turn, keep_following},
    state::{HeldPermit, MeshView, PolicyFacts, Refused},
};

/// Follows policy until `stop`.
pub async fn follow_policy(
    view: Arc<MeshView>,
    channel: Channel,
    gateway_id: String,
    stop: CancellationToken,
) {
    let config = view.follow.clone();
    let open = || {
        let request = PolicyServiceWatchRequest {
            gateway_id: gateway_id.clone(),
        };
        let mut client = PolicyServiceClient::new(channel.clone());
        async move { Ok(client.watch(request).await?.into_inner()) }
    };
    keep_following(
        "policy",
        config.stale_after,
        backoff(&config),
        stop,
        open,
        |message, turn| {
            hear(&view, message, turn);
        },
    )
    .await;
}

fn hear(view: &MeshView, mut message: PolicyServiceWatchResponse, turn: Turn) {
    let received = Instant::now();
    let fresh_bundle = message.bundle.take().map(|bundle| {
        ActiveBundle::compile(&bundle)
            .map(Arc::new)
            .inspect_err(|problem| {
                tracing::error!(
                    problem,
                    "the policy bundle cannot be used; every request is refused"
                );
            })
    });
    let permits = message
        .permits
        .into_iter()
        .filter_map(|issued| held(issued, received))
        .collect::<HashMap<_, _>>();
    let refusals = message
        .refusals
        .into_iter()
        .map(|refusal| {
            let refused = Refused {
                fingerprint: refusal.capability_fingerprint,
                reasons: refusal.reasons,
            };
            (refusal.instance_id, refused)
        })
        .collect();
    view.update(|facts| {
        let known = facts.policy.take().map(|policy| policy.bundle);
        // The first message of a watch carries the bundle; a bundle of an earlier watch may be of another service.
        let bundle = match (fresh_bundle, turn, known) {
            (Some(bundle), _, _) => bundle,
            (None, Turn::Later, Some(bundle)) => bundle,
            (None, ..) => Err("policy service sent no bundle".to_owned()),
        };
        facts.policy = Some(PolicyFacts {
            received,
            bundle,
            permits,
            refusals,
        });
    });
}

/// The claims are read, not trusted: the executor is who verifies them.
fn held(issued: IssuedPermit, received: Instant) -> Option<(String, HeldPermit)> {
    let signed = issued.permit?;
    let claims = PermitClaims::decode(signed.claims.clone()).ok()?;
    let valid_for = Duration::try_from(issued.valid_for?).ok()?;
    if claims.instance_id != issued.instance_id
        || claims.capability_fingerprint != issued.capability_fingerprint
    {
        return None;
    }
    let permit = HeldPermit {
        fingerprint: claims.capability_fingerprint,
        bundle_revision: claims.bundle_revision,
        signed,
        valid_until: received.checked_add(valid_for)?,
        max_plan_tokens: claims.max_plan_tokens,
        max_plan_sequences: claims.max_plan_sequences,
    };
    Some((issued.instance_id, permit))
}
