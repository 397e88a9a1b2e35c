//! Permits: short-lived signed claims that let one gateway run plans on one executor's binding.
//!
//! The policy service signs with an Ed25519 key that lives as long as its process. An executor learns the verifying
//! keys with each readiness decision, and runs nothing without a permit that verifies.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, SystemTime},
};

use deltagate_proto::v1;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use parking_lot::Mutex;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::wire;

/// Signs permits.
pub struct Signer {
    key: SigningKey,
    key_id: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// What a permit is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    /// The gateway it is issued to.
    pub gateway_id: &'a str,
    /// The executor it is for.
    pub instance_id: &'a str,
    /// The binding it is for.
    pub fingerprint: &'a str,
    /// The bundle that allows it.
    pub bundle_revision: &'a str,
    /// Most tokens in one plan.
    pub max_plan_tokens: u64,
    /// Most sequences in one plan.
    pub max_plan_sequences: u32,
}

impl Signer {
    /// A signer from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let key = SigningKey::from_bytes(&seed);
        let key_id = key_id(&key.verifying_key());
        Self { key, key_id }
    }

    /// The key that verifies what this signs.
    pub fn verifying_key(&self) -> v1::VerifyingKey {
        v1::VerifyingKey {
            key_id: self.key_id.clone(),
            public_key: self.key.verifying_key().to_bytes().to_vec().into(),
        }
    }

    /// A permit that is valid from `not_before` until `expires_at`.
    pub fn sign(
        &self,
        grant: &Grant<'_>,
        not_before: SystemTime,
        expires_at: SystemTime,
    ) -> v1::SignedPermit {
        let claims = v1::PermitClaims {
            gateway_id: grant.gateway_id.to_owned(),
            instance_id: grant.instance_id.to_owned(),
            capability_fingerprint: grant.fingerprint.to_owned(),
            bundle_revision: grant.bundle_revision.to_owned(),
            not_before: Some(wire::timestamp(not_before)),
            expires_at: Some(wire::timestamp(expires_at)),
            max_plan_tokens: grant.max_plan_tokens,
            max_plan_sequences: grant.max_plan_sequences,
        }
        .encode_to_vec();
        let signature = self.key.sign(&claims).to_bytes().to_vec();
        v1::SignedPermit {
            claims: claims.into(),
            signature: signature.into(),
            key_id: self.key_id.clone(),
        }
    }
}

/// First 16 hex digits of the SHA-256 of the public key.
fn key_id(key: &VerifyingKey) -> String {
    let mut id = hex::encode(Sha256::digest(key.as_bytes()));
    id.truncate(16);
    id
}

/// The keys that verify permits, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRing(BTreeMap<String, VerifyingKey>);

impl KeyRing {
    /// The keys that decode; one that does not verifies nothing.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a v1::VerifyingKey>) -> Self {
        Self(
            keys.into_iter()
                .filter_map(|wire| {
                    let bytes: [u8; 32] = wire.public_key.as_ref().try_into().ok()?;
                    let key = VerifyingKey::from_bytes(&bytes).ok()?;
                    // The id is derived, not taken: nobody can put a key under another one's name.
                    (key_id(&key) == wire.key_id).then(|| (wire.key_id.clone(), key))
                })
                .collect(),
        )
    }

    /// Whether it verifies nothing at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why a permit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// There is none.
    #[error("permit is missing")]
    Missing,
    /// Its signer is not known.
    #[error("permit is signed by an unknown key")]
    UnknownKey,
    /// The signature is not of these claims.
    #[error("permit signature does not verify")]
    BadSignature,
    /// The claims do not decode or lack a time.
    #[error("permit claims are malformed")]
    Malformed,
    /// It is for another executor.
    #[error("permit is for another executor")]
    WrongInstance,
    /// It is for another binding.
    #[error("permit is for another capability fingerprint")]
    WrongFingerprint,
    /// Its time has not come.
    #[error("permit is not valid yet")]
    NotYetValid,
    /// Its time is over.
    #[error("permit is expired")]
    Expired,
}

impl PermitError {
    /// The reason that goes on the wire.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "PERMIT_MISSING",
            Self::Expired | Self::NotYetValid => "PERMIT_EXPIRED",
            Self::WrongFingerprint => "FINGERPRINT_MISMATCH",
            Self::UnknownKey | Self::BadSignature | Self::Malformed | Self::WrongInstance => "PERMIT_INVALID",
        }
    }
}

impl From<PermitError> for crate::ServiceError {
    fn from(error: PermitError) -> Self {
        Self::permission_denied(error.reason(), error.to_string())
    }
}

/// Checks a permit for one executor's present binding. Everything that is unknown is a no.
pub fn verify(
    permit: Option<&v1::SignedPermit>,
    keys: &KeyRing,
    instance_id: &str,
    fingerprint: &str,
    now: SystemTime,
) -> Result<v1::PermitClaims, PermitError> {
    let claims = authentic(permit.ok_or(PermitError::Missing)?, keys)?;
    holds(&claims, instance_id, fingerprint, now)?;
    Ok(claims)
}

/// The claims, if a known key signed them.
fn authentic(permit: &v1::SignedPermit, keys: &KeyRing) -> Result<v1::PermitClaims, PermitError> {
    let key = keys.0.get(&permit.key_id).ok_or(PermitError::UnknownKey)?;
    let signature = Signature::from_slice(&permit.signature).map_err(|_| PermitError::BadSignature)?;
    key.verify_strict(&permit.claims, &signature)
        .map_err(|_| PermitError::BadSignature)?;
    v1::PermitClaims::decode(permit.claims.clone()).map_err(|_| PermitError::Malformed)
}

/// Whether the claims hold here and now.
fn holds(
    claims: &v1::PermitClaims,
    instance_id: &str,
    fingerprint: &str,
    now: SystemTime,
) -> Result<(), PermitError> {
    let not_before = wire::system_time(claims.not_before.as_ref()).ok_or(PermitError::Malformed)?;
    let expires_at = wire::system_time(claims.expires_at.as_ref()).ok_or(PermitError::Malformed)?;
    if instance_id.is_empty() || claims.instance_id != instance_id {
        return Err(PermitError::WrongInstance);
    }
    if fingerprint.is_empty() || claims.capability_fingerprint != fingerprint {
        return Err(PermitError::WrongFingerprint);
    }
    if now < not_before {
        return Err(PermitError::NotYetValid);
    }
    if now >= expires_at {
        return Err(PermitError::Expired);
    }
    Ok(())
}

/// Permits whose signatures are remembered: the present ones of a few gateways.
const REMEMBERED: usize = 16;

/// Verifies permits under one set of keys, and remembers signatures that were right: a gateway shows the same permit
/// with every request until it gets the next. Only the signature is remembered; whom, what and when a permit is for
/// is looked at each time.
#[derive(Debug, Default)]
pub struct Verifier {
    keys: KeyRing,
    authentic: Mutex<VecDeque<(v1::SignedPermit, v1::PermitClaims)>>,
}

impl Verifier {
    /// Under these keys. Other keys need another verifier: nothing that was remembered outlives its key.
    pub fn new(keys: KeyRing) -> Self {
        Self {
            keys,
            authentic: Mutex::default(),
        }
    }

    /// The keys.
    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// As [`verify`].
    pub fn verify(
        &self,
        permit: Option<&v1::SignedPermit>,
        instance_id: &str,
        fingerprint: &str,
        now: SystemTime,
    ) -> Result<v1::PermitClaims, PermitError> {
        let permit = permit.ok_or(PermitError::Missing)?;
        let remembered = {
            let known = self.authentic.lock();
            known
                .iter()
                .find(|(known, _)| known == permit)
                .map(|(_, claims)| claims.clone())
        };
        let claims = match remembered {
            Some(claims) => claims,
            None => {
                let claims = authentic(permit, &self.keys)?;
                let mut known = self.authentic.lock();
                known.truncate(REMEMBERED - 1);
                known.push_front((permit.clone(), claims.clone()));
                claims
            }
        };
        holds(&claims, instance_id, fingerprint, now)?;
        Ok(claims)
    }
}

/// How far the clocks of two hosts may be apart: permits become valid this long before they are signed.
pub const CLOCK_TOLERANCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const GRANT: Grant<'static> = Grant {
        gateway_id: "g",
        instance_id: "e",
        fingerprint: "f",
        bundle_revision: "r",
        max_plan_tokens: 10,
        max_plan_sequences: 2,
    };

    fn fixture() -> (Signer, KeyRing, SystemTime) {
        let signer = Signer::from_seed([7; 32]);
        let keys = KeyRing::new([&signer.verifying_key()]);
        (signer, keys, SystemTime::now())
    }

    #[test]
    fn a_permit_holds_for_its_executor_binding_and_time_only() {
        let (signer, keys, now) = fixture();
        let second = Duration::from_secs(1);
        let permit = signer.sign(&GRANT, now, now + second);
        let check =
            |instance: &str, fingerprint: &str, at| verify(Some(&permit), &keys, instance, fingerprint, at);
        assert_eq!(check("e", "f", now).unwrap().max_plan_tokens, 10);
        assert_eq!(check("x", "f", now), Err(PermitError::WrongInstance));
        assert_eq!(check("", "f", now), Err(PermitError::WrongInstance));
        assert_eq!(check("e", "x", now), Err(PermitError::WrongFingerprint));
        assert_eq!(check("e", "", now), Err(PermitError::WrongFingerprint));
        assert_eq!(check("e", "f", now - second), Err(PermitError::NotYetValid));
        assert_eq!(check("e", "f", now + second), Err(PermitError::Expired));
        assert_eq!(verify(None, &keys, "e", "f", now), Err(PermitError::Missing));
    }

    #[test]
    fn changed_claims_foreign_keys_and_renamed_keys_are_refused() {
        let (signer, keys, now) = fixture();
        let permit = signer.sign(&GRANT, now, now + Duration::from_secs(1));

        let mut forged = permit.clone();
        let mut claims = v1::PermitClaims::decode(forged.claims.clone()).unwrap();
        claims.max_plan_tokens = 1 << 40;
        forged.claims = claims.encode_to_vec().into();
        assert_eq!(
            verify(Some(&forged), &keys, "e", "f", now),
            Err(PermitError::BadSignature)
        );

        let mut short = permit.clone();
        short.signature = short.signature.slice(..63);
        assert_eq!(
            verify(Some(&short), &keys, "e", "f", now),
            Err(PermitError::BadSignature)
        );

        let foreign = Signer::from_seed([8; 32]);
        let theirs = foreign.sign(&GRANT, now, now + Duration::from_secs(1));
        assert_eq!(
            verify(Some(&theirs), &keys, "e", "f", now),
            Err(PermitError::UnknownKey)
        );

        let renamed = v1::VerifyingKey {
            key_id: signer.key_id.clone(),
            ..foreign.verifying_key()
        };
        assert!(KeyRing::new([&renamed]).is_empty());
        assert_eq!(
            verify(Some(&permit), &KeyRing::default(), "e", "f", now),
            Err(PermitError::UnknownKey)
        );
    }

    #[test]
    fn a_remembered_signature_vouches_for_nothing_else() {
        let (signer, keys, now) = fixture();
        let second = Duration::from_secs(1);
        let permit = signer.sign(&GRANT, now, now + second);
        let verifier = Verifier::new(keys);
        let check = |permit: &v1::SignedPermit, instance: &str, fingerprint: &str, at| {
            verifier.verify(Some(permit), instance, fingerprint, at)
        };
        for _ in 0..2 {
            assert_eq!(check(&permit, "e", "f", now).unwrap().max_plan_tokens, 10);
            assert_eq!(check(&permit, "x", "f", now), Err(PermitError::WrongInstance));
            assert_eq!(check(&permit, "e", "x", now), Err(PermitError::WrongFingerprint));
            assert_eq!(
                check(&permit, "e", "f", now - second),
                Err(PermitError::NotYetValid)
            );
            assert_eq!(check(&permit, "e", "f", now + second), Err(PermitError::Expired));
        }
        // Another message under the remembered signature, and the remembered message under another one.
        let other = signer.sign(
            &Grant {
                max_plan_tokens: 1 << 40,
                ..GRANT
            },
            now,
            now + second,
        );
        let forged = v1::SignedPermit {
            signature: permit.signature.clone(),
            ..other.clone()
        };
        assert_eq!(check(&forged, "e", "f", now), Err(PermitError::BadSignature));
        let forged = v1::SignedPermit {
            signature: other.signature.clone(),
            ..permit.clone()
        };
        assert_eq!(check(&forged, "e", "f", now), Err(PermitError::BadSignature));
        let renamed = v1::SignedPermit {
            key_id: "0".repeat(16),
            ..permit.clone()
        };
        assert_eq!(check(&renamed, "e", "f", now), Err(PermitError::UnknownKey));
        // What is remembered is bounded, and what fell out is verified anew.
        for more in 0..3 * REMEMBERED as u64 {
            let next = signer.sign(
                &Grant {
                    max_plan_tokens: more,
                    ..GRANT
                },
                now,
                now + second,
            );
            let _ = check(&next, "e", "f", now);
        }
        assert!(verifier.authentic.lock().len() <= REMEMBERED);
        assert!(check(&permit, "e", "f", now).is_ok());
        assert_eq!(verifier.verify(None, "e", "f", now), Err(PermitError::Missing));
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let shown = format!("{:?}", Signer::from_seed([7; 32]));
        assert!(!shown.contains("7, 7"), "{shown}");
    }
}
