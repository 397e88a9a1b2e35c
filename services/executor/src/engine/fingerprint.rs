//! One hash for what computes the answers.

use deltagate_kernels_api::{BindingReport, BindingState};
use sha2::{Digest, Sha256};

use super::{DeviceIdentity, Dtype};

/// SHA-256, lower-case hex, over the model, the dtype, the kind of device and what each family is bound to. Two devices of a kind with
/// the same kernels and the same model have the same fingerprint; what the losing candidates did is no part of it.
pub fn fingerprint(
    report: &BindingReport,
    device: &DeviceIdentity,
    dtype: Dtype,
    model_digest: &str,
) -> String {
    let mut hash = Sha256::new();
    // Each part goes in with its length: no two lists of parts look alike.
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    for part in [
        "deltagate fingerprint 1",
        model_digest,
        dtype.as_str(),
        &device.kind,
        &device.name,
        &device.compute_capability,
    ] {
        add(part);
    }
    let mut bindings: Vec<_> = report.bindings.iter().collect();
    bindings.sort_by_key(|binding| binding.family);
    for binding in bindings {
        add(binding.family.as_str());
        if binding.state == BindingState::Bound {
            [&binding.backend, &binding.version, &binding.source_digest]
                .into_iter()
                .for_each(|part| add(part));
        } else {
            add("not bound");
        }
    }
    hex::encode(hash.finalize())
}
