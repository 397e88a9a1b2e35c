//! Which files hold the weights.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Component, Path},
};

use deltagate_kernels_weights::WeightsFile;
use serde::{
    Deserialize,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::{Finding, Problem, files};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Mapped files of the weights, in the order of their names.
pub(crate) struct Shards {
    pub(crate) files: Vec<(String, WeightsFile)>,
    /// Tensor to file, if there is an index.
    pub(crate) listed: Option<BTreeMap<String, String>>,
}

/// Maps `model.safetensors`, or what the index names. Files that cannot be used become findings.
pub(crate) fn open(dir: &Path, findings: &mut Vec<Finding>) -> Shards {
    if !files::exists(dir, INDEX) {
        return Shards {
            files: map(dir, [SINGLE.to_owned()], findings),
            listed: None,
        };
    }
    let listed = match files::read(dir, INDEX, MAX_INDEX_BYTES).and_then(|bytes| read(&bytes)) {
        Ok(listed) => listed,
        Err(finding) => {
            findings.push(finding);
            return Shards {
                files: Vec::new(),
                listed: None,
            };
        }
    };
    let mut names = BTreeSet::new();
    for (tensor, file) in &listed {
        if is_plain(file) {
            names.insert(file.clone());
        } else {
            findings.push(Finding::of(
                INDEX,
                format!("weight_map.{tensor}"),
                Problem::IndexPath,
            ));
        }
    }
    if listed.is_empty() {
        findings.push(Finding::of(
            INDEX,
            "weight_map",
            Problem::Key {
                reason: "lists no tensor".to_owned(),
            },
        ));
    }
    if files::exists(dir, SINGLE) && !names.contains(SINGLE) {
        findings.push(Finding::file(
            SINGLE,
            Problem::AmbiguousWeights {
                other: INDEX.to_owned(),
            },
        ));
    }
    Shards {
        files: map(dir, names, findings),
        listed: Some(listed),
    }
}

fn map(
    dir: &Path,
    names: impl IntoIterator<Item = String>,
    findings: &mut Vec<Finding>,
) -> Vec<(String, WeightsFile)> {
    let mut shards = Vec::new();
    for name in names {
        if !files::exists(dir, &name) {
            findings.push(Finding::file(name, Problem::MissingFile { needed_by: None }));
            continue;
        }
        let target = fs::metadata(dir.join(&name));
        if target.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            findings.push(Finding::file(name, Problem::DanglingLink));
            continue;
        }
        match WeightsFile::open(&dir.join(&name)) {
            Ok(file) => shards.push((name, file)),
            Err(error) => findings.push(error.into()),
        }
    }
    shards
}

/// A file name and nothing else: an index must not lead out of its folder.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let single = matches!((components.next(), components.next()), (Some(Component::Normal(part)), None) if part == name);
    single && !name.contains(['/', '\\', '\0']) && name.ends_with(".safetensors")
}

fn read(bytes: &[u8]) -> Result<BTreeMap<String, String>, Finding> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Index {
        #[serde(default, rename = "metadata")]
        _metadata: IgnoredAny,
        weight_map: Entries,
    }

    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| Finding::file(INDEX, Problem::Json(error.to_string())))?;
    let mut listed = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if listed.insert(tensor.clone(), file).is_some() {
            let reason = "stands twice".to_owned();
            return Err(Finding::of(
                INDEX,
                format!("weight_map.{tensor}"),
                Problem::Key { reason },
            ));
        }
    }
    Ok(listed)
}

/// Entries of the map in their order, duplicates included.
struct Entries(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names by tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn only_plain_names_of_safetensors_are_followed() {
        assert!(is_plain("model-00001-of-00002.safetensors"));
        for name in [
            "",
            ".",
            "..",
            "../model.safetensors",
            "/etc/model.safetensors",
            "a/model.safetensors",
            "./model.safetensors",
            "model.safetensors/",
            "a\\model.safetensors",
            "model.safetensors\0.safetensors",
            "model.bin",
        ] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
