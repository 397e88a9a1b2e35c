//! Bundles: the shipped ones pass their own cases, a broken one never becomes active, a good one is picked up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;

use std::{fs, path::Path, time::Duration};

use deltagate_mesh::ServiceError;
use deltagate_policy::{Bundle, BundleError, BundleEvaluator, BundleSource, PolicyConfig};
use deltagate_proto::v1::PolicyServiceWatchRequest;
use fixture::{Mesh, snapshot, until};
use tonic::Code;

fn shipped(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/policies")
        .join(name)
}

/// A copy of the shipped cpu bundle to break.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(shipped("cpu")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

fn load(dir: &Path) -> Result<Bundle, BundleError> {
    Bundle::load(&BundleSource::Folder(dir.to_owned()))
}

fn edit(dir: &Path, file: &str, from: &str, to: &str) {
    let path = dir.join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(&path, text.replace(from, to)).unwrap();
}

#[test]
fn the_shipped_bundles_pass_and_are_the_same_from_the_binary_and_from_the_folder() {
    for (source, name) in [(BundleSource::Cpu, "cpu"), (BundleSource::Gpu, "gpu")] {
        let embedded = Bundle::load(&source).unwrap();
        let folder = load(&shipped(name)).unwrap();
        assert_eq!(embedded.revision(), folder.revision());
        assert_eq!((embedded.name(), embedded.wire().modules.len()), (name, 2));
        BundleEvaluator::verified(embedded.wire()).unwrap();
    }
}

#[test]
fn a_rule_that_lets_too_much_through_fails_the_cases() {
    let dir = copy();
    edit(
        dir.path(),
        "readiness.rego",
        "cpu_backend(backend) if backend == \"cpu\"",
        "cpu_backend(backend) if backend != \"\"",
    );
    let error = load(dir.path()).unwrap_err();
    assert!(
        matches!(&error, BundleError::CaseFailed { case, .. } if case == "the reference never serves"),
        "{error}"
    );

    let dir = copy();
    edit(
        dir.path(),
        "readiness.rego",
        "input.age_ms < input.lease_ms",
        "true",
    );
    assert!(
        matches!(load(dir.path()).unwrap_err(), BundleError::CaseFailed { case, .. } if case == "age equals lease")
    );

    let dir = copy();
    edit(dir.path(), "request.rego", "n <= most", "n <= most + 1");
    assert!(matches!(
        load(dir.path()).unwrap_err(),
        BundleError::CaseFailed { .. }
    ));

    let dir = copy();
    edit(dir.path(), "request.rego", "decision :=", "verdict :=");
    assert!(matches!(load(dir.path()).unwrap_err(), BundleError::Rego(_)));
}

#[test]
fn a_bundle_without_modules_cases_or_sense_is_refused() {
    let dir = copy();
    fs::remove_file(dir.path().join("request_test.json")).unwrap();
    assert!(matches!(
        load(dir.path()).unwrap_err(),
        BundleError::NoCases("request")
    ));

    let dir = copy();
    fs::write(dir.path().join("data.json"), "[1]").unwrap();
    assert!(matches!(load(dir.path()).unwrap_err(), BundleError::Data(_)));

    let dir = copy();
    edit(dir.path(), "request_test.json", "\"rule\"", "\"rules\"");
    assert!(matches!(
        load(dir.path()).unwrap_err(),
        BundleError::CaseFile { .. }
    ));

    let dir = copy();
    fs::write(dir.path().join("huge.rego"), "#".repeat(2 << 20)).unwrap();
    assert!(matches!(load(dir.path()).unwrap_err(), BundleError::TooLarge(_)));

    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(load(empty.path()).unwrap_err(), BundleError::NoModules));
    assert!(matches!(
        load(&empty.path().join("nothing")).unwrap_err(),
        BundleError::Unreadable { .. }
    ));
}

#[test]
fn the_revision_follows_the_content() {
    let dir = copy();
    let before = load(dir.path()).unwrap();
    fs::write(dir.path().join("README.md"), "not part of it").unwrap();
    assert_eq!(load(dir.path()).unwrap().revision(), before.revision());
    edit(dir.path(), "data.json", "\"questions\": 64", "\"questions\":  64");
    assert_ne!(load(dir.path()).unwrap().revision(), before.revision());
}

#[tokio::test]
async fn a_broken_bundle_keeps_the_service_closed_until_it_is_mended() {
    let dir = copy();
    let good = fs::read_to_string(dir.path().join("readiness.rego")).unwrap();
    fs::write(
        dir.path().join("readiness.rego"),
        "package deltagate.readiness\nallow if",
    )
    .unwrap();
    let mut mesh = Mesh::start(dir.path().to_str().unwrap()).await;
    mesh.report(snapshot("e", 1)).await;
    for name in ["", "deltagate.v1.PolicyService"] {
        assert_eq!(mesh.health(name).await, 2, "{name:?} must be NOT_SERVING");
    }
    let answer = mesh.decide("e", "f00d").await;
    assert!(!answer.allowed && answer.bundle_revision.is_empty());
    assert_eq!(answer.reasons, ["no policy bundle is active"]);
    let status = mesh
        .policy()
        .watch(PolicyServiceWatchRequest {
            gateway_id: "gw".to_owned(),
        })
        .await
        .unwrap_err();
    let error = ServiceError::from(status);
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "BUNDLE_NOT_LOADED")
    );

    fs::write(dir.path().join("readiness.rego"), good).unwrap();
    mesh.report(snapshot("e", 1)).await;
    mesh.settle("e", "f00d", |a| a.allowed).await;
    assert_eq!(mesh.health("").await, 1);
}

#[tokio::test]
async fn a_bad_new_bundle_keeps_the_old_and_a_good_one_is_pushed() {
    let dir = copy();
    let config = PolicyConfig {
        bundle: dir.path().to_str().unwrap().to_owned(),
        reload_every: Duration::from_millis(100),
        ..Default::default()
    };
    let mut mesh = Mesh::with(config).await;
    mesh.report(snapshot("e", 1)).await;
    let old = mesh.settle("e", "f00d", |a| a.allowed).await.bundle_revision;
    let mut updates = mesh.watch("gw").await;
    assert_eq!(
        updates.message().await.unwrap().unwrap().bundle.unwrap().revision,
        old
    );

    // Half of an edit: the cases fail.
    edit(dir.path(), "data.json", "\"questions\": 64", "\"questions\": 8");
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        mesh.beat("e").await;
    }
    let answer = mesh.decide("e", "f00d").await;
    assert!(answer.allowed && answer.bundle_revision == old, "{answer:?}");
    assert_eq!(mesh.health("").await, 1);

    // The other half: the cases agree with the new limit.
    edit(
        dir.path(),
        "request_test.json",
        "\"questions\": 64, \"kinds\": {\"choice\": 62}",
        "\"questions\": 8, \"kinds\": {\"choice\": 6}",
    );
    edit(
        dir.path(),
        "request_test.json",
        "\"questions\": 65, \"kinds\": {\"choice\": 63}",
        "\"questions\": 9, \"kinds\": {\"choice\": 7}",
    );
    let update = until(&mut updates, |u| u.bundle.is_some()).await;
    let bundle = update.bundle.unwrap();
    assert_ne!(bundle.revision, old);
    assert!(bundle.data_json.contains("\"questions\": 8"));
    mesh.report(snapshot("e", 1)).await;
    assert!(mesh.settle("e", "f00d", |a| a.allowed).await.bundle_revision == bundle.revision);
}
