//! Which decider family a folder belongs to, and what is wrong with its configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_checkpoint::{AttentionMode, Problem};
use serde_json::{Value, json};
use support::{Folder, only};

#[test]
fn the_two_families_that_share_a_file_name_are_told_apart() {
    let mut folder = Folder::startlux("");
    folder.decision =
        json!({"format_version": 2, "codes": [], "token_ids": [], "temperature": 1.0, "pooling": "last"});
    folder.files.insert("readout.safetensors", vec![0]);
    let found = folder.refused();
    only(&found[..1], "decision_config.json", "format_version", "is not 1");

    folder = Folder::startlux("");
    folder.decision = json!({"temperature": 1.0});
    only(
        &folder.refused(),
        "decision_config.json",
        "letter_token_ids",
        "is missing",
    );
}

#[test]
fn files_of_several_families_are_ambiguous() {
    let mut folder = Folder::startlux("");
    folder.files.insert("decider_config.json", b"{}".to_vec());
    let found = folder.refused();
    let ambiguous = |problem: &Problem| matches!(problem, Problem::AmbiguousFamily(f) if f == &["decider_2b", "startlux"]);
    assert!(
        found
            .iter()
            .any(|f| ambiguous(&f.problem) && f.file == "decider_config.json, decision_config.json"),
        "{found:?}"
    );

    let mut folder = Folder::startlux("");
    folder.decision["codes"] = json!([]);
    let found = folder.refused();
    let ambiguous =
        |problem: &Problem| matches!(problem, Problem::AmbiguousFamily(f) if f == &["startlux", "pplx"]);
    assert!(found.iter().any(|f| ambiguous(&f.problem)), "{found:?}");
}

#[test]
fn a_decision_config_is_checked_key_by_key() {
    let letters = |ids: Vec<u32>| json!(ids);
    let mut twice: Vec<u32> = (32..58).collect();
    twice[3] = 32;
    for (key, value, problem) in [
        ("letter_token_ids", letters((32..57).collect()), "26 token ids"),
        ("letter_token_ids", json!("A"), "26 token ids"),
        ("letter_token_ids", letters(twice), "twice"),
        ("letter_token_ids", letters((39..65).collect()), "`vocab_size`"),
        ("temperature_by_type", json!([1.0]), "not an object"),
        ("temperature_by_type.score", json!({"score": 0.0}), "above 0"),
        ("temperature_by_type.score", json!({"score": -1}), "above 0"),
        ("temperature_by_type.score", json!({"score": "1"}), "above 0"),
        ("temperature_by_type.bool", json!({"bool": 1.0}), "none of"),
        ("wide_choice", json!(25), "not an object"),
        ("wide_choice.group", json!({"group": 27}), "2 to 26"),
        ("wide_choice.group", json!({"group": 1, "keep": 1}), "2 to 26"),
        ("wide_choice.keep", json!({"keep": 0}), "half of `group`"),
        (
            "wide_choice.keep",
            json!({"group": 25, "keep": 13}),
            "half of `group`",
        ),
        ("wide_choice.residual", json!({"residual": 1.0}), "below 1"),
        ("wide_choice.residual", json!({"residual": -0.1}), "below 1"),
        ("wide_choice.rounds", json!({"rounds": 2}), "does not know"),
        ("release_date", json!("soon"), "YYYY-MM-DD"),
        ("temperature", json!(2.0), "does not know"),
        (
            "attention_mode",
            json!("noncausal_full_attention"),
            "does not know",
        ),
    ] {
        let mut folder = Folder::startlux("");
        folder.decision[key.split('.').next().unwrap()] = value.clone();
        let found = folder.refused();
        if key == "wide_choice.group" && found.len() == 2 {
            // A group of one leaves no number to keep.
            assert_eq!(found[1].key_or_tensor.as_deref(), Some("wide_choice.keep"));
            only(&found[..1], "decision_config.json", key, problem);
        } else {
            only(&found, "decision_config.json", key, problem);
        }
    }
}

#[test]
fn a_temperature_that_overflows_is_not_finite() {
    let folder = Folder::startlux("");
    let dir = folder.write();
    let text = folder.decision.to_string().replace("1.25", "1e999");
    std::fs::write(dir.path().join("decision_config.json"), text).unwrap();
    only(
        &support::findings(dir.path()),
        "decision_config.json",
        "temperature_by_type.noul",
        "finite",
    );
}

#[test]
fn prompts_need_a_tokenizer() {
    let mut folder = Folder::startlux("");
    folder.files.clear();
    only(&folder.refused(), "tokenizer.json", "", "startlux needs it");
}

fn open_jev_export() -> Value {
    json!({
        "format": "open-jev-text-merged/1", "model_id": "org/model", "base_revision": "a", "checkpoint_revision": "b",
        "temperature": 1.5, "max_length": 256, "chat_prefix": "<|im_start|>user\n", "chat_suffix": "<|im_end|>\n",
        "head_weight": (0..8).map(|i| f64::from(i) / 8.0).collect::<Vec<f64>>(), "head_bias": -0.25
    })
}

/// A folder as the exporter writes it: tensors without a prefix, and no output embedding.
fn open_jev(export: &Value) -> Folder {
    let mut folder = Folder::startlux("");
    folder.decision = Value::Null;
    folder.tensors.remove("lm_head.weight").unwrap();
    folder
        .files
        .insert("open_jev_export.json", serde_json::to_vec(export).unwrap());
    folder
}

#[test]
fn an_open_jev_export_is_recognised() {
    let export = open_jev_export();
    let checkpoint = open_jev(&export).open().unwrap();
    let card = checkpoint.card();
    assert_eq!(card.family.as_deref(), Some("open_jev"));
    assert_eq!(card.family_config, export);
    assert_eq!((card.max_tokens, &card.release_date), (256, &None));
    assert_eq!(card.attention, AttentionMode::Causal);
    assert!(checkpoint.output_embedding().unwrap().is_none());

    let mut other = export.clone();
    other["head_bias"] = json!(0.25);
    let changed = open_jev(&other).open().unwrap();
    assert_ne!(
        card.digest,
        changed.card().digest,
        "the head decides answers, and so belongs to the digest"
    );

    // 4096 if the export does not say, and never more than the backbone takes.
    other.as_object_mut().unwrap().shift_remove("max_length");
    let mut folder = open_jev(&other);
    assert_eq!(folder.open().unwrap().card().max_tokens, 512);
    folder.config["max_position_embeddings"] = json!(262_144);
    assert_eq!(folder.open().unwrap().card().max_tokens, 4096);
}

#[test]
fn an_open_jev_export_is_checked_key_by_key() {
    let file = "open_jev_export.json";
    for (key, value, problem) in [
        ("format", json!("open-jev-text-merged/2"), "the only one"),
        ("format", json!(1), "the only one"),
        ("model_id", json!(""), "an empty one"),
        ("base_revision", json!(1), "not a string"),
        ("checkpoint_revision", Value::Null, "not a string"),
        ("temperature", json!(0.0), "above 0"),
        ("temperature", json!("1"), "above 0"),
        ("max_length", json!(0), "1 to 16384"),
        ("max_length", json!(16_385), "1 to 16384"),
        ("chat_prefix", json!([]), "not a string"),
        ("chat_suffix", json!(0), "not a string"),
        (
            "head_weight",
            json!(vec![0.5; 7]),
            "has 7 numbers, but `hidden_size` is 8",
        ),
        ("head_weight", json!([[0.5, 0.5]]), "has 1 numbers"),
        (
            "head_weight",
            json!(["0.5", 0, 0, 0, 0, 0, 0, 0]),
            "finite f32 number at 0",
        ),
        (
            "head_weight",
            json!([0, 0, 1e39, 0, 0, 0, 0, 0]),
            "finite f32 number at 2",
        ),
        ("head_weight", json!(0.5), "not an array"),
        ("head_bias", Value::Null, "finite"),
        ("head_bias", json!(-1e39), "finite f32"),
        ("pooling", json!("last"), "does not know"),
    ] {
        let mut export = open_jev_export();
        export[key] = value;
        only(&open_jev(&export).refused(), file, key, problem);
    }
    for key in open_jev_export().as_object().unwrap().keys() {
        let mut export = open_jev_export();
        export.as_object_mut().unwrap().shift_remove(key).unwrap();
        if key != "max_length" {
            only(&open_jev(&export).refused(), file, key, "is missing");
        }
    }
    let overflow = open_jev_export().to_string().replace("0.875", "1e999");
    let mut folder = open_jev(&Value::Null);
    folder.files.insert(file, overflow.into_bytes());
    let found = folder.refused();
    assert!(found.len() == 1 && found[0].file == file, "{found:?}");
}

#[test]
fn an_open_jev_model_that_is_not_merged_is_refused() {
    let mut folder = open_jev(&Value::Null);
    folder.files.remove("open_jev_export.json");
    folder.files.insert("head.pt", vec![0]);
    only(&folder.refused(), "head.pt", "", "not merged");
    // What is left over from the export does no harm.
    let mut folder = open_jev(&open_jev_export());
    folder.files.insert("head.pt", vec![0]);
    assert!(folder.open().is_ok());
    folder.files.remove("tokenizer.json");
    only(&folder.refused(), "tokenizer.json", "", "open_jev needs it");
}
