//! Small model folders whose weights are a formula.

use std::{collections::BTreeMap, fs, path::Path};

use deltagate_checkpoint::{ModelConfig, backbone_tensors};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A tensor as it is written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    /// Exact in bf16.
    pub(crate) values: Vec<f32>,
}

/// A folder before it is written.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// In how many files the weights are; more than one have an index.
    pub(crate) shards: usize,
}

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The text level of a config with these heads of the delta rule.
pub(crate) fn text_config(key_heads: usize, value_heads: usize) -> Value {
    json!({
        "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": true, "vocab_size": 97, "max_position_embeddings": 512, "eos_token_id": 90
    })
}

/// Rounded to bf16 towards zero, so that F32 and BF16 files hold the same numbers.
fn value(seed: usize, i: usize, name: &str, columns: usize) -> f32 {
    let s = (1.3 * seed as f64 + 0.71 * i as f64 + 0.2).sin();
    let value = match name {
        _ if name.ends_with("linear_attn.norm.weight") => 1.0 + 0.2 * s,
        _ if name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("conv1d.weight") => {
            0.5 * s
        }
        "embed_tokens.weight" => 0.5 * s,
        _ if columns == 0 => 0.2 * s,
        _ => s * 1.5 / (columns as f64).sqrt(),
    };
    f32::from_bits((value as f32).to_bits() & 0xFFFF_0000)
}

impl Folder {
    /// A bare, tied backbone without prefix, in one file, all BF16.
    pub(crate) fn backbone(config: Value) -> Self {
        let sizes = ModelConfig::from_json(&config).unwrap();
        let tensors = backbone_tensors(&sizes)
            .into_iter()
            .enumerate()
            .map(|(seed, (name, shape))| {
                let columns = if shape.len() == 1 {
                    0
                } else {
                    *shape.last().unwrap()
                };
                let count: usize = shape.iter().product();
                let values = (0..count).map(|i| value(seed, i, &name, columns)).collect();
                (
                    name,
                    Tensor {
                        dtype: "BF16",
                        shape,
                        values,
                    },
                )
            });
        Self {
            tensors: tensors.collect(),
            config,
            files: BTreeMap::new(),
            shards: 1,
        }
    }

    /// The same as a StartLux model.
    pub(crate) fn startlux() -> Self {
        let mut folder = Self::backbone(text_config(1, 2));
        let letters = ('A'..='Z')
            .zip(32..)
            .map(|(letter, id)| (letter.to_string(), json!(id)));
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [{"id": 90, "content": "<|im_end|>", "special": true}],
            "model": {"type": "BPE", "vocab": letters.collect::<Map<_, _>>(), "merges": []}
        });
        let decision = json!({"letter_token_ids": (32..58).collect::<Vec<u32>>(), "temperature_by_type": {"choice": 1.5}});
        folder.json("tokenizer.json", &tokenizer);
        folder.json("decision_config.json", &decision);
        folder
    }

    pub(crate) fn json(&mut self, name: &str, value: &Value) {
        self.files
            .insert(name.to_owned(), serde_json::to_vec(value).unwrap());
    }

    /// Puts a prefix before every name.
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        let tensors = self
            .tensors
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor));
        self.tensors = tensors.collect();
        self
    }

    /// Moves the config into a root that says whether the head is tied, or nothing.
    pub(crate) fn nested(mut self, tied: Option<bool>) -> Self {
        self.config = json!({
            "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": self.config,
            "vision_config": {"depth": 2}, "image_token_id": 91, "language_model_only": false
        });
        if let Some(tied) = tied {
            self.config["tie_word_embeddings"] = json!(tied);
        }
        self
    }

    pub(crate) fn write(&self) -> TempDir {
        let dir = tempfile::Builder::new()
            .prefix("deltagate-test-")
            .tempdir()
            .unwrap();
        self.write_to(dir.path());
        dir
    }

    pub(crate) fn write_to(&self, dir: &Path) {
        fs::write(dir.join("config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        if self.shards == 1 {
            return fs::write(dir.join("model.safetensors"), safetensors(self.tensors.iter())).unwrap();
        }
        let mut weight_map = Map::new();
        for shard in 0..self.shards {
            let file = shard_name(shard, self.shards);
            let mine = || {
                self.tensors
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| i % self.shards == shard)
                    .map(|(_, t)| t)
            };
            weight_map.extend(mine().map(|(name, _)| (name.clone(), json!(file))));
            fs::write(dir.join(file), safetensors(mine())).unwrap();
        }
        let index = json!({"metadata": {"total_size": 1}, "weight_map": weight_map});
        fs::write(dir.join(INDEX), serde_json::to_vec(&index).unwrap()).unwrap();
    }
}

pub(crate) fn shard_name(shard: usize, shards: usize) -> String {
    format!("model-{:05}-of-{shards:05}.safetensors", shard + 1)
}

pub(crate) fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        for value in &tensor.values {
            match tensor.dtype {
                "F32" => data.extend(value.to_le_bytes()),
                "BF16" => data.extend(&value.to_le_bytes()[2..]),
                "F16" => data.extend([0; 2]),
                other => panic!("{other}"),
            }
        }
        header.insert(
            name.clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
