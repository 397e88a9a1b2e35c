//! What the operator prefers for each kernel family.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::KernelFamily;

/// Preference for one family: backend names in order, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(untagged, expecting = "a backend name, a list of backend names, or \"auto\"")]
pub enum Preference {
    /// The fastest candidate that passes its probe.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// Exactly this backend.
    One(String),
    /// The first of these that passes its probe; no other.
    Ordered(Vec<String>),
}

impl Preference {
    /// The names in order; empty for `auto`.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Auto => &[],
            Self::One(name) => std::slice::from_ref(name),
            Self::Ordered(names) => names,
        }
    }
}

mod auto {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("auto")
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "auto" => Ok(()),
            _ => Err(D::Error::custom("not `auto`")),
        }
    }
}

/// Preferences of all families; a family that is not named is `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Preferences(BTreeMap<KernelFamily, Preference>);

impl Preferences {
    /// The preference of one family.
    pub fn get(&self, family: KernelFamily) -> Preference {
        self.0.get(&family).cloned().unwrap_or_default()
    }

    /// Sets the preference of one family.
    pub fn set(&mut self, family: KernelFamily, preference: Preference) {
        self.0.insert(family, preference);
    }
}
