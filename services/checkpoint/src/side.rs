//! A file of weights beside those of the backbone: a family's own head.

use std::{collections::BTreeSet, path::Path};

use deltagate_kernels_weights::{TensorView, WeightsFile};

use crate::{Finding, Problem, family::SideFile, files};

/// Such a file, open.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) file: WeightsFile,
}

impl Side {
    /// Maps a file that must hold exactly these tensors, each in F32, BF16 or F16.
    pub(crate) fn open(
        dir: &Path,
        wanted: &SideFile,
        needed_by: &'static str,
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let name = wanted.name;
        if !files::exists(dir, name) {
            let needed_by = Some(needed_by);
            findings.push(Finding::file(name, Problem::MissingFile { needed_by }));
            return None;
        }
        let file = match WeightsFile::open(&dir.join(name)) {
            Ok(file) => file,
            Err(error) => {
                findings.push(error.into());
                return None;
            }
        };
        for (tensor, expected) in &wanted.tensors {
            match file.tensor(tensor) {
                Ok(view) if view.shape == *expected => {}
                Ok(view) => {
                    let problem = Problem::Shape {
                        expected: expected.clone(),
                        actual: view.shape.to_vec(),
                    };
                    findings.push(Finding::of(name, tensor, problem));
                }
                Err(_) if !file.contains(tensor) => {
                    findings.push(Finding::of(name, tensor, Problem::MissingTensor));
                }
                Err(error) => findings.push(error.into()),
            }
        }
        let known = |tensor: &&str| wanted.tensors.iter().any(|(name, _)| name == tensor);
        let unknown: BTreeSet<&str> = file.names().filter(|tensor| !known(tensor)).collect();
        for tensor in unknown {
            findings.push(Finding::of(name, tensor, Problem::UnknownTensor));
        }
        Some(Self { name, file })
    }

    /// Its tensors, by name.
    pub(crate) fn tensors(&self) -> Vec<TensorView<'_>> {
        let mut names: Vec<&str> = self.file.names().collect();
        names.sort_unstable();
        names
            .into_iter()
            .filter_map(|name| self.file.tensor(name).ok())
            .collect()
    }
}
