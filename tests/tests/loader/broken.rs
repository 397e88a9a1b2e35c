//! A broken folder is refused with the file and the key or tensor by name, and `check` and the executor say the same.

use std::{path::Path, time::Duration};

use anyhow::ensure;
use deltagate_proto::v1::ExecutorPhase;
use deltagate_tests::{
    calls,
    cluster::{Cluster, Service},
    process::{eventually, run},
};
use futures::StreamExt;

use crate::{
    BINARY,
    damage::{Case, FILES, WEIGHTS},
    folder::Folder,
};

/// How the executor ends when its model does not load.
const LOAD_FAILED: i32 = 78;
const WITHIN: Duration = Duration::from_secs(60);

/// What `check` says, one line a finding, after its JSON was compared with the case.
async fn check(case: &Case, dir: &str) -> Vec<String> {
    let what = case.what;
    let json = run(BINARY, &["check", dir, "--json"], &[]).await.unwrap();
    assert_eq!(json.code, Some(1), "{what}: {json:?}");
    let said = json.json().unwrap();
    assert_eq!(said["would_load"], false, "{what}");
    let findings = said["findings"].as_array().unwrap();
    let named = findings.iter().any(|finding| {
        finding["file"] == case.file
            && finding["key_or_tensor"].as_str().unwrap_or("") == case.key_or_tensor
            && finding["problem"].as_str().unwrap().contains(case.problem)
    });
    assert!(named, "{what}: {said:#}");

    let text = run(BINARY, &["check", dir], &[]).await.unwrap();
    assert_eq!(text.code, Some(1), "{what}: {text:?}");
    let lines: Vec<String> = text
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), findings.len(), "{what}: {text:?}");
    assert!(text.out.ends_with("would NOT load\n"), "{what}: {text:?}");
    lines
}

/// What an executor tells the registry before it ends, and what it wrote.
async fn execute(what: &str, dir: &Path) -> (String, String) {
    let mut cluster = Cluster::new(BINARY).unwrap();
    cluster.set("executor.model", &dir.display().to_string());
    // Long enough for the registry to hear of it on a busy machine.
    cluster.set("executor.drain.grace", "3s");
    cluster.start(Service::Capability).unwrap();
    cluster.start(Service::Executor).unwrap();
    let port = cluster.ports.capability;
    let told = eventually(WITHIN, || async {
        let snapshot = calls::snapshot(port).await?;
        ensure!(
            snapshot.phase() == ExecutorPhase::Failed,
            "{:?}",
            snapshot.reasons
        );
        Ok(snapshot.reasons)
    });
    let (reasons, _) = told
        .await
        .unwrap_or_else(|e| panic!("{what}: {e:#}\n{}", cluster.logs()));
    let code = cluster
        .process(Service::Executor)
        .unwrap()
        .wait(WITHIN)
        .await
        .unwrap();
    assert_eq!(code, Some(LOAD_FAILED), "{what}:\n{}", cluster.logs());
    (reasons.join("\n"), cluster.logs())
}

async fn same_reasons(case: &Case) {
    let what = case.what;
    let dir = (case.write)();
    let lines = check(case, &dir.path().display().to_string()).await;
    let (reasons, log) = execute(what, dir.path()).await;
    assert!(reasons.starts_with("LOAD_FAILED: "), "{what}: {reasons}");
    for line in &lines {
        assert!(
            reasons.contains(line),
            "{what}: the registry does not know `{line}`: {reasons}"
        );
        assert!(
            log.contains(line),
            "{what}: the log does not say `{line}`:\n{log}"
        );
    }
    println!("{what}: {}", lines.join("; "));
}

async fn all(cases: &'static [Case]) {
    futures::stream::iter(cases)
        .for_each_concurrent(4, same_reasons)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_weights_are_refused_alike_by_check_and_executor() {
    all(WEIGHTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_are_refused_alike_by_check_and_executor() {
    all(FILES).await;
}

/// The folder that the cases break is a good one.
#[tokio::test(flavor = "multi_thread")]
async fn the_folder_that_is_broken_would_load_when_it_is_whole() {
    let mut folder = Folder::startlux();
    for shards in [1, 2] {
        folder.shards = shards;
        let dir = folder.write();
        let path = dir.path().display().to_string();
        let said = run(BINARY, &["check", &path, "--json"], &[]).await.unwrap();
        assert_eq!(said.code, Some(0), "{said:?}");
        let said = said.json().unwrap();
        assert_eq!(
            (&said["would_load"], &said["findings"]),
            (&true.into(), &serde_json::json!([]))
        );

        let mut cluster = Cluster::new(BINARY).unwrap();
        cluster.set("executor.model", &path);
        cluster.start(Service::Capability).unwrap();
        cluster.start(Service::Executor).unwrap();
        let port = cluster.ports.capability;
        let loaded = eventually(WITHIN, || async {
            let snapshot = calls::snapshot(port).await?;
            ensure!(snapshot.model.is_some(), "{:?}", snapshot.reasons);
            Ok(snapshot)
        });
        let (snapshot, _) = loaded
            .await
            .unwrap_or_else(|e| panic!("{e:#}\n{}", cluster.logs()));
        assert_eq!(
            snapshot.model.unwrap().digest,
            said["card"]["digest"].as_str().unwrap()
        );
        // Without a terminal, the log tells what a bar would show.
        let log = cluster.logs();
        assert!(
            log.contains("loading weights") && log.contains("weights are loaded"),
            "{log}"
        );
    }
}
