//! Children are restarted, drained through their stdin, and none outlives the supervisor.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use deltagate_mesh::supervise::{ChildSpec, SuperviseError, SuperviseOptions, Supervisor};
use tokio_util::sync::CancellationToken;

fn shell(name: &str, script: &str) -> ChildSpec {
    ChildSpec {
        name: name.to_owned(),
        args: vec!["-c".into(), script.into()],
        env: vec![],
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(10), "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_dead_child_is_back_quickly_and_shutdown_drains_through_stdin() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("drained");
    // `cat` ends when its stdin does: the child sees the drain, and nothing before it.
    let script = format!("cat >/dev/null; echo drained > {}", mark.display());
    let supervisor = Supervisor::start(
        "/bin/sh".into(),
        vec![shell("svc", &script)],
        SuperviseOptions::default(),
    );
    until("started", || supervisor.status("svc").unwrap().pid.is_some()).await;
    let first = supervisor.status("svc").unwrap().pid.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(alive(first) && !mark.exists(), "the lifeline must stay open");

    let killed = Instant::now();
    assert!(
        Command::new("kill")
            .args(["-9", &first.to_string()])
            .status()
            .unwrap()
            .success()
    );
    until("restarted", || {
        supervisor
            .status("svc")
            .unwrap()
            .pid
            .is_some_and(|pid| pid != first)
    })
    .await;
    assert!(
        killed.elapsed() < Duration::from_millis(600),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(supervisor.status("svc").unwrap().restarts, 1);

    let second = supervisor.status("svc").unwrap().pid.unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    supervisor.run(shutdown).await.unwrap();
    assert!(mark.exists() && !alive(second));
}

#[tokio::test]
async fn a_child_that_ignores_the_drain_is_killed() {
    let options = SuperviseOptions {
        drain: Duration::from_millis(100),
        ..Default::default()
    };
    let supervisor = Supervisor::start("/bin/sh".into(), vec![shell("deaf", "exec sleep 600")], options);
    until("started", || supervisor.status("deaf").unwrap().pid.is_some()).await;
    let pid = supervisor.status("deaf").unwrap().pid.unwrap();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    supervisor.run(shutdown).await.unwrap();
    assert!(!alive(pid));
}

#[tokio::test]
async fn restarts_slow_down_and_a_configuration_error_ends_the_whole_set() {
    let options = SuperviseOptions {
        first_restart: Duration::from_millis(50),
        slowest_restart: Duration::from_millis(200),
        ..Default::default()
    };
    let supervisor = Supervisor::start("/bin/sh".into(), vec![shell("flaky", "exit 1")], options);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let restarts = supervisor.status("flaky").unwrap().restarts;
    assert!((4..=12).contains(&restarts), "{restarts}");
    drop(supervisor);

    let set = vec![shell("good", "cat >/dev/null"), shell("bad", "exit 78")];
    let supervisor = Supervisor::start("/bin/sh".into(), set, SuperviseOptions::default());
    let outcome =
        tokio::time::timeout(Duration::from_secs(5), supervisor.run(CancellationToken::new())).await;
    assert!(matches!(outcome.unwrap(), Err(SuperviseError::Fatal { name, code: 78 }) if name == "bad"));
}

#[tokio::test]
async fn the_last_child_ends_first_and_the_others_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("order");
    let child = |name: &str, takes: &str| {
        shell(
            name,
            &format!("cat >/dev/null; sleep {takes}; echo {name} >> {}", log.display()),
        )
    };
    let set = vec![child("back", "0"), child("middle", "0"), child("front", "0.3")];
    let supervisor = Supervisor::start("/bin/sh".into(), set, SuperviseOptions::default());
    until("started", || {
        ["back", "middle", "front"]
            .iter()
            .all(|name| supervisor.status(name).unwrap().pid.is_some())
    })
    .await;
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    supervisor.run(shutdown).await.unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "front\nmiddle\nback\n");
}

#[tokio::test]
async fn a_missing_program_is_an_error() {
    let supervisor = Supervisor::start(
        "/nonexistent".into(),
        vec![shell("x", "")],
        SuperviseOptions::default(),
    );
    assert!(matches!(
        supervisor.run(CancellationToken::new()).await,
        Err(SuperviseError::Spawn { name, .. }) if name == "x"
    ));
}

/// Not a test: the child of the next one.
#[tokio::test]
#[ignore = "runs as a child process of another test"]
async fn lifeline_child() {
    let parent_gone = deltagate_mesh::lifeline::watch();
    println!("watching");
    parent_gone.cancelled().await;
    println!("parent gone");
}

#[test]
fn a_child_notices_that_its_parent_is_gone() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifeline_child", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        child.try_wait().unwrap().is_none(),
        "it must wait while the pipe is open"
    );
    drop(child.stdin.take());
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(
        child.wait().unwrap().success() && output.contains("parent gone"),
        "{output}"
    );
}
