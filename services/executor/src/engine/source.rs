//! Where tensors come from.

use deltagate_checkpoint::{Checkpoint, JointHeadConfig, ModelConfig, Weights};
use deltagate_kernels_weights::TensorView;

/// A model whose tensors can be read by unprefixed name, such as `layers.3.self_attn.q_proj.weight`.
pub trait TensorSource {
    /// Its sizes.
    fn config(&self) -> &ModelConfig;

    /// A tensor; the error is for people.
    ///
    /// # Errors
    /// If there is none of that name.
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String>;

    /// A linear layer's tensor as it is to be put on the device, which may be another than that of the file: a sum that is made when it
    /// is asked for and freed afterwards. Dtype and shape are those of [`Self::tensor`].
    ///
    /// # Errors
    /// If there is none of that name, or it cannot be made.
    fn weights(&self, name: &str) -> Result<Weights<'_>, String> {
        self.tensor(name).map(Weights::from)
    }

    /// The output embedding `[vocab_size, hidden_size]`, if the model has one. The view of a tied one is that of
    /// `embed_tokens.weight`: the same bytes.
    ///
    /// # Errors
    /// If it cannot be read.
    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String>;

    /// The decision head `[rows, hidden_size]`, if the model has one.
    ///
    /// # Errors
    /// If it cannot be read.
    fn decision_head(&self) -> Result<Option<TensorView<'_>>, String> {
        Ok(None)
    }

    /// Sizes of the joint head, if the model has one.
    fn joint_head(&self) -> Option<JointHeadConfig> {
        None
    }

    /// A tensor of the joint head by its name, such as `layers.0.linear1.weight`.
    ///
    /// # Errors
    /// If there is none of that name.
    fn joint_head_tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        Err(format!("there is no joint head with a tensor `{name}`"))
    }
}

impl TensorSource for Checkpoint {
    fn config(&self) -> &ModelConfig {
        &self.card().config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        Self::tensor(self, name).map_err(|error| error.to_string())
    }

    fn weights(&self, name: &str) -> Result<Weights<'_>, String> {
        Self::weights(self, name).map_err(|error| error.to_string())
    }

    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String> {
        Self::output_embedding(self).map_err(|error| error.to_string())
    }

    fn decision_head(&self) -> Result<Option<TensorView<'_>>, String> {
        Self::decision_head(self).map_err(|error| error.to_string())
    }

    fn joint_head(&self) -> Option<JointHeadConfig> {
        Self::joint_head(self).map(|head| *head.config())
    }

    fn joint_head_tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        let head = Self::joint_head(self).ok_or("there is no joint head")?;
        head.tensor(name).map_err(|error| error.to_string())
    }
}
