//! What of `adapter_config.json` the family itself needs: nothing. What it says about weights is the loader's.

use serde_json::Value;

use crate::FamilyError;
use crate::families::keys::{fault, required, root};

/// Checks that the file is an adapter's. Every one is read in the same way.
pub(super) fn check(config: &Value) -> Result<(), FamilyError> {
    let kind = required(root(config)?, "peft_type")?;
    if kind == "LORA" {
        Ok(())
    } else {
        Err(fault("peft_type", "is not LORA"))
    }
}
