//! Configuration: defaults < file < environment < command line; an unknown key anywhere is an error that names
//! where it came from.
//!
//! The environment variable of `executor.policy_endpoint` is `DELTAGATE_EXECUTOR__POLICY_ENDPOINT`. Empty variables
//! count as unset.

mod origin;
mod source;

use std::path::{Path, PathBuf};

use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
};
use serde::{Serialize, de::DeserializeOwned};

pub use origin::Origin;
use source::{CommandLine, Environment};

/// Prefix of the environment variables.
pub const PREFIX: &str = "DELTAGATE_";

/// Variables with the prefix that are not configuration keys.
pub const RESERVED: [&str; 2] = ["DELTAGATE_CONFIG", "DELTAGATE_CACHE_DIR"];

/// A configuration and where each of its keys came from.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The configuration.
    pub value: T,
    /// Every key, in order, with its value (secrets redacted) and origin.
    pub origins: Vec<Origin>,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The named file cannot be read.
    #[error("cannot read configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// No key of this name exists.
    #[error("unknown key `{key}` in {origin}; expected one of {expected}")]
    UnknownKey {
        /// The dotted key.
        key: String,
        /// File path, environment variable, or flag.
        origin: String,
        /// The keys that exist there.
        expected: String,
    },
    /// A value is not usable.
    #[error("invalid value for `{key}` in {origin}: {reason}")]
    Invalid {
        /// The dotted key; empty when the document as a whole is at fault.
        key: String,
        /// File path, environment variable, or flag.
        origin: String,
        /// What is wrong.
        reason: String,
    },
}

/// Loads a configuration from an optional file, this process's environment, and overrides from the command line.
///
/// `T` and its parts must be `deny_unknown_fields`. Overrides are dotted keys with JSON values.
pub fn load<T: DeserializeOwned + Serialize + Default>(
    file: Option<&Path>,
    overrides: &[(String, serde_json::Value)],
) -> Result<Loaded<T>, ConfigError> {
    // A variable that is not Unicode cannot be one of ours: names are ASCII, and so is every value that can matter.
    let environment =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    load_from(file, environment, overrides)
}

/// [`load`] with an environment of the caller's choice.
pub fn load_from<T: DeserializeOwned + Serialize + Default>(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    overrides: &[(String, serde_json::Value)],
) -> Result<Loaded<T>, ConfigError> {
    let mut figment = Figment::from(Serialized::defaults(T::default()));
    if let Some(path) = file {
        // Read here for an error that says why; `file_exact` neither searches parents nor forgives a missing file.
        std::fs::metadata(path)
            .and_then(|_| std::fs::File::open(path))
            .map_err(|source| ConfigError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
        figment = figment.merge(Toml::file_exact(path));
    }
    figment = figment
        .merge(Environment::new(environment))
        .merge(CommandLine::new(overrides));
    let value = figment.extract::<T>().map_err(|error| refuse(&error))?;
    Ok(Loaded {
        value,
        origins: origin::list(&figment),
    })
}

fn refuse(error: &figment::Error) -> ConfigError {
    use figment::error::Kind;
    let mut path = error.path.clone();
    let origin = match &error.metadata {
        Some(metadata) => origin::describe(metadata, &path),
        None => "defaults".to_owned(),
    };
    match &error.kind {
        Kind::UnknownField(field, expected) => {
            if path.last() != Some(field) {
                path.push(field.clone());
            }
            let origin = error
                .metadata
                .as_ref()
                .map_or(origin, |m| origin::describe(m, &path));
            ConfigError::UnknownKey {
                key: path.join("."),
                origin,
                expected: expected.join(", "),
            }
        }
        kind => ConfigError::Invalid {
            key: path.join("."),
            origin,
            reason: kind.to_string(),
        },
    }
}
