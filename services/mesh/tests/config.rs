//! Sources, their order, provenance, and the refusal of everything unknown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{io::Write, path::Path, time::Duration};

use deltagate_mesh::config::{ConfigError, Loaded, load_from};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    executor: Executor,
    gateway: Gateway,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Executor {
    endpoint: String,
    threads: Option<usize>,
    ratio: f64,
    names: Vec<String>,
    #[serde(with = "humantime_serde")]
    lease: Duration,
}

impl Default for Executor {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:1".to_owned(),
            threads: None,
            ratio: 0.5,
            names: vec![],
            lease: Duration::from_millis(1500),
        }
    }
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Gateway {
    api_key: String,
    port: u16,
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file
}

fn load(
    path: Option<&Path>,
    env: &[(&str, &str)],
    flags: &[(&str, serde_json::Value)],
) -> Result<Loaded<Config>, ConfigError> {
    load_from(
        path,
        env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        &flags
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect::<Vec<_>>(),
    )
}

fn origin<'a>(loaded: &'a Loaded<Config>, key: &str) -> &'a deltagate_mesh::config::Origin {
    loaded
        .origins
        .iter()
        .find(|o| o.key == key)
        .unwrap_or_else(|| panic!("{key} in {:?}", loaded.origins))
}

#[test]
fn later_sources_win_and_each_key_knows_its_origin() {
    let toml =
        file("[executor]\nendpoint = \"http://file\"\nratio = 0.25\nlease = \"2s\"\n[gateway]\nport = 1\n");
    let loaded = load(
        Some(toml.path()),
        &[
            ("DELTAGATE_EXECUTOR__RATIO", "0.75"),
            ("DELTAGATE_EXECUTOR__NAMES", "[a,b]"),
            ("DELTAGATE_GATEWAY__PORT", "2"),
            ("DELTAGATE_EXECUTOR__THREADS", ""),
            ("DELTAGATE_CONFIG", "/some/file"),
            ("UNRELATED", "x"),
        ],
        &[("gateway.port", json!(3)), ("executor.threads", json!(4))],
    )
    .unwrap();
    let value = &loaded.value;
    assert_eq!(value.executor.endpoint, "http://file");
    assert_eq!((value.executor.ratio, value.executor.threads), (0.75, Some(4)));
    assert_eq!(value.executor.names, ["a", "b"]);
    assert_eq!(
        (value.executor.lease, value.gateway.port),
        (Duration::from_secs(2), 3)
    );
    assert!(
        origin(&loaded, "executor.endpoint")
            .origin
            .ends_with(toml.path().file_name().unwrap().to_str().unwrap())
    );
    assert_eq!(
        origin(&loaded, "executor.ratio").origin,
        "environment variable DELTAGATE_EXECUTOR__RATIO"
    );
    assert_eq!(origin(&loaded, "executor.ratio").value, json!(0.75));
    assert_eq!(origin(&loaded, "gateway.port").origin, "flag for gateway.port");
    assert_eq!(origin(&loaded, "gateway.port").value, json!(3));
    assert_eq!(origin(&loaded, "gateway.api_key").origin, "default");
}

#[test]
fn secrets_are_redacted() {
    let loaded = load(None, &[("DELTAGATE_GATEWAY__API_KEY", "hunter2")], &[]).unwrap();
    assert_eq!(loaded.value.gateway.api_key, "hunter2");
    assert_eq!(origin(&loaded, "gateway.api_key").value, json!("<redacted>"));
    assert!(!format!("{:?}", loaded.origins).contains("hunter2"));
}

#[test]
fn an_unknown_key_is_refused_with_its_source() {
    let toml = file("[executor]\npolicy_addrr = \"x\"\n");
    let Err(ConfigError::UnknownKey { key, origin, .. }) = load(Some(toml.path()), &[], &[]) else {
        panic!()
    };
    assert_eq!(key, "executor.policy_addrr");
    assert!(origin.ends_with(".toml"), "{origin}");

    let Err(ConfigError::UnknownKey { key, origin, .. }) =
        load(None, &[("DELTAGATE_EXECUTOR__THREADZ", "1")], &[])
    else {
        panic!()
    };
    assert_eq!(key, "executor.threadz");
    assert_eq!(origin, "environment variable DELTAGATE_EXECUTOR__THREADZ");

    let Err(ConfigError::UnknownKey { key, origin, .. }) =
        load(None, &[("DELTAGATE_EXECUTOR_THREADS", "1")], &[])
    else {
        panic!()
    };
    assert_eq!(
        (key.as_str(), origin.as_str()),
        (
            "executor_threads",
            "environment variable DELTAGATE_EXECUTOR_THREADS"
        )
    );

    let Err(ConfigError::UnknownKey { key, origin, .. }) = load(None, &[], &[("gateway.prot", json!(1))])
    else {
        panic!()
    };
    assert_eq!(
        (key.as_str(), origin.as_str()),
        ("gateway.prot", "flag for gateway.prot")
    );
}

#[test]
fn a_wrong_value_is_refused_with_its_source() {
    let Err(ConfigError::Invalid { key, origin, .. }) =
        load(None, &[("DELTAGATE_GATEWAY__PORT", "many")], &[])
    else {
        panic!()
    };
    assert_eq!(
        (key.as_str(), origin.as_str()),
        ("gateway.port", "environment variable DELTAGATE_GATEWAY__PORT")
    );
    let broken = file("[executor\n");
    assert!(matches!(
        load(Some(broken.path()), &[], &[]),
        Err(ConfigError::Invalid { .. })
    ));
}

#[test]
fn a_missing_file_is_refused() {
    let missing = Path::new("/nonexistent/deltagate.toml");
    assert!(
        matches!(load(Some(missing), &[], &[]), Err(ConfigError::Unreadable { path, .. }) if path == missing)
    );
}
