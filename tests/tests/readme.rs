//! Every command that README.md shows is run as it stands there, on other ports.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use deltagate_tests::{
    cluster::{Cluster, READY_WITHIN},
    http, model_folder,
    ports::{Ports, url},
    process::{self, Process, Run, eventually},
    tools,
    tree::root,
};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// The commands of the `console` blocks, without their prompt, and those in the text that begin with `deltagate`.
fn commands(readme: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let (mut console, mut code) = (false, false);
    for line in readme.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            (console, code) = (kind == "console", !code);
        } else if console {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push(command.to_owned()),
                None => {
                    let last = commands.last_mut().expect("a block begins with a prompt");
                    last.push('\n');
                    last.push_str(line);
                }
            }
        } else if !code {
            let spans = line.split('`').skip(1).step_by(2);
            commands.extend(
                spans
                    .filter(|span| span.starts_with("deltagate "))
                    .map(str::to_owned),
            );
        }
    }
    commands
}

/// A shell as the reader of README.md has it: `deltagate` and `grpcurl` on the path, and the ports of the mesh where the
/// text has the default ones.
struct Shell {
    ports: Ports,
    path: String,
    folder: String,
}

impl Shell {
    fn new(ports: &Ports, dir: &Path, folder: &Path) -> Self {
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(BINARY, bin.join("deltagate")).unwrap();
        std::os::unix::fs::symlink(tools::program("bin/grpcurl").unwrap(), bin.join("grpcurl")).unwrap();
        Self {
            ports: ports.clone(),
            path: format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
            folder: folder.display().to_string(),
        }
    }

    /// The configuration of the substitute ports, as environment variables.
    fn environment(&self) -> Vec<(String, String)> {
        let flags = self.ports.flags();
        let settings = flags.iter().filter(|flag| *flag != "--set");
        let mut environment: Vec<_> = settings
            .map(|setting| {
                let (key, value) = setting.split_once('=').unwrap();
                let name = format!("DELTAGATE_{}", key.replace('.', "__").to_ascii_uppercase());
                (name, value.to_owned())
            })
            .collect();
        environment.push(("PATH".to_owned(), self.path.clone()));
        environment
    }

    fn text(&self, command: &str) -> String {
        command
            .replace("127.0.0.1:50051", &format!("127.0.0.1:{}", self.ports.gateway))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.ports.http))
            .replace("DIR", &self.folder)
    }

    async fn run(&self, command: &str) -> Run {
        let environment = self.environment();
        let environment: Vec<_> = environment
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let run = process::run("bash", &["-c", &self.text(command)], &environment)
            .await
            .unwrap();
        assert_eq!(run.code, Some(0), "{command}: {run:?}");
        run
    }

    /// Starts it, and waits until it serves these models.
    async fn start(&self, command: &str, log: &Path, models: &[&str]) -> Process {
        // In place of the shell, so that a signal reaches it.
        let script = format!("exec {}", self.text(command));
        let environment = self.environment();
        let assignments = environment.iter().map(|(name, value)| format!("{name}={value}"));
        let arguments: Vec<String> = assignments
            .chain(["bash", "-c", &script].map(str::to_owned))
            .collect();
        let up = Process::start("env", &arguments, log).unwrap();
        let served = eventually(READY_WITHIN, || async {
            let body = http::get(&format!("{}/v1/models", url(self.ports.http)))
                .await?
                .body;
            let data = body["data"].as_array().cloned().unwrap_or_default();
            let names: Vec<_> = data.iter().filter_map(|m| m["id"].as_str()).collect();
            anyhow::ensure!(names == models, "{body}");
            Ok(())
        });
        let served = served.await;
        served.unwrap_or_else(|e| panic!("{command}: {e:#}\n{}", fs::read_to_string(log).unwrap()));
        up
    }
}

async fn ends(mut up: Process) {
    up.signal("TERM").await.unwrap();
    assert_eq!(up.wait(Duration::from_secs(20)).await.unwrap(), Some(0));
}

/// What the answer to a command must look like.
fn judge(command: &str, run: &Run) {
    let shows = |words: &[&str]| {
        for word in words {
            assert!(
                run.out.contains(word),
                "{command} does not show `{word}`: {}",
                run.out
            );
        }
    };
    match command.split_whitespace().take(2).collect::<Vec<_>>()[..] {
        ["curl", "-s"] => {
            let answers = run.json().unwrap()["answers"].clone();
            assert_eq!(answers["team"]["choice"], "billing", "{answers}");
            assert!(answers["severity"]["score"].is_number() && answers["urgent"]["noul"].is_number());
        }
        ["deltagate", "classify"] => shows(&["choice: shipping", "tokens in"]),
        ["deltagate", "caps"] => shows(&[
            "ready",
            "deltagate-mini",
            "delta_rule",
            "cpu.chunked",
            "cpu.recurrent",
        ]),
        ["deltagate", "config"] => shows(&["gateway.grpc_listen", "policy.bundle", "# default"]),
        ["deltagate", "check"] => shows(&["startlux"]),
        ["grpcurl", "-plaintext"] if command.contains(" list") => {
            shows(&["deltagate.v1.ClassifierService", "grpc.health.v1.Health"]);
        }
        ["grpcurl", "-plaintext"] => {
            let answer: Value = run.json().unwrap();
            assert_eq!(answer["answers"][0]["choice"]["choice"], "shipping", "{answer}");
            assert_eq!(answer["model"], "deltagate-mini");
        }
        _ => panic!("README.md shows a command that no test covers: {command}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_readme_does_what_it_says() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    let commands = commands(&readme);

    let cluster = Cluster::new(BINARY).unwrap();
    let folder = cluster.path("my-model");
    model_folder::write_other(&folder).unwrap();
    let shell = Shell::new(&cluster.ports, &cluster.path("."), &folder);
    let mesh = shell
        .start(
            "deltagate up --cpu",
            &cluster.path("mesh.log"),
            &["deltagate-mini"],
        )
        .await;

    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for command in &commands {
        let command = command.as_str();
        // Without what a comment says.
        let bare = command.split("  #").next().unwrap().trim();
        let word = bare.split_whitespace().next().unwrap();
        *seen.entry(word).or_default() += 1;
        if ["cargo", "bash"].contains(&word) {
            assert!(
                ci.contains(bare),
                "{bare} is not run by .ci/run, and this test cannot run it"
            );
        } else if bare == "deltagate up --cpu" {
            // It is the mesh that the others ask.
        } else if bare.starts_with("deltagate up") {
            let models = if bare.contains("one=DIR") {
                &["one", "two"][..]
            } else {
                &["my-model"]
            };
            let other = Shell {
                ports: Ports::free().unwrap(),
                path: shell.path.clone(),
                folder: shell.folder.clone(),
            };
            ends(other.start(command, &cluster.path("other.log"), models).await).await;
        } else {
            judge(bare, &shell.run(command).await);
        }
    }
    ends(mesh).await;
    println!("{seen:?}");
    // The walk found what a reader sees.
    for (word, least) in [
        ("deltagate", 6),
        ("grpcurl", 2),
        ("curl", 1),
        ("cargo", 1),
        ("bash", 1),
    ] {
        assert!(
            seen.get(word).is_some_and(|count| *count >= least),
            "{word}: {seen:?}"
        );
    }
}
