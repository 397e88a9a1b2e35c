//! Findings about a folder, and the errors made of them.

use std::{fmt, path::PathBuf};

use deltagate_kernels_weights::{Dtype, Fault, WeightsError};
use serde::{Serialize, Serializer};

use crate::ConfigError;

/// One reason why a folder is refused.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// File, relative to the folder.
    pub file: String,
    /// Key inside of a JSON file (dotted), or tensor.
    pub key_or_tensor: Option<String>,
    /// What is wrong.
    pub problem: Problem,
}

impl Finding {
    pub(crate) fn file(file: impl Into<String>, problem: Problem) -> Self {
        Self {
            file: file.into(),
            key_or_tensor: None,
            problem,
        }
    }

    pub(crate) fn of(file: impl Into<String>, key_or_tensor: impl Into<String>, problem: Problem) -> Self {
        Self {
            file: file.into(),
            key_or_tensor: Some(key_or_tensor.into()),
            problem,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key_or_tensor, &self.problem) {
            // These name their tensor themselves.
            (_, Problem::Weights(fault)) => write!(f, "{}: {fault}", self.file),
            (Some(subject), problem) => write!(f, "{}: `{subject}` {problem}", self.file),
            (None, problem) => write!(f, "{}: {problem}", self.file),
        }
    }
}

impl From<WeightsError> for Finding {
    fn from(error: WeightsError) -> Self {
        let file = error
            .file
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self {
            file,
            key_or_tensor: error.fault.tensor().map(str::to_owned),
            problem: Problem::Weights(error.fault),
        }
    }
}

impl From<ConfigError> for Finding {
    fn from(error: ConfigError) -> Self {
        let ConfigError { key, reason } = error;
        let key_or_tensor = (!key.is_empty()).then_some(key);
        Self {
            file: "config.json".to_owned(),
            key_or_tensor,
            problem: Problem::Key { reason },
        }
    }
}

/// What is wrong with a file, a key or a tensor.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file is not there.
    #[error("is missing{}", needed_by.map(|by| format!(", {by} needs it")).unwrap_or_default())]
    MissingFile {
        /// Who needs it, if that is not plain.
        needed_by: Option<&'static str>,
    },
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// A directory, a pipe, a device.
    #[error("is not a regular file")]
    NotRegular,
    /// A link to something that is not there.
    #[error("is a link that leads nowhere")]
    DanglingLink,
    /// The file is larger than a file of its kind may be.
    #[error("has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The file is not the JSON that it has to be.
    #[error("is not valid JSON: {0}")]
    Json(String),
    /// A key is missing, has an unusable value, or asks for what is not implemented.
    #[error("{reason}")]
    Key {
        /// Why.
        reason: String,
    },
    /// A safetensors file is refused.
    #[error(transparent)]
    Weights(Fault),
    /// A file name in the index is not a plain name of a safetensors file in the same folder.
    #[error("names a file outside of the folder or no safetensors file")]
    IndexPath,
    /// Two weight layouts lie side by side.
    #[error("lies beside `{other}`, which does not list it")]
    AmbiguousWeights {
        /// The index.
        other: String,
    },
    /// The config asks for this tensor.
    #[error("is missing")]
    MissingTensor,
    /// The tensor is in the shard, but the index does not say so.
    #[error("is not in the index")]
    Unlisted,
    /// The tensor belongs to no part of the model that this version knows.
    #[error("is a tensor that this version does not know")]
    UnknownTensor,
    /// Two files hold a tensor of this name.
    #[error("is in `{other}` as well")]
    DuplicateTensor {
        /// The other file.
        other: String,
    },
    /// The config asks for another shape.
    #[error("has shape {actual:?}, not {expected:?}")]
    Shape {
        /// By the config.
        expected: Vec<usize>,
        /// By the file.
        actual: Vec<usize>,
    },
    /// The dtype is none that this tensor may have.
    #[error("has dtype {dtype}, not F32 or BF16")]
    Dtype {
        /// As the file spells it.
        dtype: Dtype,
    },
    /// A weight is no number. Such a model has no answers.
    #[error("holds {value} at element {element}")]
    NotFinite {
        /// NaN or an infinity.
        value: f32,
        /// Row-major index of the first one.
        element: usize,
    },
    /// A weight and what an adapter adds to it have no finite sum.
    #[error("is not finite at element {element} with the adapter merged")]
    MergedNotFinite {
        /// Row-major index of the first one.
        element: usize,
    },
    /// No known prefix leads to a text backbone.
    #[error(
        "no text backbone under any of the prefixes `model.language_model.`, `language_model.`, `model.` and none"
    )]
    NoBackbone,
    /// More than one prefix leads to a text backbone.
    #[error("text backbones under several prefixes: {}", .0.iter().map(|p| format!("`{p}`")).collect::<Vec<_>>().join(", "))]
    SeveralBackbones(Vec<&'static str>),
    /// The embedding is tied, but the file has another output embedding.
    #[error("differs from `embed_tokens.weight`, though `tie_word_embeddings` is true")]
    NotTied,
    /// The folder belongs to a family that this version does not serve.
    #[error("family `{family}` is not served by this version")]
    UnservedFamily {
        /// The family.
        family: &'static str,
    },
    /// The folder has files of several families.
    #[error("files of several families: {}", .0.join(", "))]
    AmbiguousFamily(Vec<&'static str>),
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why there is no checkpoint, or not this tensor in it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder is refused; there is at least one finding.
    #[error("{} is refused: {}", dir.display(), Summary(findings))]
    Refused {
        /// Folder.
        dir: PathBuf,
        /// Every reason that was found.
        findings: Vec<Finding>,
    },
    /// The checkpoint has no tensor of this name.
    #[error("the checkpoint has no tensor `{name}`")]
    NoTensor {
        /// Unprefixed name.
        name: String,
    },
    /// A tensor cannot be looked at.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// This build was made without a model.
    #[error("this build has no embedded model")]
    NotEmbedded,
    /// The embedded model could not be unpacked.
    #[error("the embedded model cannot be unpacked at {}: {source}", path.display())]
    Cache {
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Files of an unpacked model are not those of this build, even after they were written again.
    #[error("{}: `{file}` is not the file that this build holds", path.display())]
    CacheDamaged {
        /// Folder.
        path: PathBuf,
        /// File.
        file: String,
    },
}

impl CheckpointError {
    /// The reasons, if a folder was refused.
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Refused { findings, .. } => findings,
            _ => &[],
        }
    }
}

/// The first findings in one line; a quantised model has thousands of the same.
struct Summary<'a>(&'a [Finding]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (i, finding) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{finding}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
