//! The invariants of ARCHITECTURE.md and the promises of SPECIFICATION.md, held against the tree itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeSet, fs, path::Path};

use deltagate_tests::tree::{code_only, files, has_word, relative, root};

fn crates() -> Vec<(String, String)> {
    let all: Vec<_> = files(&root(), "Cargo.toml")
        .into_iter()
        .filter(|p| p.parent() != Some(&root()))
        .map(|p| (relative(p.parent().unwrap()), fs::read_to_string(&p).unwrap()))
        .collect();
    assert!(
        all.len() >= 15,
        "found only {} crates: the walk is broken",
        all.len()
    );
    all
}

fn sources(dir: &str) -> Vec<(String, String)> {
    let all: Vec<_> = files(&root().join(dir), ".rs")
        .into_iter()
        .map(|p| (relative(&p), fs::read_to_string(&p).unwrap()))
        .collect();
    assert!(!all.is_empty(), "no source under {dir}: the walk is broken");
    all
}

/// Names of the dependencies of a crate, without those of its tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies")
            && !section.contains("dev-dependencies")
            && let Some(name) = line.split(['.', ' ', '=']).next()
            && !name.is_empty()
            && !name.starts_with('#')
        {
            found.insert(name.to_owned());
        }
    }
    found
}

fn only_in(dependency: &str, allowed: &[&str]) {
    for (dir, manifest) in crates() {
        let has = dependencies(&manifest).contains(dependency);
        assert!(
            !has || allowed.contains(&dir.as_str()),
            "{dir} depends on {dependency}; only {allowed:?} may"
        );
    }
}

#[test]
fn invariant_1_only_the_gateway_tokenises() {
    only_in("tokenizers", &["gateway", "tests"]);
    assert!(
        dependencies(&fs::read_to_string(root().join("gateway/Cargo.toml")).unwrap()).contains("tokenizers")
    );
}

#[test]
fn invariant_1_unsafe_and_cuda_live_in_kernels() {
    let mut seen = 0;
    for (path, text) in sources(".") {
        if has_word(&code_only(&text), "unsafe") {
            assert!(path.starts_with("kernels/"), "{path} holds `unsafe`");
            seen += 1;
        }
    }
    assert!(
        seen > 0,
        "the mapped files need `unsafe` somewhere: the search is broken"
    );
    for (dir, manifest) in crates() {
        assert!(
            !dependencies(&manifest).contains("cudarc") || dir.starts_with("kernels/"),
            "{dir} links CUDA"
        );
    }
}

#[test]
fn invariant_1_only_mesh_knows_exporters() {
    only_in("opentelemetry-otlp", &["services/mesh"]);
    only_in("opentelemetry_sdk", &["services/mesh"]);
    only_in("opentelemetry-prometheus", &["services/mesh"]);
    only_in("prometheus", &["services/mesh"]);
}

#[test]
fn invariant_1_pure_crates_do_no_io() {
    for dir in ["gateway/decider/src", "kernels/api/src"] {
        for (path, text) in sources(dir) {
            let code = code_only(&text);
            for word in [
                "std::fs",
                "std::net",
                "std::env",
                "std::process",
                "tokio",
                "File::open",
                "reqwest",
            ] {
                assert!(!code.contains(word), "{path} does I/O: {word}");
            }
        }
    }
    for (dir, manifest) in crates() {
        if matches!(dir.as_str(), "gateway/decider" | "kernels/api") {
            for bad in ["tokio", "tonic", "candle-core", "memmap2", "tokenizers"] {
                assert!(!dependencies(&manifest).contains(bad), "{dir} depends on {bad}");
            }
        }
    }
}

#[test]
fn invariant_1_the_executor_knows_no_family() {
    let names = [
        "startlux",
        "clef",
        "pplx",
        "open_jev",
        "open-jev",
        "intern",
        "cua_s1",
        "decider_2b",
    ];
    for (path, text) in sources("services/executor") {
        let text = text.to_lowercase();
        for name in names {
            assert!(!has_word(&text, name), "{path} names the decider family {name}");
        }
    }
}

#[test]
fn config_structs_refuse_unknown_fields() {
    let mut seen = 0;
    for dir in ["services", "gateway/src"] {
        for (path, text) in sources(dir) {
            let lines: Vec<_> = text.lines().collect();
            for (i, line) in lines.iter().enumerate() {
                let Some(rest) = line.strip_prefix("pub struct ") else {
                    continue;
                };
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                let attributes = lines[i.saturating_sub(8)..i].join("\n");
                if !name.ends_with("Config") || !attributes.contains("Deserialize") || name == "ModelConfig" {
                    continue;
                }
                seen += 1;
                assert!(
                    attributes.contains("deny_unknown_fields"),
                    "{path}: {name} takes unknown keys"
                );
            }
        }
    }
    assert!(
        seen >= 5,
        "found only {seen} config structs: the search is broken"
    );
}

#[test]
fn crates_and_files_say_what_they_are() {
    for (dir, _) in crates() {
        let lib = ["src/lib.rs", "src/main.rs"]
            .iter()
            .map(|f| root().join(&dir).join(f))
            .find(|p| p.exists());
        let text = fs::read_to_string(lib.unwrap_or_else(|| panic!("{dir} has no source"))).unwrap();
        assert!(text.starts_with("//! "), "{dir} does not say what it is");
    }
    for (path, text) in sources(".") {
        let lines = text.lines().count();
        assert!(lines <= 700, "{path} has {lines} lines: one idea a file");
        let name = Path::new(&path)
            .file_stem()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        assert!(
            !matches!(name.as_str(), "utils" | "util" | "common" | "manager" | "helpers"),
            "{path} names no idea"
        );
    }
}

#[test]
fn top_level_is_the_agreed_one() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "ARCHITECTURE.md",
        "SPECIFICATION.md",
        "CHANGELOG.md",
        "THIRD-PARTY.md",
        "LICENSE",
        "proto",
        "services",
        "gateway",
        "kernels",
        "deploy",
        "tests",
        "docs",
        ".ci",
        ".git",
        ".gitignore",
        "deny.toml",
        "clippy.toml",
        "rustfmt.toml",
        "target",
        ".venv",
        ".tools",
    ];
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(allowed.contains(&name.as_str()), "{name} stands at the top level");
    }
}

#[test]
fn every_promise_names_a_test_that_exists() {
    let specification = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let tests: String = sources(".").into_iter().map(|(_, text)| text).collect();
    let mut promises = 0;
    for line in specification
        .lines()
        .filter(|l| l.starts_with("| ") && l.chars().nth(2).is_some_and(|c| c.is_ascii_digit()))
    {
        promises += 1;
        let cell = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let named: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test named: {line}");
        for name in named {
            let function = name.rsplit("::").next().unwrap();
            assert!(
                tests.contains(&format!("fn {function}(")),
                "no test `{function}`, which a promise names: {line}"
            );
        }
    }
    assert!(promises >= 20, "read only {promises} promises");
}

#[test]
fn the_readme_commands_are_what_ci_runs() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    for command in ["cargo run --release -- demo", "bash tests/run.sh"] {
        assert!(readme.contains(command), "README does not show `{command}`");
        assert!(ci.contains(command), ".ci/run does not call `{command}`");
    }
}

#[test]
fn third_party_lists_every_package() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let list = fs::read_to_string(root().join("THIRD-PARTY.md")).unwrap();
    let mut packages = 0;
    for package in lock.split("[[package]]").filter(|p| p.contains("source = ")) {
        let field = |key: &str| {
            let start = package.find(&format!("{key} = \"")).unwrap() + key.len() + 4;
            package[start..].split('"').next().unwrap()
        };
        packages += 1;
        let row = format!("| {} | {} |", field("name"), field("version"));
        assert!(
            list.contains(&row),
            "THIRD-PARTY.md lacks {row}: run tests/scripts/third_party.py"
        );
    }
    assert!(packages > 100);
}
