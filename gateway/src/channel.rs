//! Channels to the rest of the mesh, with the gateway's own patience.

use deltagate_mesh::client::{Backoff, ChannelOptions, EndpointError, channel};
use tonic::transport::Channel;

use crate::config::FollowConfig;

/// A channel that connects when it is used, and gives a hanging peer up after at most `stale_after`.
pub(crate) fn lazy(endpoint: &str, follow: &FollowConfig) -> Result<Channel, EndpointError> {
    let options = ChannelOptions {
        connect_timeout: follow.connect_timeout,
        ..ChannelOptions::default()
    };
    channel(endpoint, options)
}

/// The pauses between attempts.
pub(crate) fn backoff(follow: &FollowConfig) -> Backoff {
    Backoff::new(follow.backoff_min, follow.backoff_max)
}
