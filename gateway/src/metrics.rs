//! What the gateway counts. Labels have a few fixed values; no text of a request is one.

use deltagate_decider::SpecialTokens;
use opentelemetry::{KeyValue, global, metrics::Counter};

/// The gateway's instruments.
pub(crate) struct Metrics {
    special_token_requests: Counter<u64>,
}

impl Metrics {
    /// Counts where the process's telemetry says, from zero.
    pub(crate) fn new() -> Self {
        let meter = global::meter("deltagate-gateway");
        let special_token_requests = meter
            .u64_counter("deltagate.gateway.special_token_requests")
            .with_description("Requests with text that spells a special token, by what was done about it")
            .build();
        for action in SpecialTokens::ALL {
            special_token_requests.add(0, &[label(action)]);
        }
        Self {
            special_token_requests,
        }
    }

    /// One more request in which special-token text was found.
    pub(crate) fn special_token_request(&self, action: SpecialTokens) {
        self.special_token_requests.add(1, &[label(action)]);
    }
}

fn label(action: SpecialTokens) -> KeyValue {
    KeyValue::new("action", action.name())
}
