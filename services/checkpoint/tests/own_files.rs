//! Families that are told by a token or by a file of another shape: Intern and Decider-2B.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_checkpoint::{ModelConfig, backbone_tensors};
use serde_json::{Value, json};
use support::{Folder, only, tokenizer};

/// A folder whose tokenizer has the marker, and nothing else that tells a family.
fn intern() -> Folder {
    let mut folder = Folder::startlux("");
    folder.decision = Value::Null;
    let mut tokenizer = tokenizer();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    added.push(json!({"id": 60, "content": "<decision>"}));
    folder
        .files
        .insert("tokenizer.json", serde_json::to_vec(&tokenizer).unwrap());
    folder
}

fn with_temperature(content: &Value) -> Folder {
    let mut folder = intern();
    folder
        .files
        .insert("intern_decision.json", serde_json::to_vec(content).unwrap());
    folder
}

#[test]
fn an_intern_model_is_told_by_its_token() {
    let checkpoint = with_temperature(&json!({"temperature": 1.5})).open().unwrap();
    let card = checkpoint.card();
    assert_eq!(card.family.as_deref(), Some("intern"));
    assert_eq!(card.family_config, json!({"temperature": 1.5}));
    assert_eq!(
        card.max_tokens, 512,
        "8192, and never more than the backbone takes"
    );
    let other = with_temperature(&json!({"temperature": 1.25})).open().unwrap();
    assert_ne!(
        card.digest,
        other.card().digest,
        "the temperature decides answers"
    );
    // Beside the file of another family the token says nothing.
    let mut startlux = intern();
    startlux.decision = support::decision();
    assert_eq!(
        startlux.open().unwrap().card().family.as_deref(),
        Some("startlux")
    );
    let mut both = with_temperature(&json!({"temperature": 1.5}));
    both.decision = support::decision();
    let found = both.refused();
    assert!(
        found
            .iter()
            .any(|finding| finding.to_string().contains("several families: intern, startlux")),
        "{found:?}"
    );
}

#[test]
fn the_temperature_of_an_intern_model_is_known_or_asked_for() {
    only(
        &intern().refused(),
        "intern_decision.json",
        "",
        "`hidden_size` 8 is not known",
    );
    for (hidden_size, temperature) in [(1024, 2.747760550703), (2048, 2.100509), (2560, 1.992418)] {
        let mut folder = intern();
        folder.config["hidden_size"] = json!(hidden_size);
        let sizes = ModelConfig::from_json(&folder.config).unwrap();
        for (name, shape) in backbone_tensors(&sizes) {
            folder.tensors.get_mut(&name).unwrap().shape = shape;
        }
        folder.tensors.get_mut("lm_head.weight").unwrap().shape = vec![64, hidden_size];
        let card = folder.open().unwrap().card().clone();
        assert_eq!(card.family_config, json!({"temperature": temperature}));
    }
    for (content, key) in [
        (json!({}), "temperature"),
        (json!({"temperature": 0}), "temperature"),
        (json!({"temperature": "1"}), "temperature"),
        (json!({"temperature": 1, "by_type": {}}), "by_type"),
    ] {
        only(
            &with_temperature(&content).refused(),
            "intern_decision.json",
            key,
            "",
        );
    }
    let mut unmarked = with_temperature(&json!({"temperature": 1}));
    unmarked
        .files
        .insert("tokenizer.json", serde_json::to_vec(&tokenizer()).unwrap());
    only(
        &unmarked.refused(),
        "tokenizer.json",
        "added_tokens",
        "has no token `<decision>`",
    );
}

fn decider_config() -> Value {
    json!({
        "version": "2b-v11", "layout": "plain", "neutralize_none": false, "isolated_levels": true, "max_options": 255,
        "max_state_tokens": 32768, "temperature": 1.145,
        "temperature_by_type": {"choice": 1.164, "noul": 1.624, "score": 1.124},
        "schema_first_trained": false, "release_date": "2026-09-24"
    })
}

fn decider(config: &Value) -> Folder {
    let mut folder = Folder::startlux("model.language_model.");
    folder.decision = Value::Null;
    folder
        .files
        .insert("decider_config.json", serde_json::to_vec(config).unwrap());
    folder
}

#[test]
fn a_decider_model_is_recognised() {
    let checkpoint = decider(&decider_config()).open().unwrap();
    let card = checkpoint.card();
    assert_eq!(card.family.as_deref(), Some("decider_2b"));
    assert_eq!(card.family_config, decider_config());
    assert_eq!(card.release_date.as_deref(), Some("2026-09-24"));
    let mut other = decider_config();
    other["temperature"] = json!(1.0);
    assert_ne!(card.digest, decider(&other).open().unwrap().card().digest);
}

#[test]
fn a_decider_config_is_checked_key_by_key() {
    let file = "decider_config.json";
    for (key, value, problem) in [
        ("version", json!(11), "not a string"),
        ("layout", json!("chat"), "only layout"),
        ("neutralize_none", json!(true), "not false"),
        ("isolated_levels", json!(false), "not true"),
        ("max_options", json!(10), "not 255"),
        ("max_state_tokens", json!(40_000), "from 1 to 36863"),
        ("temperature", json!(0), "above 0"),
        ("temperature", json!(1e-60), "above 0 in f32"),
        ("temperature", json!("1.3"), "above 0"),
        ("temperature_by_type", json!([1]), "not an object"),
        ("temperature_by_type.bool", json!({"bool": 1.0}), "none of"),
        ("temperature_by_type.noul", json!({"noul": -1.0}), "above 0"),
        (
            "temperature_by_options",
            json!({"a": 1, "b": 0}),
            "another prompt or readout",
        ),
        (
            "temperature_schema_first",
            json!(1.2),
            "another prompt or readout",
        ),
        (
            "temperature_schema_first_by_type",
            json!({}),
            "another prompt or readout",
        ),
        ("schema_first", json!(true), "another prompt or readout"),
        ("schema_first_trained", json!(true), "another prompt or readout"),
        ("chat_template", json!(true), "another prompt or readout"),
        ("release_date", json!("today"), "YYYY-MM-DD"),
        ("pooling", json!("mean"), "does not know"),
    ] {
        let mut config = decider_config();
        config[key.split('.').next().unwrap()] = value;
        only(&decider(&config).refused(), file, key, problem);
    }
    for key in ["version", "neutralize_none", "isolated_levels", "temperature"] {
        let mut config = decider_config();
        config.as_object_mut().unwrap().shift_remove(key).unwrap();
        only(&decider(&config).refused(), file, key, "is missing");
    }
    let mut short = decider_config();
    short.as_object_mut().unwrap().retain(|key, _| {
        ["version", "neutralize_none", "isolated_levels", "temperature"].contains(&key.as_str())
    });
    assert!(decider(&short).open().is_ok());
    let mut folder = decider(&decider_config());
    folder.files.insert(file, b"{".to_vec());
    only(&folder.refused(), file, "", "not valid JSON");
}
