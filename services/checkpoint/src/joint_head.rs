//! The tensors of a joint head: a file of its own beside the weights of the backbone.

use deltagate_kernels_weights::{Dtype, TensorView, WeightsFile};
use serde::{Deserialize, Serialize};

use crate::{CheckpointError, Finding, Problem, side::Side};

/// Sizes of a joint head, named as in its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointHeadConfig {
    /// Columns of the rows that it reads: those of the backbone.
    pub hidden_size: usize,
    /// Columns inside of the head.
    pub width: usize,
    /// Layers in which options look up evidence.
    pub routing_layers: usize,
    /// Layers of the decoder over questions.
    pub layers: usize,
    /// Heads of every attention; divides the width.
    pub heads: usize,
    /// Columns inside of the feed-forward layers.
    pub feedforward: usize,
}

/// An opened joint head: exactly the tensors that its sizes ask for, F32 or BF16.
#[derive(Clone, Copy)]
pub struct JointHead<'a> {
    pub(crate) config: JointHeadConfig,
    pub(crate) file: &'a WeightsFile,
}

impl<'a> JointHead<'a> {
    /// Its sizes.
    pub const fn config(&self) -> &JointHeadConfig {
        &self.config
    }

    /// A tensor by its name, such as `evidence_layers.0.attention.in_proj_weight`.
    ///
    /// # Errors
    /// If the head has no such tensor.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'a>, CheckpointError> {
        self.file.tensor(name).map_err(|_| CheckpointError::NoTensor {
            name: name.to_owned(),
        })
    }
}

/// Refuses tensors of a dtype that no joint head has.
pub(crate) fn check_dtypes(side: &Side, findings: &mut Vec<Finding>) {
    for view in side.tensors().into_iter().filter(|view| view.dtype == Dtype::F16) {
        let problem = Problem::Dtype { dtype: view.dtype };
        findings.push(Finding::of(side.name, view.name, problem));
    }
}

/// Name and shape of every tensor of a joint head.
pub fn joint_head_tensors(config: &JointHeadConfig) -> Vec<(String, Vec<usize>)> {
    let JointHeadConfig {
        hidden_size: hidden,
        width,
        feedforward: inner,
        ..
    } = *config;
    let mut tensors = Tensors(Vec::new());
    tensors.pair("hidden_norm", &[hidden]);
    for name in [
        "memory",
        "question",
        "option_question",
        "global",
        "option_context",
        "option_lexical",
    ] {
        tensors.add(format!("{name}_projection.weight"), &[width, hidden]);
    }
    tensors.add("type_embedding.weight".to_owned(), &[3, width]);
    for name in ["option_summary_norm", "field_norm", "option_norm"] {
        tensors.pair(name, &[width]);
    }
    for at in (0..config.routing_layers).map(|layer| format!("evidence_layers.{layer}")) {
        for norm in ["query_norm", "memory_norm", "feedforward_norm"] {
            tensors.pair(&format!("{at}.{norm}"), &[width]);
        }
        tensors.attention(&format!("{at}.attention"), width);
        tensors.pair(&format!("{at}.feedforward.0"), &[inner, width]);
        tensors.pair(&format!("{at}.feedforward.3"), &[width, inner]);
    }
    for at in (0..config.layers).map(|layer| format!("layers.{layer}")) {
        for norm in ["norm1", "norm2", "norm3"] {
            tensors.pair(&format!("{at}.{norm}"), &[width]);
        }
        tensors.attention(&format!("{at}.self_attn"), width);
        tensors.attention(&format!("{at}.multihead_attn"), width);
        tensors.pair(&format!("{at}.linear1"), &[inner, width]);
        tensors.pair(&format!("{at}.linear2"), &[width, inner]);
    }
    tensors.pair("residual_scorer.0", &[width, 4 * width]);
    tensors.pair("residual_scorer.3", &[1, width]);
    for name in ["prior_logit_scale", "joint_logit_scale", "residual_gate"] {
        tensors.add(name.to_owned(), &[]);
    }
    tensors.0
}

struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn add(&mut self, name: String, shape: &[usize]) {
        self.0.push((name, shape.to_vec()));
    }

    /// A weight of this shape, and a bias as long as its first side.
    fn pair(&mut self, name: &str, shape: &[usize]) {
        self.add(format!("{name}.weight"), shape);
        self.add(format!("{name}.bias"), &shape[..1]);
    }

    fn attention(&mut self, name: &str, width: usize) {
        self.add(format!("{name}.in_proj_weight"), &[3 * width, width]);
        self.add(format!("{name}.in_proj_bias"), &[3 * width]);
        self.pair(&format!("{name}.out_proj"), &[width, width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_heads_have_the_published_numbers_of_weights() {
        for (hidden_size, weights) in [(5120, 128_056_324), (4096, 121_762_820)] {
            let config = JointHeadConfig {
                hidden_size,
                width: 1024,
                routing_layers: 2,
                layers: 4,
                heads: 16,
                feedforward: 4096,
            };
            let tensors = joint_head_tensors(&config);
            let count = |(_, shape): &(String, Vec<usize>)| shape.iter().product::<usize>();
            assert_eq!(tensors.iter().map(count).sum::<usize>(), weights);
        }
    }
}
