//! Who may run a plan: whoever shows a permit that policy signed for this executor and for this very binding.

use std::time::SystemTime;

use arc_swap::ArcSwap;
use deltagate_mesh::{
    error::ServiceError,
    permit::{KeyRing, Verifier},
};
use deltagate_proto::v1;

/// Checks permits against the keys that policy sent with its last answer. Knows no key, and so admits nobody, until
/// policy has answered once.
#[derive(Debug)]
pub(crate) struct PermitGate {
    instance_id: String,
    verifier: ArcSwap<Verifier>,
}

impl PermitGate {
    /// A gate that admits nobody yet.
    pub(crate) fn new(instance_id: &str) -> Self {
        Self {
            instance_id: instance_id.to_owned(),
            verifier: ArcSwap::default(),
        }
    }

    /// Replaces the keys.
    pub(crate) fn learn(&self, keys: &[v1::VerifyingKey]) {
        let keys = KeyRing::new(keys);
        // Policy repeats its keys with every answer.
        if *self.verifier.load().keys() != keys {
            self.verifier.store(Verifier::new(keys).into());
        }
    }

    /// The claims of a permit that holds now, for this executor and this fingerprint.
    pub(crate) fn check(
        &self,
        permit: Option<&v1::SignedPermit>,
        fingerprint: &str,
    ) -> Result<v1::PermitClaims, ServiceError> {
        let now = SystemTime::now();
        Ok(self
            .verifier
            .load()
            .verify(permit, &self.instance_id, fingerprint, now)?)
    }
}
