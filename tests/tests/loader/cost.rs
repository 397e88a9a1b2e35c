//! What loading costs: memory, and the bar that shows how far it is.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use deltagate_checkpoint::{ModelConfig, backbone_tensors};
use deltagate_tests::{
    ports::Ports,
    process::{cache_dir, run},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    BINARY,
    folder::{Folder, Tensor, safetensors, text_config},
};

/// Writes a StartLux model of some 400 MB in BF16, with as many NaNs at its very end as told.
fn large(nans: usize) -> TempDir {
    let mut config = text_config(4, 8);
    for (key, value) in [
        ("hidden_size", 512),
        ("intermediate_size", 1536),
        ("num_hidden_layers", 44),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 2),
        ("linear_key_head_dim", 64),
        ("linear_value_head_dim", 64),
        ("vocab_size", 16_384),
    ] {
        config[key] = json!(value);
    }
    config.as_object_mut().unwrap().shift_remove("layer_types");
    let sizes = ModelConfig::from_json(&config).unwrap();
    let mut folder = Folder::startlux();
    folder.config = config;
    folder.tensors.clear();
    let dir = folder.write();
    write_weights(
        &dir.path().join("model.safetensors"),
        &backbone_tensors(&sizes),
        nans,
    );
    dir
}

/// Tensors one after another; `norm.weight` is the last one.
fn write_weights(path: &Path, tensors: &[(String, Vec<usize>)], nans: usize) {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let header = Value::Object(header).to_string();
    let value = |i: usize| (0.03 * (0.71 * i as f64).sin()) as f32;
    let pattern: Vec<u8> = (0..1 << 16)
        .flat_map(|i| value(i).to_bits().to_le_bytes()[2..].to_vec())
        .collect();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut left = end - 2 * nans;
    while left > 0 {
        let part = left.min(pattern.len());
        file.write_all(&pattern[..part]).unwrap();
        left -= part;
    }
    (0..nans).for_each(|_| file.write_all(&[0xC0, 0x7F]).unwrap());
}

/// Makes a model of another family of it, with an adapter on every linear layer of the MLPs.
fn adapt(dir: &Path) {
    fs::remove_file(dir.join("decision_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    let mut tensors = std::collections::BTreeMap::new();
    for (name, shape) in backbone_tensors(&ModelConfig::from_json(&config).unwrap()) {
        let Some(module) = name.strip_suffix(".weight").filter(|name| name.contains(".mlp.")) else {
            continue;
        };
        for (side, shape) in [("A", vec![16, shape[1]]), ("B", vec![shape[0], 16])] {
            let values = (0..shape.iter().product()).map(|i: usize| 0.01 * (0.71 * i as f32).sin());
            let tensor = Tensor {
                dtype: "F32",
                values: values.collect(),
                shape,
            };
            tensors.insert(format!("base_model.model.{module}.lora_{side}.weight"), tensor);
        }
    }
    let adapter = json!({
        "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3.5-4B", "r": 16, "lora_alpha": 32,
        "target_modules": ["gate_proj", "up_proj", "down_proj"]
    });
    fs::create_dir(dir.join("text")).unwrap();
    fs::write(dir.join("text/adapter_config.json"), adapter.to_string()).unwrap();
    fs::write(
        dir.join("text/adapter_model.safetensors"),
        safetensors(tensors.iter()),
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_takes_at_most_a_quarter_more_memory_than_the_weights() {
    let dir = large(0);
    cost(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn merging_an_adapter_while_loading_takes_no_more_memory_than_that() {
    let dir = large(0);
    adapt(dir.path());
    cost(dir.path()).await;
}

async fn cost(dir: &Path) {
    let path = dir.display().to_string();
    let file = fs::metadata(dir.join("model.safetensors")).unwrap().len();
    for (dtype, factor) in [("f32", 2.0), ("bf16", 1.0)] {
        let once = ["--warm-ups", "0", "--passes", "1", "--threads", "2"];
        let arguments = [
            &["bench", "load", "--json", "--model", &path, "--dtype", dtype][..],
            &once,
        ]
        .concat();
        let measured = run(BINARY, &arguments, &[]).await.unwrap();
        assert_eq!(measured.code, Some(0), "{measured:?}");
        let measured = measured.json().unwrap();
        println!("{measured:#}");
        let bytes = measured["bytes"].as_u64().unwrap();
        assert!(
            bytes > 300_000_000 && bytes < file && bytes > file - 100_000,
            "{bytes} of {file}"
        );
        let compute = measured["compute_bytes"].as_f64().unwrap();
        assert!(
            (compute / bytes as f64 / factor - 1.0).abs() < 0.01,
            "{compute} of {bytes}"
        );
        let ratio = measured["peak_ratio"].as_f64().expect("the system tells no peak");
        assert!(
            ratio >= 0.99,
            "{dtype}: a peak of {ratio} is less than the weights themselves"
        );
        assert!(ratio <= 1.25, "{dtype}: {ratio} times the weights");
        assert_eq!(measured["passes"].as_array().unwrap().len(), 1);
        assert!(measured["gb_per_s"].as_f64().unwrap() > 0.0);
    }
}

/// Loads a model that is refused at its last tensor, so that the executor ends by itself, and gives what a terminal sees.
async fn on_a_terminal(model: &Path) -> String {
    let ports = Ports::free().unwrap();
    let mut command = format!(
        "'{BINARY}' executor --set executor.model='{}' --set executor.drain.grace=0s",
        model.display()
    );
    for flag in ports.flags() {
        command += &format!(" '{flag}'");
    }
    let log = model.join("terminal.log");
    let status = Command::new("script")
        .args(["--quiet", "--return", "--command", &command])
        .arg(&log)
        .env("TERM", "xterm-256color")
        .env("DELTAGATE_CACHE_DIR", cache_dir())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .status();
    let status = tokio::time::timeout(std::time::Duration::from_secs(100), status)
        .await
        .unwrap()
        .unwrap();
    let seen = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    assert_eq!(status.code(), Some(78), "{seen}");
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_sees_a_bar_while_the_model_loads() {
    let dir = large(1);
    let seen = on_a_terminal(dir.path()).await;
    let bars: Vec<&str> = seen
        .split(['\r', '\n'])
        .filter(|line| line.contains("MiB/"))
        .collect();
    assert!(
        bars.iter()
            .any(|bar| bar.contains("loading ") && bar.contains("/s")),
        "{seen}"
    );
    assert!(bars.len() > 1, "it does not move: {bars:?}");
    assert!(seen.contains("`norm.weight` holds NaN at element 511"), "{seen}");
    assert!(
        !seen.contains("loading weights"),
        "a bar and log lines as well: {seen}"
    );
}
