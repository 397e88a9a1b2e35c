//! A small model with formula weights, in memory.

use std::{collections::BTreeMap, ops::ControlFlow};

use deltagate_checkpoint::{JointHeadConfig, LayerKind, ModelConfig, backbone_tensors, joint_head_tensors};
use deltagate_kernels_api::Random;
use deltagate_kernels_weights::{Dtype as FileDtype, TensorView};

use crate::engine::{
    Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone,
    SequencePlan, TensorSource,
};

pub(crate) fn config() -> ModelConfig {
    let kind = |i: usize| {
        if i % 4 == 3 {
            LayerKind::FullAttention
        } else {
            LayerKind::LinearAttention
        }
    };
    ModelConfig {
        hidden_size: 48,
        intermediate_size: 64,
        layers: (0..8).map(kind).collect(),
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        rotary_dim: 8,
        rope_theta: 1e4,
        linear_num_key_heads: 2,
        linear_num_value_heads: 4,
        linear_key_head_dim: 32,
        linear_value_head_dim: 32,
        linear_conv_kernel_dim: 4,
        rms_norm_eps: 1e-6,
        vocab_size: 101,
        tie_word_embeddings: true,
        max_position_embeddings: 300,
    }
}

/// Tensors as the bytes of f32.
pub(super) struct Memory {
    pub(super) config: ModelConfig,
    pub(super) tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    pub(super) head: Option<&'static str>,
    pub(super) joint_head: Option<JointHeadConfig>,
}

impl Memory {
    pub(super) fn new(config: ModelConfig) -> Self {
        let mut tensors = BTreeMap::new();
        for (index, (name, shape)) in backbone_tensors(&config).into_iter().enumerate() {
            let count = shape.iter().product();
            let range = if shape.len() == 2 {
                (3.0 / shape[1] as f64).sqrt()
            } else {
                0.4
            };
            let values = Random::new(index as u64).values(count, -range, range);
            tensors.insert(
                name,
                (shape, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            );
        }
        Self {
            config,
            tensors,
            head: Some("embed_tokens.weight"),
            joint_head: None,
        }
    }

    /// Gives it a decision head of so many rows.
    pub(super) fn with_decision_head(mut self, rows: usize) -> Self {
        let width = self.config.hidden_size;
        let values = Random::new(77).values(rows * width, -1.0, 1.0);
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors
            .insert(DECISION_HEAD.to_owned(), (vec![rows, width], bytes));
        self
    }

    /// Gives it a joint head.
    pub(super) fn with_joint_head(mut self, sizes: JointHeadConfig) -> Self {
        for (index, (name, shape)) in joint_head_tensors(&sizes).into_iter().enumerate() {
            let range = match shape[..] {
                [_, inputs] => (3.0 / inputs as f64).sqrt(),
                _ => 0.5,
            };
            let values = Random::new(500 + index as u64).values(shape.iter().product(), -range, range);
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.tensors.insert(format!("{JOINT_HEAD}{name}"), (shape, bytes));
        }
        self.joint_head = Some(sizes);
        self
    }

    pub(super) fn set_first(&mut self, name: &str, value: f32) {
        if let Some((_, bytes)) = self.tensors.get_mut(name) {
            bytes[..4].copy_from_slice(&value.to_le_bytes());
        }
    }
}

const DECISION_HEAD: &str = "decision head";
pub(super) const JOINT_HEAD: &str = "joint head: ";

impl TensorSource for Memory {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        let (name, (shape, bytes)) = self
            .tensors
            .get_key_value(name)
            .ok_or("there is no such tensor")?;
        Ok(TensorView {
            name,
            dtype: FileDtype::F32,
            shape,
            bytes,
        })
    }

    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String> {
        self.head.map(|name| self.tensor(name)).transpose()
    }

    fn decision_head(&self) -> Result<Option<TensorView<'_>>, String> {
        Ok(self.tensor(DECISION_HEAD).ok())
    }

    fn joint_head(&self) -> Option<JointHeadConfig> {
        self.joint_head
    }

    fn joint_head_tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        self.tensor(&format!("{JOINT_HEAD}{name}"))
    }
}

pub(super) fn settings() -> EngineSettings {
    EngineSettings {
        threads: Some(2),
        segment_tokens: 64,
        ..EngineSettings::default()
    }
}

pub(super) fn engine() -> Engine {
    load(&Memory::new(config()), &settings())
}

pub(super) fn load(source: &Memory, settings: &EngineSettings) -> Engine {
    Engine::from_source(source, settings, &mut |_| {}).expect("the model loads")
}

pub(super) fn sequence(tokens: usize, rows: RowSelection) -> SequencePlan {
    let token_ids = (0..tokens).map(|i| (i * 7 + 3) as u32 % 101).collect();
    SequencePlan {
        token_ids,
        rows,
        projection: Projection::Hidden,
    }
}

pub(super) fn plan(sequences: Vec<SequencePlan>) -> ForwardPlan {
    ForwardPlan {
        sequences,
        noncausal_full_attention: false,
    }
}

/// Writes down what it is told, and cancels after so many segments.
#[derive(Default)]
pub(super) struct Watcher {
    pub(super) events: Vec<SegmentDone>,
    pub(super) cancel_after: Option<usize>,
}

impl ForwardObserver for Watcher {
    fn segment(&mut self, event: &SegmentDone) -> ControlFlow<()> {
        self.events.push(event.clone());
        if self.cancel_after.is_some_and(|n| self.events.len() >= n) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Rows of the first sequence.
pub(super) fn rows(engine: &mut Engine, sequence: SequencePlan) -> Vec<Vec<f32>> {
    let output = engine
        .forward(&plan(vec![sequence]), &mut Watcher::default())
        .expect("it runs");
    output
        .sequences
        .into_iter()
        .next()
        .expect("a sequence")
        .into_iter()
        .map(|row| row.values)
        .collect()
}
