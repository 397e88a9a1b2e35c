//! Tiny model folders with formula weights.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, fs, path::Path};

use deltagate_checkpoint::{Checkpoint, CheckpointError, Finding, ModelConfig, backbone_tensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// What a tensor is written as.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) seed: usize,
}

/// A folder that is written when it is complete, or as broken as the test wants it.
pub(crate) struct Folder {
    pub(crate) config: Value,
    /// `decision_config.json`; null for none.
    pub(crate) decision: Value,
    /// Full names.
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// More files, as they are.
    pub(crate) files: BTreeMap<&'static str, Vec<u8>>,
}

pub(crate) fn text_config() -> Value {
    json!({
        "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16",
        "full_attention_interval": 4, "head_dim": 8, "hidden_act": "silu", "hidden_size": 8, "initializer_range": 0.02,
        "intermediate_size": 12,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "linear_value_head_dim": 6, "mamba_ssm_dtype": "float32", "max_position_embeddings": 512,
        "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "num_attention_heads": 2, "num_hidden_layers": 4,
        "num_key_value_heads": 1, "output_gate_type": "swish", "pad_token_id": null, "rms_norm_eps": 1e-6,
        "rope_parameters": {"mrope_interleaved": true, "mrope_section": [1, 0, 0], "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0, "rope_type": "default"},
        "tie_word_embeddings": false, "use_cache": true, "vocab_size": 64
    })
}

pub(crate) fn nested(text: Value, tied: bool) -> Value {
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 56, "language_model_only": false,
        "model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": tied, "transformers_version": "5.24.0",
        "video_token_id": 57, "vision_config": {"depth": 2}, "vision_end_token_id": 54, "vision_start_token_id": 53
    })
}

pub(crate) fn decision() -> Value {
    json!({
        "letter_token_ids": (32..58).collect::<Vec<u32>>(),
        "temperature_by_type": {"choice": 1.5, "noul": 1.25, "score": 0.75},
        "wide_choice": {"group": 25, "keep": 3, "residual": 0.001},
        "release_date": "2026-01-31"
    })
}

/// One token a letter, with the ids that `decision` names, and two added ones.
pub(crate) fn tokenizer() -> Value {
    let letters = ('A'..='Z')
        .zip(32..)
        .map(|(letter, id)| (letter.to_string(), json!(id)));
    json!({
        "added_tokens": [{"id": 58, "content": "<|endoftext|>"}, {"id": 59, "content": "<|im_end|>"}],
        "model": {"type": "BPE", "vocab": letters.collect::<serde_json::Map<_, _>>(), "merges": []}
    })
}

impl Folder {
    /// A StartLux folder with a flat config, an untied head and this prefix.
    pub(crate) fn startlux(prefix: &str) -> Self {
        let config = text_config();
        let sizes = ModelConfig::from_json(&config).unwrap();
        let mut tensors = BTreeMap::new();
        for (seed, (name, shape)) in backbone_tensors(&sizes).into_iter().enumerate() {
            let dtype = if name.ends_with("A_log") { "F32" } else { "BF16" };
            tensors.insert(format!("{prefix}{name}"), Tensor { dtype, shape, seed });
        }
        tensors.insert(
            "lm_head.weight".to_owned(),
            Tensor {
                dtype: "BF16",
                shape: vec![64, 8],
                seed: 900,
            },
        );
        let tokenizer = serde_json::to_vec(&tokenizer()).unwrap();
        let files = BTreeMap::from([("tokenizer.json", tokenizer)]);
        Self {
            config,
            decision: decision(),
            tensors,
            files,
        }
    }

    pub(crate) fn text(&mut self) -> &mut Value {
        if self.config.get("text_config").is_some() {
            &mut self.config["text_config"]
        } else {
            &mut self.config
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.text().as_object_mut().unwrap().shift_remove(key).unwrap();
    }

    pub(crate) fn write(&self) -> TempDir {
        let dir = self.write_without_weights();
        fs::write(
            dir.path().join("model.safetensors"),
            safetensors(self.tensors.iter()),
        )
        .unwrap();
        dir
    }

    /// In two files with an index.
    pub(crate) fn write_sharded(&self) -> TempDir {
        let dir = self.write_without_weights();
        let mut weight_map = serde_json::Map::new();
        for (part, file) in [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]
        .iter()
        .enumerate()
        {
            let mine: Vec<_> = self
                .tensors
                .iter()
                .enumerate()
                .filter(|(i, _)| i % 2 == part)
                .map(|(_, t)| t)
                .collect();
            for (name, _) in &mine {
                weight_map.insert((*name).clone(), (*file).into());
            }
            fs::write(dir.path().join(file), safetensors(mine.into_iter())).unwrap();
        }
        write_json(
            dir.path(),
            INDEX,
            &json!({"metadata": {"total_size": 1}, "weight_map": weight_map}),
        );
        dir
    }

    fn write_without_weights(&self) -> TempDir {
        let dir = TempDir::with_prefix("tiny-").unwrap();
        write_json(dir.path(), "config.json", &self.config);
        if !self.decision.is_null() {
            write_json(dir.path(), "decision_config.json", &self.decision);
        }
        for (name, bytes) in &self.files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(self.write().path())
    }

    /// Findings of a folder that must be refused.
    pub(crate) fn refused(&self) -> Vec<Finding> {
        findings(self.write().path())
    }
}

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Findings of a folder that must be refused; `inspect` has to say the same.
pub(crate) fn findings(dir: &Path) -> Vec<Finding> {
    let inspection = deltagate_checkpoint::inspect(dir);
    assert!(!inspection.would_load && inspection.card.is_none());
    match Checkpoint::open(dir).expect_err("the folder opens") {
        CheckpointError::Refused { findings, .. } => {
            let said = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(said(&findings), said(&inspection.findings));
            findings
        }
        other => panic!("{other}"),
    }
}

/// Asserts that a folder is refused for one reason only, which names this file and this key or tensor.
#[track_caller]
pub(crate) fn only(findings: &[Finding], file: &str, key_or_tensor: &str, problem: &str) {
    let [finding] = findings else {
        panic!(
            "{} findings: {:#?}",
            findings.len(),
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        )
    };
    assert_eq!(finding.file, file, "{finding}");
    assert_eq!(
        finding.key_or_tensor.as_deref().unwrap_or(""),
        key_or_tensor,
        "{finding}"
    );
    assert!(finding.problem.to_string().contains(problem), "{finding}");
    assert!(
        finding.to_string().contains(file) && finding.to_string().contains(key_or_tensor),
        "{finding}"
    );
}

pub(crate) fn write_json(dir: &Path, name: &str, value: &Value) {
    fs::write(dir.join(name), serde_json::to_vec(value).unwrap()).unwrap();
}

/// Value `i` of a tensor.
pub(crate) fn value(seed: usize, i: usize) -> f32 {
    (1.3 * seed as f64 + 0.71 * i as f64 + 0.2).sin() as f32
}

pub(crate) fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        for i in 0..tensor.shape.iter().product() {
            let value = value(tensor.seed, i);
            match tensor.dtype {
                "F32" => data.extend(value.to_le_bytes()),
                // Rounded towards zero.
                "BF16" => data.extend(&value.to_le_bytes()[2..]),
                "F16" => data.extend([0, 0]),
                "I64" => data.extend([0; 8]),
                other => panic!("{other}"),
            }
        }
        let entry =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}
