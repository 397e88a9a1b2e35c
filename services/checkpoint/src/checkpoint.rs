//! An opened model folder.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use deltagate_kernels_weights::TensorView;

use crate::{
    CheckpointError, JointHead, JointHeadConfig, ModelCard, Weights,
    adapter::Adapter,
    cache, embedded,
    examine::examine,
    index::Shards,
    layout::{Head, Layout},
    side::Side,
    values,
};

/// An opened and validated model folder. Its tensors stay mapped, so the files must stay as they are: replace a folder, never a file in
/// it.
pub struct Checkpoint {
    dir: PathBuf,
    card: ModelCard,
    opened: Opened,
}

pub(crate) struct Opened {
    pub(crate) shards: Shards,
    pub(crate) layout: Layout,
    pub(crate) side: Option<Side>,
    /// Name of the decision head, in the side file or beside the backbone.
    pub(crate) decision_head: Option<&'static str>,
    /// What is merged into the weights as they are read.
    pub(crate) adapter: Option<Adapter>,
    /// Sizes of the joint head, whose tensors are those of the side file.
    pub(crate) joint_head: Option<JointHeadConfig>,
}

impl Checkpoint {
    pub(crate) fn new(dir: &Path, card: ModelCard, opened: Opened) -> Self {
        Self {
            dir: dir.to_owned(),
            card,
            opened,
        }
    }

    /// Opens a folder with `config.json` and `model.safetensors`, or with shards and their `model.safetensors.index.json`.
    ///
    /// # Errors
    /// [`CheckpointError::Refused`] with everything that is wrong: files, keys that would change the arithmetic, tensor names, shapes,
    /// dtypes, families that are not served or of which several are there.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        examine(dir).map_err(|findings| CheckpointError::Refused {
            dir: dir.to_owned(),
            findings,
        })
    }

    /// Unpacks the model that this build holds and opens it like any other folder.
    ///
    /// It goes to `$DELTAGATE_CACHE_DIR`, else to `deltagate` in `$XDG_CACHE_HOME` or `~/.cache`, else to the directory for temporary
    /// files (`deltagate-models`), in a folder that is named by its digest, written aside and renamed, readable by its owner only. Files that are there
    /// already are used if they still have the right digests, and are written anew if not.
    ///
    /// # Errors
    /// If the build holds no model, or it cannot be unpacked.
    pub fn embedded() -> Result<Self, CheckpointError> {
        let model = embedded::model().ok_or(CheckpointError::NotEmbedded)?;
        Self::open(&cache::unpack_by_default(
            &model,
            &cache::Environment::of_process(),
        )?)
    }

    /// Like [`Self::embedded`], but under a directory of the caller's choice.
    ///
    /// # Errors
    /// If the build holds no model, or it cannot be unpacked there.
    pub fn embedded_in(root: &Path) -> Result<Self, CheckpointError> {
        let model = embedded::model().ok_or(CheckpointError::NotEmbedded)?;
        Self::open(&cache::unpack(&model, &cache::models_in(root))?)
    }

    /// Looks at every weight that is read, which takes as long as reading them. Opening does not; loading finds the same on its way.
    ///
    /// # Errors
    /// [`CheckpointError::Refused`] with each tensor that holds NaN or an infinity.
    pub fn check_values(&self) -> Result<(), CheckpointError> {
        let findings = values::not_finite(&self.opened);
        if findings.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Refused {
            dir: self.dir.clone(),
            findings,
        })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What others need to know about it.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// A tensor by its unprefixed name, such as `layers.3.self_attn.q_proj.weight`; F32 or BF16, of the shape that the config asks for.
    /// It is the tensor of the base model: what an adapter adds is only in [`Self::weights`].
    ///
    /// # Errors
    /// If the model has no such tensor.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, CheckpointError> {
        let Opened { shards, layout, .. } = &self.opened;
        layout
            .view(shards, name)
            .ok_or_else(|| CheckpointError::NoTensor {
                name: name.to_owned(),
            })
    }

    /// A tensor as it is to be loaded: [`Self::tensor`], with what an adapter adds to it merged in.
    ///
    /// # Errors
    /// If the model has no such tensor, or a sum is not finite.
    pub fn weights(&self, name: &str) -> Result<Weights<'_>, CheckpointError> {
        let base = self.tensor(name)?;
        match self
            .opened
            .adapter
            .as_ref()
            .and_then(|adapter| adapter.merged(&base))
        {
            None => Ok(base.into()),
            Some(Ok(bytes)) => Ok(Weights::merged(base, bytes)),
            Some(Err(finding)) => Err(CheckpointError::Refused {
                dir: self.dir.clone(),
                findings: vec![finding],
            }),
        }
    }

    /// The output embedding, `[vocab_size, hidden_size]`: `lm_head.weight`, or `embed_tokens.weight` if it is tied, or none.
    ///
    /// # Errors
    /// None for a checkpoint that was opened.
    pub fn output_embedding(&self) -> Result<Option<TensorView<'_>>, CheckpointError> {
        match self.opened.layout.head {
            Head::Bare => Ok(None),
            Head::Tied => self.tensor("embed_tokens.weight").map(Some),
            Head::Own => self.tensor("lm_head.weight").map(Some),
        }
    }

    /// The decision head, `[rows, hidden_size]`, if the family has one.
    ///
    /// # Errors
    /// None for a checkpoint that was opened.
    pub fn decision_head(&self) -> Result<Option<TensorView<'_>>, CheckpointError> {
        let Some(name) = self.opened.decision_head else {
            return Ok(None);
        };
        match &self.opened.side {
            None => self.tensor(name).map(Some),
            Some(side) => match side.file.tensor(name) {
                Ok(view) => Ok(Some(view)),
                Err(_) => Err(CheckpointError::NoTensor {
                    name: name.to_owned(),
                }),
            },
        }
    }

    /// The head that reads every row of a sequence, if the family has one.
    pub fn joint_head(&self) -> Option<JointHead<'_>> {
        let Opened { side, joint_head, .. } = &self.opened;
        let (config, side) = (*joint_head).zip(side.as_ref())?;
        Some(JointHead {
            config,
            file: &side.file,
        })
    }

    /// Where the asset with this SHA-256 (lower-case hex) lies; none if the card has no such asset.
    pub fn asset_path(&self, sha256: &str) -> Option<PathBuf> {
        let asset = self.card.assets.iter().find(|asset| asset.sha256 == sha256)?;
        Some(self.dir.join(&asset.name))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("dir", &self.dir)
            .field("digest", &self.card.digest)
            .finish()
    }
}
