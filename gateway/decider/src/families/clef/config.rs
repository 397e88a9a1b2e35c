//! `joint_head_config.json`: sizes of the head. Prompts and answers depend on none of them.

use serde_json::Value;

use crate::FamilyError;
use crate::families::keys::{fault, required, root};

const SIZES: [&str; 6] = [
    "hidden_size",
    "width",
    "routing_layers",
    "layers",
    "heads",
    "feedforward",
];

/// Checks that all sizes are there, and nothing else.
pub fn check(config: &Value) -> Result<(), FamilyError> {
    let config = root(config)?;
    if let Some(key) = config.keys().find(|key| !SIZES.contains(&key.as_str())) {
        return Err(fault(key, "is not known"));
    }
    for key in SIZES {
        if required(config, key)?.as_u64().is_none_or(|size| size == 0) {
            return Err(fault(key, "is not an integer above 0"));
        }
    }
    Ok(())
}
