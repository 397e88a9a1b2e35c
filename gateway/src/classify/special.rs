//! Starts a decider by the configured choice about special-token text, and tells that there was some.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use deltagate_decider::{
    Decider, DeciderError, DecisionRequest, Family, FamilyContext, SpecialTokens, special::SPECIAL_TOKEN_TEXT,
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::metrics::Metrics;

/// The choice, for one request. It may start several times, each time with the tokenizer of another binding, and is
/// counted once.
#[derive(Clone)]
pub(super) struct Special {
    choice: SpecialTokens,
    metrics: Arc<Metrics>,
    told: Arc<AtomicBool>,
}

impl Special {
    pub(super) fn new(choice: SpecialTokens, metrics: &Arc<Metrics>) -> Self {
        Self {
            choice,
            metrics: Arc::clone(metrics),
            told: Arc::default(),
        }
    }

    /// [`Family::start`], by the choice.
    pub(super) fn start(
        &self,
        family: &dyn Family,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Box<dyn Decider>, DeciderError> {
        match self.choice.treat(request, family, cx) {
            Ok(treated) => {
                treated.action().into_iter().for_each(|action| self.tell(action));
                treated.start(family, cx)
            }
            Err(error) => {
                if error.reason() == SPECIAL_TOKEN_TEXT {
                    self.tell(SpecialTokens::Refuse);
                }
                Err(error.into())
            }
        }
    }

    fn tell(&self, action: SpecialTokens) {
        if !self.told.swap(true, Ordering::Relaxed) {
            self.metrics.special_token_request(action);
        }
        tracing::Span::current().set_attribute("deltagate.special_tokens", action.name());
    }
}
