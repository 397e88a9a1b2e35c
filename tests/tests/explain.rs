//! `explain` of every family: with a name and a tokenizer, what only a checkpoint knows is unknown; with the family's
//! configuration it is known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use deltagate_decider::families::FAMILIES;
use deltagate_tests::{
    process::{self, Run},
    requests::ticket_body,
    tree::qwen35_tokenizer,
};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

/// A request that the family answers.
fn body(family: &str) -> Value {
    let mut body = ticket_body();
    let questions = body["questions"].as_object_mut().unwrap();
    match family {
        "cua_s1" => questions.retain(|id, _| id == "team"),
        "sequence_classification" => {
            questions.retain(|id, _| id == "team");
            questions["team"] = json!({"type": "choice", "criteria": ["spam", "ham"]});
            body["state"] = json!("Dear winner");
        }
        _ => {}
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_every_family_and_what_only_a_checkpoint_knows_as_unknown() {
    let dir = process::folder().unwrap();
    // One family's tokenizers have a marker of their own.
    let text = std::fs::read_to_string(qwen35_tokenizer().unwrap()).unwrap();
    let list = r#""added_tokens": ["#;
    assert_eq!(text.matches(list).count(), 1);
    let marker = r#"{"id": 248077, "content": "<decision>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}, "#;
    let text = text.replacen(list, &format!("{list}{marker}"), 1);
    let tokenizer = process::write(dir.path(), "tokenizer.json", &text).unwrap();
    assert_eq!(FAMILIES.len(), 9);
    for family in FAMILIES {
        let request = process::write(dir.path(), "request.json", &body(family).to_string()).unwrap();
        let arguments = [
            "explain",
            "--family",
            family,
            "--tokenizer",
            &tokenizer,
            "--request",
            &request,
        ];
        let explained = run(&[&arguments[..], &["--json"]].concat()).await;
        assert_eq!(explained.code, Some(0), "{family}: {explained:?}");
        let document = explained.json().unwrap();
        assert_eq!(
            (&document["family"], &document["config"]),
            (&json!(family), &json!("unknown"))
        );
        assert_eq!(
            document["joint"],
            json!(["intern", "clef"].contains(family)),
            "{family}"
        );
        // Two families answer with a head of their own, and have no plan without it.
        let needs_head = ["open_jev", "sequence_classification"].contains(family);
        assert_eq!(
            document["noncausal_full_attention"] == json!("unknown"),
            needs_head,
            "{family}"
        );
        assert_eq!(
            document["noncausal_full_attention"] == json!(true),
            *family == "pplx_v1_1"
        );
        let sequences = document["sequences"].as_array().unwrap();
        assert!(!sequences.is_empty());
        for sequence in sequences {
            assert!(
                !sequence["text"].as_str().unwrap().is_empty()
                    && !sequence["ids"].as_array().unwrap().is_empty()
            );
            assert!(!sequence["read"].as_array().unwrap().is_empty(), "{family}");
            assert_eq!(
                sequence["readout"] == json!("unknown"),
                needs_head,
                "{family}: {}",
                sequence["readout"]
            );
        }
        let people = run(&arguments).await;
        assert!(people.out.contains("config \"unknown\""), "{people:?}");
    }

    let config = process::write(
        dir.path(),
        "config.json",
        r#"{"labels": ["ham", "none", "spam"]}"#,
    )
    .unwrap();
    let family = "sequence_classification";
    let request = process::write(dir.path(), "request.json", &body(family).to_string()).unwrap();
    let known = run(&[
        "explain",
        "--family",
        family,
        "--tokenizer",
        &tokenizer,
        "--request",
        &request,
        "--family-config",
        &config,
        "--json",
    ])
    .await
    .json()
    .unwrap();
    assert_eq!(known["config"], json!({"labels": ["ham", "none", "spam"]}));
    assert_eq!(known["sequences"][0]["readout"], json!({"decision_head": [2, 0]}));
}
