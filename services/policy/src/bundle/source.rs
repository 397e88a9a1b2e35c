//! Where bundles come from: shipped in the binary, or a folder.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{BundleError, Files};

/// Most bytes of a bundle's files together.
const MAX_BYTES: u64 = 1 << 20;
/// Most files of a bundle.
const MAX_FILES: usize = 64;

/// Where a bundle comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleSource {
    /// `cpu`: every kernel family on the CPU backend.
    Cpu,
    /// `gpu`: the kernels that the project stands for, on devices that the operator lists.
    Gpu,
    /// A folder.
    Folder(PathBuf),
}

macro_rules! shipped {
    ($name:literal) => {
        Files {
            modules: vec![
                (
                    "readiness.rego".to_owned(),
                    include_str!(concat!("../../../../deploy/policies/", $name, "/readiness.rego"))
                        .to_owned(),
                ),
                (
                    "request.rego".to_owned(),
                    include_str!(concat!("../../../../deploy/policies/", $name, "/request.rego")).to_owned(),
                ),
            ],
            data: Some(include_str!(concat!("../../../../deploy/policies/", $name, "/data.json")).to_owned()),
            cases: vec![
                (
                    "readiness_test.json".to_owned(),
                    include_str!(concat!(
                        "../../../../deploy/policies/",
                        $name,
                        "/readiness_test.json"
                    ))
                    .to_owned(),
                ),
                (
                    "request_test.json".to_owned(),
                    include_str!(concat!(
                        "../../../../deploy/policies/",
                        $name,
                        "/request_test.json"
                    ))
                    .to_owned(),
                ),
            ],
        }
    };
}

impl BundleSource {
    /// `cpu` and `gpu` are the shipped ones; everything else is a path.
    pub fn named(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "gpu" => Self::Gpu,
            path => Self::Folder(PathBuf::from(path)),
        }
    }

    /// The bundle's name: of the shipped ones, or the folder's.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Gpu => "gpu".to_owned(),
            Self::Folder(path) => path.file_name().map_or_else(
                || path.display().to_string(),
                |n| n.to_string_lossy().into_owned(),
            ),
        }
    }

    /// Whether it can change while the process runs.
    pub(crate) fn can_change(&self) -> bool {
        matches!(self, Self::Folder(_))
    }

    pub(crate) fn read(&self) -> Result<Files, BundleError> {
        match self {
            Self::Cpu => Ok(shipped!("cpu")),
            Self::Gpu => Ok(shipped!("gpu")),
            Self::Folder(path) => read_folder(path),
        }
    }
}

impl fmt::Display for BundleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            shipped => f.write_str(&shipped.name()),
        }
    }
}

/// Files directly in the folder; other names and hidden files are left alone.
fn read_folder(folder: &Path) -> Result<Files, BundleError> {
    let unreadable = |path: &Path| {
        let path = path.display().to_string();
        move |source| BundleError::Unreadable { path, source }
    };
    let mut files = Files::default();
    let (mut bytes, mut count) = (0, 0);
    for entry in std::fs::read_dir(folder).map_err(unreadable(folder))? {
        let path = entry.map_err(unreadable(folder))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).map(str::to_owned) else {
            continue;
        };
        let wanted = name.ends_with(".rego") || name.ends_with("_test.json") || name == "data.json";
        if name.starts_with('.') || !wanted {
            continue;
        }
        count += 1;
        bytes += std::fs::metadata(&path).map_err(unreadable(&path))?.len();
        if count > MAX_FILES {
            return Err(BundleError::TooLarge("64 files"));
        }
        if bytes > MAX_BYTES {
            return Err(BundleError::TooLarge("1 MiB of files"));
        }
        let text = std::fs::read_to_string(&path).map_err(unreadable(&path))?;
        match name.as_str() {
            "data.json" => files.data = Some(text),
            rego if rego.ends_with(".rego") => files.modules.push((name, text)),
            _ => files.cases.push((name, text)),
        }
    }
    // The order of a folder is the file system's: two readings of the same files must be equal.
    files.modules.sort();
    files.cases.sort();
    Ok(files)
}
