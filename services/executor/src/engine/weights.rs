//! Weights on the device, fused while they load.

use deltagate_checkpoint::{LayerKind, ModelConfig, Weights};
use deltagate_kernels_api::{JointHead, Space};
use deltagate_kernels_weights::TensorView;

use super::{
    EngineError, LoadProgress, TensorSource,
    device::Device,
    joint_head,
    shapes::{attention_shape, delta_rule_shape},
};

pub(super) struct ModelWeights<S: Space> {
    pub(super) embedding: S::Tensor,
    pub(super) layers: Vec<LayerWeights<S>>,
    pub(super) final_norm: S::Tensor,
    /// Shares the memory of `embedding` when it is tied.
    pub(super) output_embedding: Option<S::Tensor>,
    pub(super) decision_head: Option<S::Tensor>,
    pub(super) joint_head: Option<JointHead<S>>,
}

pub(super) struct LayerWeights<S: Space> {
    pub(super) input_norm: S::Tensor,
    pub(super) mixer: MixerWeights<S>,
    pub(super) mlp_norm: S::Tensor,
    /// gate | up.
    pub(super) gate_up: S::Matrix,
    pub(super) down: S::Matrix,
}

pub(super) enum MixerWeights<S: Space> {
    DeltaRule(DeltaRuleWeights<S>),
    Attention(FullAttentionWeights<S>),
}

impl<S: Space> MixerWeights<S> {
    pub(super) const fn input(&self) -> &S::Matrix {
        match self {
            Self::DeltaRule(w) => &w.input,
            Self::Attention(w) => &w.input,
        }
    }

    pub(super) const fn output(&self) -> &S::Matrix {
        match self {
            Self::DeltaRule(w) => &w.output,
            Self::Attention(w) => &w.output,
        }
    }
}

pub(super) struct DeltaRuleWeights<S: Space> {
    /// q | k | v | z | b | a.
    pub(super) input: S::Matrix,
    pub(super) taps: S::Tensor,
    pub(super) a_log: S::Tensor,
    pub(super) dt_bias: S::Tensor,
    pub(super) norm: S::Tensor,
    pub(super) output: S::Matrix,
}

pub(super) struct FullAttentionWeights<S: Space> {
    /// q and gate | k | v.
    pub(super) input: S::Matrix,
    pub(super) q_norm: S::Tensor,
    pub(super) k_norm: S::Tensor,
    pub(super) output: S::Matrix,
}

/// Reads tensors, puts them on the device and counts their bytes.
pub(super) struct Reader<'a, D: Device> {
    pub(super) device: &'a D,
    pub(super) source: &'a dyn TensorSource,
    progress: &'a mut dyn FnMut(LoadProgress),
    done: u64,
    total: u64,
}

pub(super) fn load<D: Device>(
    device: &D,
    source: &dyn TensorSource,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<ModelWeights<D::Space>, EngineError> {
    let config = source.config();
    let head = source
        .output_embedding()
        .map_err(|reason| failed("lm_head.weight", reason))?;
    let decision_head = source
        .decision_head()
        .map_err(|reason| failed("decision head", reason))?;
    let mut reader = Reader {
        device,
        source,
        progress,
        done: 0,
        total: 0,
    };
    let embedding = reader.view("embed_tokens.weight")?;
    // The same bytes are the same tensor: it is put on the device once.
    let own_head = head.filter(|head| head.bytes.as_ptr() != embedding.bytes.as_ptr());
    let beside = own_head.iter().chain(&decision_head);
    reader.total = beside.map(|view| view.bytes.len() as u64).sum();
    reader.total += joint_head::bytes(source)?;
    for (name, _) in deltagate_checkpoint::backbone_tensors(config) {
        reader.total += reader.view(&name)?.bytes.len() as u64;
    }
    (reader.progress)(LoadProgress {
        done_bytes: 0,
        total_bytes: reader.total,
    });

    let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
    let embedding = reader.table("embed_tokens.weight", &embedding, vocabulary, hidden)?;
    let layers = config.layers.iter().enumerate();
    let layers = layers
        .map(|(index, kind)| reader.layer(config, index, *kind))
        .collect::<Result<Vec<_>, _>>()?;
    let final_norm = reader.vector("norm.weight", hidden)?;
    let output_embedding = match (head, own_head) {
        (None, _) => None,
        (Some(_), None) => Some(embedding.clone()),
        (Some(_), Some(own)) => Some(reader.table("lm_head.weight", &own, vocabulary, hidden)?),
    };
    let decision_head = match decision_head {
        None => None,
        Some(view) => {
            let rows = view.shape.first().copied().unwrap_or(0);
            Some(reader.table(view.name, &view, rows, hidden)?)
        }
    };
    let joint_head = joint_head::load(&mut reader)?;
    Ok(ModelWeights {
        embedding,
        layers,
        final_norm,
        output_embedding,
        decision_head,
        joint_head,
    })
}

pub(super) fn failed(name: &str, reason: String) -> EngineError {
    EngineError::Tensor {
        name: name.to_owned(),
        reason,
    }
}

type Tensor<D> = <<D as Device>::Space as Space>::Tensor;
type Matrix<D> = <<D as Device>::Space as Space>::Matrix;

impl<'a, D: Device> Reader<'a, D> {
    fn view(&self, name: &str) -> Result<TensorView<'a>, EngineError> {
        self.source.tensor(name).map_err(|reason| failed(name, reason))
    }

    pub(super) fn count(&mut self, views: &[TensorView<'_>]) {
        self.done += views.iter().map(|view| view.bytes.len() as u64).sum::<u64>();
        (self.progress)(LoadProgress {
            done_bytes: self.done,
            total_bytes: self.total,
        });
    }

    fn table(
        &mut self,
        name: &str,
        view: &TensorView<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<Tensor<D>, EngineError> {
        let table = self
            .device
            .table(view, rows, columns)
            .map_err(|reason| failed(name, reason))?;
        self.count(std::slice::from_ref(view));
        Ok(table)
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<Tensor<D>, EngineError> {
        let view = self.view(name)?;
        let vector = self
            .device
            .vector(&view, n)
            .map_err(|reason| failed(name, reason))?;
        self.count(&[view]);
        Ok(vector)
    }

    fn matrix(&mut self, names: &[String], inputs: usize) -> Result<Matrix<D>, EngineError> {
        let source = self.source;
        let parts = names
            .iter()
            .map(|name| source.weights(name).map_err(|reason| failed(name, reason)))
            .collect::<Result<Vec<_>, _>>()?;
        let views: Vec<TensorView<'_>> = parts.iter().map(Weights::view).collect();
        let first = names.first().map_or("", String::as_str);
        let matrix = self
            .device
            .matrix(&views, inputs)
            .map_err(|reason| failed(first, reason))?;
        self.count(&views);
        Ok(matrix)
    }

    fn layer(
        &mut self,
        config: &ModelConfig,
        index: usize,
        kind: LayerKind,
    ) -> Result<LayerWeights<D::Space>, EngineError> {
        let name = |part: &str| format!("layers.{index}.{part}.weight");
        let hidden = config.hidden_size;
        Ok(LayerWeights {
            input_norm: self.vector(&name("input_layernorm"), hidden)?,
            mixer: match kind {
                LayerKind::LinearAttention => MixerWeights::DeltaRule(self.delta_rule(config, index)?),
                LayerKind::FullAttention => MixerWeights::Attention(self.attention(config, index)?),
            },
            mlp_norm: self.vector(&name("post_attention_layernorm"), hidden)?,
            gate_up: self.matrix(&[name("mlp.gate_proj"), name("mlp.up_proj")], hidden)?,
            down: self.matrix(&[name("mlp.down_proj")], config.intermediate_size)?,
        })
    }

    fn delta_rule(
        &mut self,
        config: &ModelConfig,
        index: usize,
    ) -> Result<DeltaRuleWeights<D::Space>, EngineError> {
        let name = |part: &str| format!("layers.{index}.linear_attn.{part}");
        let shape = delta_rule_shape(config);
        let inputs = [
            "in_proj_qkv.weight",
            "in_proj_z.weight",
            "in_proj_b.weight",
            "in_proj_a.weight",
        ]
        .map(name);
        let taps_name = name("conv1d.weight");
        let taps = self.view(&taps_name)?;
        let on_device = self
            .device
            .taps(&taps, shape.qkv_columns(), config.linear_conv_kernel_dim);
        let on_device = on_device.map_err(|reason| failed(&taps_name, reason))?;
        self.count(&[taps]);
        Ok(DeltaRuleWeights {
            input: self.matrix(&inputs, config.hidden_size)?,
            taps: on_device,
            a_log: self.vector(&name("A_log"), shape.value_heads)?,
            dt_bias: self.vector(&name("dt_bias"), shape.value_heads)?,
            norm: self.vector(&name("norm.weight"), shape.value_dim)?,
            output: self.matrix(&[name("out_proj.weight")], shape.value_columns())?,
        })
    }

    fn attention(
        &mut self,
        config: &ModelConfig,
        index: usize,
    ) -> Result<FullAttentionWeights<D::Space>, EngineError> {
        let name = |part: &str| format!("layers.{index}.self_attn.{part}.weight");
        let shape = attention_shape(config);
        Ok(FullAttentionWeights {
            input: self.matrix(&["q_proj", "k_proj", "v_proj"].map(name), config.hidden_size)?,
            q_norm: self.vector(&name("q_norm"), shape.head_dim)?,
            k_norm: self.vector(&name("k_norm"), shape.head_dim)?,
            output: self.matrix(&[name("o_proj")], shape.output_columns())?,
        })
    }
}
