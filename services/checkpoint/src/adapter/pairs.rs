//! Which tensors of an adapter belong to which weight.

use std::collections::BTreeMap;

use deltagate_kernels_weights::WeightsFile;

use super::Settings;
use crate::{Finding, ModelConfig, Problem, layout::PREFIXES, tensors::backbone_tensors};

/// What PEFT puts before the names of the model that it wraps.
const WRAPPER: &str = "base_model.model.";

/// Names in the file.
pub(super) struct Pair {
    /// `[r, in]`.
    pub(super) a: String,
    /// `[out, r]`.
    pub(super) b: String,
}

/// Pairs by the unprefixed name of the weight. A module that the config names has both its tensors, and there are no others.
pub(super) fn find(
    (config_file, file): (&str, &str),
    weights: &WeightsFile,
    settings: &Settings,
    model: &ModelConfig,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, Pair> {
    let mut names: Vec<&str> = weights.names().collect();
    names.sort_unstable();
    // The wrapped model may be another class than the one whose names the base has, so the prefix is the adapter's own.
    let prefix = names.iter().find_map(|name| {
        let name = name.strip_prefix(WRAPPER)?;
        PREFIXES.into_iter().find(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with("layers."))
        })
    });
    let prefix = prefix.unwrap_or_default();
    let mut used = vec![false; settings.targets.len()];
    let mut pairs = BTreeMap::new();
    let mut read = Vec::new();
    for (weight, shape) in backbone_tensors(model) {
        let (Some(module), [outputs, inputs]) = (weight.strip_suffix(".weight"), &shape[..]) else {
            continue;
        };
        let mut is_target = false;
        for (target, used) in settings.targets.iter().zip(&mut used) {
            if module.starts_with("layers.") && ends_in(module, target) {
                (is_target, *used) = (true, true);
            }
        }
        if !is_target {
            continue;
        }
        let name = |side: &str| format!("{WRAPPER}{prefix}{module}.lora_{side}.weight");
        let pair = Pair {
            a: name("A"),
            b: name("B"),
        };
        for (name, shape) in [
            (&pair.a, [settings.rank, *inputs]),
            (&pair.b, [*outputs, settings.rank]),
        ] {
            check(file, weights, name, &shape, findings);
            read.push(name.clone());
        }
        pairs.insert(weight, pair);
    }
    for (target, _) in settings.targets.iter().zip(used).filter(|(_, used)| !used) {
        let reason = format!("names `{target}`, which is no linear layer of the text backbone");
        findings.push(Finding::of(
            config_file,
            "target_modules",
            Problem::Key { reason },
        ));
    }
    read.sort_unstable();
    for name in names {
        if read.binary_search_by(|read| read.as_str().cmp(name)).is_err() {
            findings.push(Finding::of(file, name, Problem::UnknownTensor));
        }
    }
    pairs
}

/// Whether the last parts of a module's name are these.
fn ends_in(module: &str, target: &str) -> bool {
    module
        .strip_suffix(target)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn check(file: &str, weights: &WeightsFile, name: &str, shape: &[usize], findings: &mut Vec<Finding>) {
    if !weights.contains(name) {
        return findings.push(Finding::of(file, name, Problem::MissingTensor));
    }
    match weights.tensor(name) {
        Ok(view) if view.shape == shape => {}
        Ok(view) => {
            let problem = Problem::Shape {
                expected: shape.to_vec(),
                actual: view.shape.to_vec(),
            };
            findings.push(Finding::of(file, name, problem));
        }
        Err(error) => findings.push(Finding {
            file: file.to_owned(),
            ..error.into()
        }),
    }
}
