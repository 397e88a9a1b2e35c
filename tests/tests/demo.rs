//! `demo` and `check`: the shortest way to see it work, and why a folder would not load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use deltagate_tests::{
    model_folder,
    process::{self, Run},
    tree::files,
};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

/// The folder with this config file below a cache.
fn unpacked(cache: &Path) -> PathBuf {
    let configs = files(cache, "config.json");
    let model = configs
        .iter()
        .find(|p| p.file_name().is_some_and(|n| n == "config.json"));
    model
        .unwrap_or_else(|| panic!("nothing was unpacked under {}", cache.display()))
        .parent()
        .unwrap()
        .to_path_buf()
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_gives_three_decisions_and_check_judges_its_model() {
    let dir = process::folder().unwrap();
    let cache = dir.path().join("cache");
    let place = cache.display().to_string();
    let env = [("DELTAGATE_CACHE_DIR", place.as_str())];
    let demo = process::run(BINARY, &["demo"], &env).await.unwrap();
    assert_eq!(demo.code, Some(0), "{demo:?}");
    for shown in [
        "team: ",
        "severity: ",
        "refund: ",
        "delta_rule",
        "cpu.",
        "launches",
    ] {
        assert!(
            demo.out.contains(shown),
            "the demo does not show `{shown}`:\n{}",
            demo.out
        );
    }
    println!("{}", demo.out);

    let demo = process::run(BINARY, &["demo", "--json"], &env).await.unwrap();
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let document = demo.json().unwrap();
    let decisions = document["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 3);
    let kinds: Vec<_> = decisions
        .iter()
        .map(|d| {
            d["response"]["answers"]
                .as_object()
                .unwrap()
                .values()
                .next()
                .unwrap()["type"]
                .as_str()
                .unwrap()
        })
        .collect();
    assert_eq!(kinds, ["choice", "score", "noul"]);
    for decision in decisions {
        assert!(
            decision["response"]["timings_ms"]["forward"].as_f64().unwrap() > 0.0,
            "{decision}"
        );
        assert!(
            !decision["response"]["timings_ms"]["kernels"]
                .as_array()
                .unwrap()
                .is_empty(),
            "{decision}"
        );
    }
    assert_eq!(
        document["capabilities"]["executors"][0]["bindings"]
            .as_array()
            .map(Vec::len),
        Some(10)
    );
    println!("ready after {} ms", document["ready_after_ms"]);

    // The model that it unpacked, as it is.
    let model = unpacked(&cache);
    let good = run(&["check", &model.display().to_string(), "--json"]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    let inspection = good.json().unwrap();
    assert_eq!(inspection["would_load"], true);
    assert_eq!(inspection["card"]["family"], "startlux");
    assert_eq!(inspection["findings"], json!([]));
    let text = run(&["check", &model.display().to_string()]).await;
    assert!(
        text.out.contains("startlux") && text.out.contains("would load"),
        "{}",
        text.out
    );

    // And broken, one thing at a time.
    type Break = fn(&Path);
    let breaks: [(&str, &str, Break); 5] = [
        ("without its tokenizer", "tokenizer.json", |d| {
            fs::remove_file(d.join("tokenizer.json")).unwrap()
        }),
        ("without its config", "config.json", |d| {
            fs::remove_file(d.join("config.json")).unwrap()
        }),
        ("with cut weights", ".safetensors", |d| {
            let weights = files(d, ".safetensors").remove(0);
            let bytes = fs::read(&weights).unwrap();
            fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
        }),
        ("with another hidden size", "hidden_size", |d| {
            let mut config: Value =
                serde_json::from_slice(&fs::read(d.join("config.json")).unwrap()).unwrap();
            let text = match config.get_mut("text_config") {
                Some(text) => text,
                None => &mut config,
            };
            text["hidden_size"] = json!(72);
            fs::write(d.join("config.json"), config.to_string()).unwrap();
        }),
        ("with letters of another tokenizer", "letter_token_ids", |d| {
            let file = d.join("decision_config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            config["letter_token_ids"] = json!([1, 2]);
            fs::write(file, config.to_string()).unwrap();
        }),
    ];
    for (name, named, break_it) in breaks {
        let broken = dir.path().join(name.replace(' ', "-"));
        model_folder::copy(&model, &broken).unwrap();
        break_it(&broken);
        let verdict = run(&["check", &broken.display().to_string(), "--json"]).await;
        assert_eq!(verdict.code, Some(1), "{name}: {verdict:?}");
        let inspection = verdict.json().unwrap();
        assert_eq!(inspection["would_load"], false, "{name}");
        let findings = inspection["findings"].as_array().unwrap();
        assert!(!findings.is_empty(), "{name}");
        // A wrong size shows at the tensors that it is the size of.
        let told = inspection["findings"].to_string();
        let expected = if named == "hidden_size" {
            "embed_tokens.weight"
        } else {
            named
        };
        assert!(told.contains(expected), "{name}: {told} does not name {expected}");
    }
    let nothing = run(&["check", "/nonexistent/folder"]).await;
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
}
