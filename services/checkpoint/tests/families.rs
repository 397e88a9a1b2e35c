//! Which decider family a folder belongs to, and what is wrong with its configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_checkpoint::Problem;
use serde_json::{Value, json};
use support::{Folder, only};

#[test]
fn other_families_are_recognised_and_refused_by_name() {
    for (file, family) in [
        ("open_jev_export.json", "open-jev"),
        ("head.pt", "open-jev"),
        ("joint_head_config.json", "clef"),
        ("joint_head.safetensors", "clef"),
        ("readout.safetensors", "pplx"),
        ("decider_config.json", "decider"),
        ("adapter_config.json", "cua-s1"),
    ] {
        let mut folder = Folder::startlux("");
        folder.decision = Value::Null;
        folder.files.insert(file, b"{}".to_vec());
        only(
            &folder.refused(),
            file,
            "",
            &format!("family `{family}` is not served by this version"),
        );
    }
}

#[test]
fn the_two_families_that_share_a_file_name_are_told_apart() {
    let mut folder = Folder::startlux("");
    folder.decision =
        json!({"format_version": 1, "codes": [], "token_ids": [], "temperature": 1.0, "pooling": "last"});
    only(
        &folder.refused(),
        "decision_config.json",
        "",
        "`pplx` is not served",
    );
    folder.files.insert("readout.safetensors", vec![0]);
    only(
        &folder.refused(),
        "readout.safetensors",
        "",
        "`pplx` is not served",
    );

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
    let ambiguous =
        |problem: &Problem| matches!(problem, Problem::AmbiguousFamily(f) if f == &["decider", "startlux"]);
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
