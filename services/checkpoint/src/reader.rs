//! Reads `config.json` key by key, and collects everything that is wrong with it.

use serde_json::Value;

use crate::{ConfigError, LayerKind, ModelConfig, scope::Scope};

/// Keys that a checkpoint may carry and that change nothing here: bookkeeping, training, vision, multi-token prediction.
const NEUTRAL: &[&str] = &[
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "id2label",
    "image_token_id",
    "initializer_range",
    "label2id",
    "language_model_only",
    "model_type",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "name_or_path",
    "output_attentions",
    "output_gate_type",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];

/// Keys of the text backbone that are read below.
const TEXT: &[&str] = &[
    "attention_bias",
    "attn_output_gate",
    "full_attention_interval",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "is_encoder_decoder",
    "layer_types",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "mamba_ssm_dtype",
    "max_position_embeddings",
    "max_window_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
];

/// Keys of the root of a nested config that are read below.
const ROOT: &[&str] = &[
    "is_encoder_decoder",
    "quantization_config",
    "text_config",
    "tie_word_embeddings",
];

const ROPE: &[&str] = &[
    "mrope_interleaved",
    "mrope_section",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

/// Larger than any size of a model, small enough that products of two of them fit.
const MAX_SIZE: u64 = 1 << 24;
const MAX_LAYERS: u64 = 4096;

/// The config if every key that it needs is usable, and all errors. A config that comes with errors must not be used.
pub(crate) fn read(value: &Value) -> (Option<ModelConfig>, Vec<ConfigError>) {
    let mut errors = Vec::new();
    let config = document(value, &mut errors);
    (config, errors)
}

fn document(value: &Value, errors: &mut Vec<ConfigError>) -> Option<ModelConfig> {
    let Some(object) = value.as_object() else {
        errors.push(ConfigError {
            key: String::new(),
            reason: "is not an object".to_owned(),
        });
        return None;
    };
    let mut root = Scope {
        prefix: "",
        object,
        errors,
    };
    match root.string("model_type")? {
        "qwen3_5_text" => {
            root.known(&[NEUTRAL, TEXT]);
            text(&mut root, None)
        }
        "qwen3_5" => {
            root.known(&[NEUTRAL, ROOT]);
            root.shared();
            let tied = root.flag("tie_word_embeddings");
            let Some(nested) = object.get("text_config").and_then(Value::as_object) else {
                root.refuse("text_config", "is missing or not an object");
                return None;
            };
            let mut scope = Scope {
                prefix: "text_config.",
                object: nested,
                errors,
            };
            if nested.contains_key("model_type") && scope.string("model_type")? != "qwen3_5_text" {
                scope.refuse("model_type", "is not `qwen3_5_text`");
            }
            scope.known(&[NEUTRAL, TEXT]);
            text(&mut scope, tied)
        }
        other => {
            let reason = format!("is `{other}`; `qwen3_5` and `qwen3_5_text` are served");
            root.refuse("model_type", &reason);
            None
        }
    }
}

/// `tied` is what the root of a nested config says about the output embedding; it wins over the text level, as in transformers.
fn text(scope: &mut Scope<'_>, tied: Option<bool>) -> Option<ModelConfig> {
    scope.shared();
    scope.only(
        "attention_bias",
        &Value::Bool(false),
        "biases in attention are not implemented",
    );
    scope.only(
        "attn_output_gate",
        &Value::Bool(true),
        "attention without an output gate is not implemented",
    );
    scope.only("hidden_act", &"silu".into(), "only `silu` is implemented");
    scope.only(
        "mamba_ssm_dtype",
        &"float32".into(),
        "the state is kept in `float32` only",
    );
    if scope.flag("use_sliding_window") != Some(false) {
        scope.only(
            "sliding_window",
            &Value::Null,
            "sliding windows are not implemented",
        );
    }
    scope.only(
        "use_sliding_window",
        &Value::Bool(false),
        "sliding windows are not implemented",
    );

    // Everything is read before anything is given up, so that all errors come at once.
    let own = scope.flag("tie_word_embeddings");
    // The other way round the tensors tell: a head of its own that differs from the embedding is refused.
    if (tied, own) == (Some(false), Some(true)) {
        scope.refuse(
            "tie_word_embeddings",
            "is true, though `tie_word_embeddings` of the root is false",
        );
    }
    let layers = layers(scope);
    let rope = rope(scope);
    let mut size = |key| scope.size(key, MAX_SIZE);
    let hidden_size = size("hidden_size");
    let intermediate_size = size("intermediate_size");
    let num_attention_heads = size("num_attention_heads");
    let num_key_value_heads = size("num_key_value_heads");
    let head_dim = size("head_dim");
    let linear_num_key_heads = size("linear_num_key_heads");
    let linear_num_value_heads = size("linear_num_value_heads");
    let linear_key_head_dim = size("linear_key_head_dim");
    let linear_value_head_dim = size("linear_value_head_dim");
    let linear_conv_kernel_dim = size("linear_conv_kernel_dim");
    let vocab_size = size("vocab_size");
    let max_position_embeddings = size("max_position_embeddings");
    let rms_norm_eps = scope.number("rms_norm_eps");
    if rms_norm_eps.is_some_and(|eps| !(eps > 0.0 && eps < 1.0)) {
        scope.refuse("rms_norm_eps", "is not between 0 and 1");
    }
    if linear_conv_kernel_dim.is_some_and(|taps| taps != 4) {
        scope.refuse(
            "linear_conv_kernel_dim",
            "is not 4, and no other convolution is implemented",
        );
    }
    scope.divides(
        "num_key_value_heads",
        num_key_value_heads,
        "num_attention_heads",
        num_attention_heads,
    );
    scope.divides(
        "linear_num_key_heads",
        linear_num_key_heads,
        "linear_num_value_heads",
        linear_num_value_heads,
    );

    let (rope_theta, factor) = rope?;
    let head_dim = head_dim?;
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        scope.refuse(
            "partial_rotary_factor",
            "does not turn an even number of the dimensions of a head",
        );
    }
    Some(ModelConfig {
        hidden_size: hidden_size?,
        intermediate_size: intermediate_size?,
        layers: layers?,
        num_attention_heads: num_attention_heads?,
        num_key_value_heads: num_key_value_heads?,
        head_dim,
        rotary_dim,
        rope_theta,
        linear_num_key_heads: linear_num_key_heads?,
        linear_num_value_heads: linear_num_value_heads?,
        linear_key_head_dim: linear_key_head_dim?,
        linear_value_head_dim: linear_value_head_dim?,
        linear_conv_kernel_dim: linear_conv_kernel_dim?,
        rms_norm_eps: rms_norm_eps?,
        vocab_size: vocab_size?,
        tie_word_embeddings: tied.or(own).unwrap_or(false),
        max_position_embeddings: max_position_embeddings?,
    })
}

/// From `layer_types`, or from `full_attention_interval` (4 if that is missing too); if both are there they must agree.
fn layers(scope: &mut Scope<'_>) -> Option<Vec<LayerKind>> {
    let count = scope.size("num_hidden_layers", MAX_LAYERS)?;
    let interval = match scope.present("full_attention_interval") {
        Some(_) => Some(scope.size("full_attention_interval", MAX_LAYERS)?),
        None => None,
    };
    let every = |interval: usize| -> Vec<LayerKind> {
        let kind = |i: usize| {
            if i.is_multiple_of(interval) {
                LayerKind::FullAttention
            } else {
                LayerKind::LinearAttention
            }
        };
        (1..=count).map(kind).collect()
    };
    let Some(types) = scope.present("layer_types") else {
        return Some(every(interval.unwrap_or(4)));
    };
    let Some(types) = types.as_array().filter(|types| types.len() == count) else {
        scope.refuse("layer_types", "is not an array of `num_hidden_layers` entries");
        return None;
    };
    let mut layers = Vec::with_capacity(count);
    for (i, kind) in types.iter().enumerate() {
        match kind.as_str() {
            Some("linear_attention") => layers.push(LayerKind::LinearAttention),
            Some("full_attention") => layers.push(LayerKind::FullAttention),
            _ => scope.refuse(
                &format!("layer_types.{i}"),
                "is neither `linear_attention` nor `full_attention`",
            ),
        }
    }
    if layers.len() != count {
        return None;
    }
    if interval.is_some_and(|interval| every(interval) != layers) {
        scope.refuse("full_attention_interval", "contradicts `layer_types`");
        return None;
    }
    Some(layers)
}

/// (theta, partial rotary factor), from `rope_parameters`, its older name `rope_scaling`, or the text level; places must agree.
fn rope(scope: &mut Scope<'_>) -> Option<(f64, f64)> {
    let mut theta = None;
    let mut factor = None;
    let mut usable = true;
    for place in ["rope_parameters", "rope_scaling"] {
        let Some(value) = scope.present(place) else {
            continue;
        };
        let Some(object) = value.as_object() else {
            scope.refuse(place, "is not an object");
            usable = false;
            continue;
        };
        let prefix = format!("{}{place}.", scope.prefix);
        let mut inner = Scope {
            prefix: &prefix,
            object,
            errors: scope.errors,
        };
        inner.known(&[ROPE]);
        for key in ["rope_type", "type"] {
            inner.only(key, &"default".into(), "only the `default` rope is implemented");
        }
        usable &= inner.agree("rope_theta", &mut theta) & inner.agree("partial_rotary_factor", &mut factor);
    }
    usable &= scope.agree("rope_theta", &mut theta) & scope.agree("partial_rotary_factor", &mut factor);
    if !usable {
        return None;
    }
    for (key, value) in [("rope_theta", theta), ("partial_rotary_factor", factor)] {
        match value {
            None => scope.refuse(key, "is missing, here and in `rope_parameters`"),
            Some(value) if value <= 0.0 => scope.refuse(key, "is not above 0"),
            Some(value) if key == "partial_rotary_factor" && value > 1.0 => scope.refuse(key, "is above 1"),
            Some(_) => {}
        }
    }
    theta.zip(factor)
}
