//! A tiny backbone written as a model folder: the closed-form weights of `fixtures/backbone/README.md`.

use std::{collections::HashMap, fs, path::Path};

use anyhow::Context;
use deltagate_checkpoint::{JointHeadConfig, joint_head_tensors};
use serde_json::{Map, Value, json};

use crate::tree::root;

/// The fixture that says what the golden backbone is and gives.
pub fn golden() -> anyhow::Result<Value> {
    let path = root().join("tests/fixtures/backbone/golden.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// Names (without prefix) and shapes of the tensors of a config, sorted bytewise.
pub fn tensors(config: &Value) -> anyhow::Result<Vec<(String, Vec<usize>)>> {
    let number = |key: &str| {
        let value = config[key]
            .as_u64()
            .with_context(|| format!("config has no {key}"))?;
        anyhow::Ok(usize::try_from(value)?)
    };
    let (h, mlp, head) = (
        number("hidden_size")?,
        number("intermediate_size")?,
        number("head_dim")?,
    );
    let (q, kv) = (number("num_attention_heads")?, number("num_key_value_heads")?);
    let (key_heads, value_heads) = (number("linear_num_key_heads")?, number("linear_num_value_heads")?);
    let (key_dim, value_dim) = (number("linear_key_head_dim")?, number("linear_value_head_dim")?);
    let (kd, vd) = (key_heads * key_dim, value_heads * value_dim);
    let taps = number("linear_conv_kernel_dim")?;
    let mut all = vec![
        ("embed_tokens.weight".to_owned(), vec![number("vocab_size")?, h]),
        ("norm.weight".to_owned(), vec![h]),
    ];
    for (i, kind) in config["layer_types"]
        .as_array()
        .context("config has no layer_types")?
        .iter()
        .enumerate()
    {
        let mut add = |name: &str, shape: &[usize]| all.push((format!("layers.{i}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
        add("mlp.gate_proj.weight", &[mlp, h]);
        add("mlp.up_proj.weight", &[mlp, h]);
        add("mlp.down_proj.weight", &[h, mlp]);
        if kind == "full_attention" {
            add("self_attn.q_proj.weight", &[q * head * 2, h]);
            add("self_attn.k_proj.weight", &[kv * head, h]);
            add("self_attn.v_proj.weight", &[kv * head, h]);
            add("self_attn.o_proj.weight", &[h, q * head]);
            add("self_attn.q_norm.weight", &[head]);
            add("self_attn.k_norm.weight", &[head]);
        } else {
            add("linear_attn.in_proj_qkv.weight", &[2 * kd + vd, h]);
            add("linear_attn.in_proj_z.weight", &[vd, h]);
            add("linear_attn.in_proj_b.weight", &[value_heads, h]);
            add("linear_attn.in_proj_a.weight", &[value_heads, h]);
            add("linear_attn.conv1d.weight", &[2 * kd + vd, 1, taps]);
            add("linear_attn.A_log", &[value_heads]);
            add("linear_attn.dt_bias", &[value_heads]);
            add("linear_attn.norm.weight", &[value_dim]);
            add("linear_attn.out_proj.weight", &[h, vd]);
        }
    }
    all.sort();
    Ok(all)
}

/// The closed form: `s = sin(1.3 t + 0.71 i + 0.2)`, t the place of the tensor, i the row-major index.
fn values(t: usize, name: &str, shape: &[usize]) -> Vec<f32> {
    let columns = shape.last().copied().unwrap_or(1) as f64;
    let count: usize = shape.iter().product();
    let value = |s: f64| match name {
        _ if name.ends_with(".A_log") || name.ends_with(".dt_bias") || name.ends_with(".conv1d.weight") => {
            0.5 * s
        }
        "embed_tokens.weight" => 0.5 * s,
        _ if name.ends_with(".linear_attn.norm.weight") => 1.0 + 0.2 * s,
        _ if shape.len() == 1 => 0.2 * s,
        _ => s * 1.5 / columns.sqrt(),
    };
    (0..count)
        .map(|i| value((1.3 * t as f64 + 0.71 * i as f64 + 0.2).sin()) as f32)
        .collect()
}

/// Writes `config.json` and `model.safetensors` of the golden backbone, tensor names with this prefix.
pub fn write_golden(dir: &Path, prefix: &str) -> anyhow::Result<()> {
    let config = golden()?["config"].clone();
    let mut written = Vec::new();
    for (t, (name, shape)) in tensors(&config)?.into_iter().enumerate() {
        let values = values(t, &name, &shape);
        written.push((format!("{prefix}{name}"), shape, values));
    }
    fs::create_dir_all(dir)?;
    write_safetensors(&dir.join("model.safetensors"), &written)?;
    fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    Ok(())
}

/// Writes a safetensors file of F32 tensors: name, shape, values.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) -> anyhow::Result<()> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // The data begins at a multiple of eight bytes, as the format wants it.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    fs::write(path, file)?;
    Ok(())
}

/// Writes an index over every safetensors file of a folder.
pub fn write_index(dir: &Path) -> anyhow::Result<()> {
    let mut weight_map = Map::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            let bytes = fs::read(&path)?;
            let length = bytes.first_chunk::<8>().context("no header")?;
            let end = 8 + usize::try_from(u64::from_le_bytes(*length))?;
            let header: Map<String, Value> =
                serde_json::from_slice(bytes.get(8..end).context("cut header")?)?;
            let name = path
                .file_name()
                .context("no name")?
                .to_string_lossy()
                .into_owned();
            let tensors = header.keys().filter(|key| *key != "__metadata__");
            weight_map.extend(tensors.map(|tensor| (tensor.clone(), json!(name))));
        }
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string())?;
    Ok(())
}

/// Gives a folder whose output embedding is tied one of its own, with these values, in a file beside. Before any other file of
/// weights is added, because the index is over all of them.
pub fn untie(dir: &Path, vocabulary: usize, hidden: usize, values: Vec<f32>) -> anyhow::Result<()> {
    let head = [("lm_head.weight".to_owned(), vec![vocabulary, hidden], values)];
    write_safetensors(&dir.join("lm_head.safetensors"), &head)?;
    write_index(dir)?;
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
    config["tie_word_embeddings"] = false.into();
    if let Some(text) = config.get_mut("text_config") {
        text["tie_word_embeddings"] = false.into();
    }
    fs::write(path, serde_json::to_vec_pretty(&config)?)?;
    Ok(())
}

/// Gives a folder a joint head of these sizes: weights of the closed form, and gives them back by name.
pub fn write_joint_head(dir: &Path, sizes: &JointHeadConfig) -> anyhow::Result<HashMap<String, Vec<f64>>> {
    let mut tensors = Vec::new();
    for (t, (name, shape)) in joint_head_tensors(sizes).into_iter().enumerate() {
        // Norms around one, matrices that keep the size of what they multiply, and scales that tell options apart.
        let base = match shape.len() {
            0 => 2.5,
            1 if name.contains("norm") && name.ends_with("weight") => 1.0,
            _ => 0.0,
        };
        let size = match shape[..] {
            [_, inputs] => 1.5 / (inputs as f64).sqrt(),
            _ => 0.4,
        };
        let count = shape.iter().product::<usize>();
        let value = |i: usize| base + size * (1.3 * t as f64 + 0.71 * i as f64 + 0.2).sin();
        let values: Vec<f32> = (0..count).map(|i| value(i) as f32).collect();
        tensors.push((name, shape, values));
    }
    let by_name = tensors.iter().map(|(name, _, values)| {
        let values = values.iter().copied().map(f64::from).collect();
        (name.clone(), values)
    });
    let by_name = by_name.collect();
    write_safetensors(&dir.join("joint_head.safetensors"), &tensors)?;
    fs::write(dir.join("joint_head_config.json"), serde_json::to_vec(sizes)?)?;
    Ok(by_name)
}

/// Copies the files of a folder, without those below it.
pub fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Writes another StartLux model: the embedded one with other temperatures, so that its digest and its probabilities are
/// its own.
pub fn write_other(dir: &Path) -> anyhow::Result<()> {
    copy(&root().join("deploy/models/deltagate-mini"), dir)?;
    let file = dir.join("decision_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
    for (_, temperature) in config["temperature_by_type"]
        .as_object_mut()
        .context("no temperatures")?
    {
        *temperature = json!(4.0);
    }
    Ok(fs::write(&file, serde_json::to_vec_pretty(&config)?)?)
}
