//! Real processes: the command that was just compiled, started as a user would, on free ports.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};

/// The four services, each on a port of its own.
#[derive(Clone, Debug)]
pub struct Ports {
    /// gRPC of the gateway.
    pub gateway: u16,
    /// HTTP of the gateway.
    pub http: u16,
    /// The capability service.
    pub capability: u16,
    /// The policy service.
    pub policy: u16,
    /// The executor.
    pub executor: u16,
}

impl Ports {
    /// Ports that were free a moment ago.
    pub fn free() -> anyhow::Result<Self> {
        let listeners: Vec<_> =
            (0..5).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().context("no free port")?;
        let mut ports = listeners.iter().map(|l| l.local_addr().map(|a| a.port()));
        let mut next = || ports.next().context("too few ports")?.context("no address");
        Ok(Self { gateway: next()?, http: next()?, capability: next()?, policy: next()?, executor: next()? })
    }

    /// The `--set` flags that put every service there.
    pub fn flags(&self) -> Vec<String> {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        [
            ("gateway.grpc_listen", at(self.gateway)),
            ("gateway.http_listen", at(self.http)),
            ("gateway.capability", url(self.capability)),
            ("gateway.policy", url(self.policy)),
            ("capability.listen", at(self.capability)),
            ("policy.listen", at(self.policy)),
            ("policy.capability", url(self.capability)),
            ("executor.listen", at(self.executor)),
            ("executor.capability", url(self.capability)),
            ("executor.policy", url(self.policy)),
        ]
        .into_iter()
        .flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")])
        .collect()
    }

    /// Base URL of the HTTP face.
    pub fn http_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Endpoint of the gateway's gRPC face.
    pub fn grpc_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.gateway)
    }
}

/// The command under test, in the same profile as the tests.
pub fn command(binary: &str) -> Command {
    let mut command = Command::new(PathBuf::from(binary));
    command.kill_on_drop(true).stdin(Stdio::null()).env_remove("DELTAGATE_CONFIG");
    command
}

/// One running process of the mesh.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts the command with these arguments; its log goes to `log`.
    pub fn start(binary: &str, arguments: &[String], log: &std::path::Path) -> anyhow::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = command(binary).args(arguments).stdout(file.try_clone()?).stderr(file).spawn()?;
        Ok(Self { child })
    }

    /// Process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL, as `kill -9` does.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM.
    pub async fn terminate(&self) -> anyhow::Result<()> {
        let id = self.child.id().context("it is gone")?;
        signal("TERM", id).await
    }

    /// Waits for its end, at most so long, and gives its exit code.
    pub async fn wait(&mut self, within: Duration) -> anyhow::Result<Option<i32>> {
        Ok(tokio::time::timeout(within, self.child.wait()).await.context("it still runs")??.code())
    }
}

/// Sends a signal by name.
pub async fn signal(name: &str, id: u32) -> anyhow::Result<()> {
    let status = Command::new("kill").args([format!("-{name}"), id.to_string()]).status().await?;
    ensure!(status.success(), "kill -{name} {id} failed");
    Ok(())
}

/// An HTTP answer: status and JSON body.
pub type HttpAnswer = (u16, serde_json::Value);

/// GET, on a thread of its own.
pub async fn get(url: String) -> anyhow::Result<HttpAnswer> {
    blocking(move |agent| {
        let mut response = agent.get(&url).call()?;
        let body = response.body_mut().read_to_string()?;
        Ok((response.status().as_u16(), serde_json::from_str(&body).unwrap_or(serde_json::Value::String(body))))
    })
    .await
}

/// POST of a JSON document, on a thread of its own.
pub async fn post(url: String, body: String) -> anyhow::Result<HttpAnswer> {
    blocking(move |agent| {
        let mut response = agent.post(&url).header("content-type", "application/json").send(body)?;
        let body = response.body_mut().read_to_string()?;
        Ok((response.status().as_u16(), serde_json::from_str(&body).unwrap_or(serde_json::Value::String(body))))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce(ureq::Agent) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(30)))
        .build();
    tokio::task::spawn_blocking(move || work(config.into())).await?
}

/// Asks again every 50 ms until `check` gives a value, at most so long; then the last reason why not.
pub async fn eventually<T, F, R>(within: Duration, mut check: F) -> anyhow::Result<(T, Duration)>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<T>>,
{
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return Ok((value, start.elapsed())),
            Err(error) if start.elapsed() > within => bail!("not within {within:?}: {error:#}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
