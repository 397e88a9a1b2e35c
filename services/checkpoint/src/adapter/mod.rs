//! A low-rank adapter (PEFT LoRA) beside a base model: merged into the base's weights as they are read, never kept beside them.
//!
//! For each adapted matrix `W [out, in]` the engine gets `W + lora_alpha / r · B A`, with `A [r, in]` and `B [out, r]`. The product and
//! the sum are taken in f32 and rounded once, to the dtype of `W`. A model that keeps its adapter unmerged adds the branch to the output
//! of the base in f32 instead; the two differ by that rounding of `W`, which is the rounding of a merged checkpoint.

mod config;
mod merge;
mod pairs;

use std::{collections::BTreeMap, path::Path};

use deltagate_kernels_weights::{TensorView, WeightsFile};
use serde_json::Value;

pub(crate) use self::config::Settings;
use crate::{Finding, ModelConfig, Problem, files};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Where the two files may lie: in a folder of the text adapter, or beside `config.json`.
const FOLDERS: [&str; 2] = ["text/", ""];
/// Files that only a folder with an adapter has.
pub(crate) const MARKERS: [&str; 5] = [
    "text/adapter_config.json",
    "text/adapter_model.safetensors",
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
];

/// `adapter_config.json` as read.
pub(crate) struct Found {
    /// `text/` or nothing.
    folder: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) value: Value,
    /// None if something is wrong with it.
    settings: Option<Settings>,
}

impl Found {
    /// Name of the configuration, relative to the folder of the model.
    pub(crate) fn config_file(&self) -> &'static str {
        config_file(self.folder)
    }
}

fn config_file(folder: &str) -> &'static str {
    if folder.is_empty() { MARKERS[2] } else { MARKERS[0] }
}

fn weights_file(folder: &str) -> &'static str {
    if folder.is_empty() { MARKERS[3] } else { MARKERS[1] }
}

/// The adapter's configuration, key by key. What is wrong becomes a finding.
pub(crate) fn find(dir: &Path, findings: &mut Vec<Finding>) -> Option<Found> {
    let here = |folder: &&str| {
        [CONFIG, WEIGHTS]
            .iter()
            .any(|name| files::exists(dir, &format!("{folder}{name}")))
    };
    let folders: Vec<&'static str> = FOLDERS.into_iter().filter(here).collect();
    let folder = match folders[..] {
        [folder] => folder,
        [] => "",
        _ => {
            let problem = Problem::AmbiguousWeights {
                other: config_file("").to_owned(),
            };
            findings.push(Finding::file(config_file("text/"), problem));
            return None;
        }
    };
    let file = config_file(folder);
    match files::json(dir, file) {
        Ok((bytes, value)) => {
            let before = findings.len();
            let settings = config::read(file, &value, findings);
            Some(Found {
                folder,
                bytes,
                settings: settings.filter(|_| findings.len() == before),
                value,
            })
        }
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

/// An adapter whose tensors fit the model.
pub(crate) struct Adapter {
    file: &'static str,
    weights: WeightsFile,
    /// Names of `A` and `B` by the unprefixed name of the weight that they change.
    pairs: BTreeMap<String, pairs::Pair>,
    scale: f32,
}

/// Maps the adapter's tensors and matches them, each with the weight that it changes.
pub(crate) fn open(
    dir: &Path,
    found: &Found,
    model: Option<&ModelConfig>,
    findings: &mut Vec<Finding>,
) -> Option<Adapter> {
    let file = weights_file(found.folder);
    if !files::exists(dir, file) {
        findings.push(Finding::file(
            file,
            Problem::MissingFile {
                needed_by: Some(config_file(found.folder)),
            },
        ));
        return None;
    }
    let weights = match WeightsFile::open(&dir.join(file)) {
        Ok(weights) => weights,
        Err(error) => {
            findings.push(Finding {
                file: file.to_owned(),
                ..error.into()
            });
            return None;
        }
    };
    let (settings, model) = (found.settings.as_ref()?, model?);
    let pairs = pairs::find(
        (config_file(found.folder), file),
        &weights,
        settings,
        model,
        findings,
    );
    Some(Adapter {
        file,
        weights,
        pairs,
        scale: settings.scale,
    })
}

impl Adapter {
    /// Name of the file with the tensors.
    pub(crate) const fn file(&self) -> &'static str {
        self.file
    }

    /// All of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.weights.bytes()
    }

    /// Unprefixed names of the weights that it changes, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// Every tensor of it.
    pub(crate) fn views(&self) -> impl Iterator<Item = TensorView<'_>> {
        let names = self.pairs.values().flat_map(|pair| [&pair.a, &pair.b]);
        names.filter_map(|name| self.weights.tensor(name).ok())
    }

    /// The bytes of `base` with what the adapter adds; none if it leaves this weight as it is.
    ///
    /// # Errors
    /// A finding if a sum is not finite.
    pub(crate) fn merged(&self, base: &TensorView<'_>) -> Option<Result<Vec<u8>, Finding>> {
        let pair = self.pairs.get(base.name)?;
        let tensor = |name: &str| self.weights.tensor(name).map_err(Finding::from);
        let both = tensor(&pair.a).and_then(|a| Ok((a, tensor(&pair.b)?)));
        Some(both.and_then(|(a, b)| {
            merge::merged(base, &a, &b, self.scale)
                .map_err(|element| Finding::of(self.file, base.name, Problem::MergedNotFinite { element }))
        }))
    }
}
