//! A mesh of real processes on free ports, in a folder of its own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use deltagate_proto::v1::{CapabilitySnapshot, ExecutorPhase};
use tempfile::TempDir;

use crate::{
    calls, http,
    ports::{Ports, url},
    process::{Process, eventually},
};

/// Longest time from the start of the processes until the mesh is ready: a debug build, probes, two busy cores.
pub const READY_WITHIN: Duration = Duration::from_secs(60);

/// A service of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// The registry.
    Capability,
    /// Decisions and permits.
    Policy,
    /// The device.
    Executor,
    /// The front door.
    Gateway,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Capability, Self::Policy, Self::Executor, Self::Gateway];

    /// Name of its subcommand.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capability => "capability",
            Self::Policy => "policy",
            Self::Executor => "executor",
            Self::Gateway => "gateway",
        }
    }

    /// Its gRPC service, which is also its health entry.
    pub const fn entry(self) -> &'static str {
        match self {
            Self::Capability => "deltagate.v1.CapabilityService",
            Self::Policy => "deltagate.v1.PolicyService",
            Self::Executor => "deltagate.v1.ExecutorService",
            Self::Gateway => "deltagate.v1.ClassifierService",
        }
    }

    /// Its gRPC port.
    pub const fn port(self, ports: &Ports) -> u16 {
        match self {
            Self::Capability => ports.capability,
            Self::Policy => ports.policy,
            Self::Executor => ports.executor,
            Self::Gateway => ports.gateway,
        }
    }
}

/// A cluster. Its processes are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// Where the services listen.
    pub ports: Ports,
    binary: String,
    flags: Vec<String>,
    processes: BTreeMap<Service, Process>,
    dir: TempDir,
}

impl Cluster {
    /// A cluster of this command; nothing runs yet.
    pub fn new(binary: &str) -> anyhow::Result<Self> {
        let ports = Ports::free()?;
        let flags = ports.flags();
        let dir = tempfile::Builder::new().prefix("deltagate-test-").tempdir()?;
        Ok(Self {
            ports,
            binary: binary.to_owned(),
            flags,
            processes: BTreeMap::new(),
            dir,
        })
    }

    /// Adds `--set key=value` to every command from now on.
    pub fn set(&mut self, key: &str, value: &str) {
        self.flags.extend(["--set".to_owned(), format!("{key}={value}")]);
    }

    /// Adds `--config` to every command from now on.
    pub fn config(&mut self, file: &Path) {
        self.flags
            .extend(["--config".to_owned(), file.display().to_string()]);
    }

    /// A path in the folder of this cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The flags that every command of this cluster gets.
    pub fn flags(&self) -> &[String] {
        &self.flags
    }

    /// Starts one service as a process of its own.
    pub fn start(&mut self, service: Service) -> anyhow::Result<()> {
        let mut arguments = vec![service.name().to_owned()];
        arguments.extend(self.flags.iter().cloned());
        let process = Process::start(
            &self.binary,
            &arguments,
            &self.path(&format!("{}.log", service.name())),
        )?;
        self.processes.insert(service, process);
        Ok(())
    }

    /// Starts one more executor, with these settings of its own, which at least say where it listens. It is the
    /// caller's to keep; its log is `label`'s.
    pub fn one_more_executor(&self, label: &str, settings: &[(&str, &str)]) -> anyhow::Result<Process> {
        let mut arguments = vec!["executor".to_owned()];
        arguments.extend(self.flags.iter().cloned());
        for (key, value) in settings {
            arguments.extend(["--set".to_owned(), format!("executor.{key}={value}")]);
        }
        Process::start(&self.binary, &arguments, &self.path(&format!("{label}.log")))
    }

    /// Starts every service as a process of its own, under the policy bundle `cpu`.
    pub fn start_all(&mut self) -> anyhow::Result<()> {
        self.set("policy.bundle", "cpu");
        Service::ALL
            .into_iter()
            .try_for_each(|service| self.start(service))
    }

    /// Starts `up` with these arguments.
    pub fn up(&self, arguments: &[&str]) -> anyhow::Result<Process> {
        let mut all = vec!["up".to_owned()];
        all.extend(arguments.iter().map(|a| (*a).to_owned()));
        all.extend(self.flags.iter().cloned());
        Process::start(&self.binary, &all, &self.path("up.log"))
    }

    /// The process of a service that was started by itself.
    pub fn process(&mut self, service: Service) -> anyhow::Result<&mut Process> {
        self.processes
            .get_mut(&service)
            .with_context(|| format!("{} was not started", service.name()))
    }

    /// Everything that the processes wrote so far.
    pub fn logs(&self) -> String {
        let entries = fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        let logs = entries
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "log"));
        logs.map(|p| {
            format!(
                "--- {}\n{}",
                p.display(),
                fs::read_to_string(&p).unwrap_or_default()
            )
        })
        .collect()
    }

    /// Waits until the gateway serves, and says why it does not, with the end of the logs, if it never does.
    pub async fn ready(&self) -> anyhow::Result<Duration> {
        let url = format!("{}/health", url(self.ports.http));
        let waited = eventually(READY_WITHIN, || async {
            let health = http::get(&url).await?;
            ensure!(
                health.status == 200,
                "GET /health: {} {}",
                health.status,
                health.body
            );
            ensure!(
                calls::serving(self.ports.gateway, "").await?,
                "health says NOT_SERVING"
            );
            Ok(())
        });
        match waited.await {
            Ok(((), took)) => Ok(took),
            Err(error) => {
                let logs = self.logs();
                let from = logs.len().saturating_sub(6_000);
                let tail = logs.get(from..).unwrap_or(&logs);
                Err(error.context(format!(
                    "the mesh did not become ready; the end of its logs:\n{tail}"
                )))
            }
        }
    }

    /// Waits until the executor is READY in the registry, with this backend, and gives its snapshot.
    pub async fn ready_executor(&self, within: Duration) -> anyhow::Result<CapabilitySnapshot> {
        let (snapshot, _) = eventually(within, || async {
            let snapshot = calls::snapshot(self.ports.capability).await?;
            ensure!(
                snapshot.phase() == ExecutorPhase::Ready,
                "{:?}: {:?}",
                snapshot.phase(),
                snapshot.reasons
            );
            Ok(snapshot)
        })
        .await?;
        Ok(snapshot)
    }
}
