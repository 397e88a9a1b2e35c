//! A model of a known size with random weights: for measuring, not for answers.

use deltagate_checkpoint::{LayerKind, ModelConfig, backbone_tensors};
use deltagate_executor::engine::TensorSource;
use deltagate_kernels_api::Random;
use deltagate_kernels_weights::{Dtype, TensorView};

/// Sizes that the Qwen3.5 family was published in.
struct Shape {
    name: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: (usize, usize),
    linear_heads: (usize, usize),
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "0.8b",
        hidden: 1024,
        intermediate: 3584,
        layers: 24,
        heads: (8, 2),
        linear_heads: (16, 16),
    },
    Shape {
        name: "2b",
        hidden: 2048,
        intermediate: 6144,
        layers: 24,
        heads: (8, 2),
        linear_heads: (16, 16),
    },
    Shape {
        name: "4b",
        hidden: 2560,
        intermediate: 9216,
        layers: 32,
        heads: (16, 4),
        linear_heads: (16, 32),
    },
    Shape {
        name: "9b",
        hidden: 4096,
        intermediate: 12288,
        layers: 32,
        heads: (16, 4),
        linear_heads: (16, 32),
    },
    Shape {
        name: "27b",
        hidden: 5120,
        intermediate: 17408,
        layers: 64,
        heads: (24, 4),
        linear_heads: (16, 48),
    },
];

/// Names of the sizes.
pub(crate) fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}

/// The config of a size; the vocabulary is the caller's, because a forward pass reads only the rows of its tokens.
pub(crate) fn config(name: &str, vocab_size: usize) -> Option<ModelConfig> {
    let shape = SHAPES.iter().find(|shape| shape.name == name)?;
    let kind = |layer: usize| match layer % 4 {
        3 => LayerKind::FullAttention,
        _ => LayerKind::LinearAttention,
    };
    Some(ModelConfig {
        hidden_size: shape.hidden,
        intermediate_size: shape.intermediate,
        layers: (0..shape.layers).map(kind).collect(),
        num_attention_heads: shape.heads.0,
        num_key_value_heads: shape.heads.1,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        linear_num_key_heads: shape.linear_heads.0,
        linear_num_value_heads: shape.linear_heads.1,
        linear_key_head_dim: 128,
        linear_value_head_dim: 128,
        linear_conv_kernel_dim: 4,
        rms_norm_eps: 1e-6,
        vocab_size,
        tie_word_embeddings: true,
        max_position_embeddings: 262_144,
    })
}

/// Elements of all tensors.
pub(crate) fn parameters(config: &ModelConfig) -> u64 {
    let elements = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
    backbone_tensors(config)
        .iter()
        .map(|(_, shape)| elements(shape))
        .sum()
}

/// Random tensors, all cut from one small store: what is kept in memory is the engine's copy of them alone.
pub(crate) struct Dummy {
    config: ModelConfig,
    tensors: Vec<(String, Vec<usize>)>,
    /// As a model is initialised: uniform, with a deviation of 0.02.
    weights: Vec<u8>,
    /// Rates of decay as a model is initialised: the logarithms of 1 to 16.
    rates: Vec<u8>,
    ones: Vec<u8>,
}

/// Tensors begin at one of so many places of the store, so that they are not all the same.
const PLACES: usize = 64;

impl Dummy {
    pub(crate) fn new(config: ModelConfig) -> Self {
        let tensors = backbone_tensors(&config);
        let sizes = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>());
        let largest = sizes.max().unwrap_or(0) + PLACES;
        let mut random = Random::new(1);
        let mut weights = Vec::with_capacity(4 * largest);
        let range = 0.02 * 3f64.sqrt();
        for _ in 0..largest {
            weights.extend_from_slice(&(random.uniform(-range, range) as f32).to_le_bytes());
        }
        let small = config.linear_num_value_heads.max(config.linear_value_head_dim);
        let bytes = |value: &mut dyn FnMut() -> f32| (0..small).flat_map(|_| value().to_le_bytes()).collect();
        Self {
            rates: bytes(&mut || random.uniform(1.0, 16.0).ln() as f32),
            ones: bytes(&mut || 1.0),
            config,
            tensors,
            weights,
        }
    }
}

impl TensorSource for Dummy {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        let index = self.tensors.iter().position(|(known, _)| known == name);
        let index = index.ok_or_else(|| "no such tensor".to_owned())?;
        let (name, shape) = &self.tensors[index];
        let (store, start) = if name.ends_with("A_log") {
            (&self.rates, 0)
        } else if name.ends_with("dt_bias") || name.ends_with("linear_attn.norm.weight") {
            (&self.ones, 0)
        } else {
            (&self.weights, 4 * (index % PLACES))
        };
        let length = 4 * shape.iter().product::<usize>();
        Ok(TensorView {
            name,
            dtype: Dtype::F32,
            shape,
            bytes: store.get(start..start + length).ok_or("the store is too small")?,
        })
    }

    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String> {
        self.tensor("embed_tokens.weight").map(Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn published_sizes_have_their_published_parameters() {
        let whole = |name| parameters(&config(name, 248_320).unwrap());
        assert_eq!(whole("0.8b"), 752_393_024);
        assert_eq!(whole("2b"), 1_881_825_088);
        assert_eq!(whole("4b"), 4_205_751_296);
        let layers = |name| parameters(&config(name, 0).unwrap());
        assert_eq!(layers("9b"), 6_919_565_824);
        assert_eq!(layers("27b"), 24_353_201_664);
        assert!(config("5b", 1).is_none());
    }

    #[test]
    fn every_tensor_is_there_and_finite() {
        let mut config = config("0.8b", 16).unwrap();
        config.layers.truncate(4);
        (config.hidden_size, config.intermediate_size) = (32, 48);
        let dummy = Dummy::new(config.clone());
        for (name, shape) in backbone_tensors(&config) {
            let view = dummy.tensor(&name).unwrap();
            let values = view.to_f32();
            assert_eq!((view.shape, values.len()), (&shape[..], shape.iter().product()));
            assert!(values.iter().all(|v| v.is_finite()), "{name}");
        }
        assert!(dummy.tensor("lm_head.weight").is_err());
        let head = dummy.output_embedding().unwrap().unwrap();
        assert_eq!(
            head.bytes.as_ptr(),
            dummy.tensor("embed_tokens.weight").unwrap().bytes.as_ptr()
        );
    }
}
