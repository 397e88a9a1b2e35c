//! Ports for the services of one cluster.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::bail;

/// The listeners of a cluster, each on a port of its own.
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
    /// The executor. The three ports after it are free, too.
    pub executor: u16,
}

/// Ports of one cluster: its services, and three for executors that `up` starts beside the first.
const BLOCK: u32 = 8;
/// The first port that is handed out.
const FIRST: u32 = 10_240;
/// Blocks below 32768, where the ephemeral ports begin: an outgoing connection of anybody must not take the port of
/// a service that was killed and is about to come back.
const BLOCKS: u32 = (32_768 - FIRST) / BLOCK;

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Ports {
    /// A block of free ports. Tests that run at the same time are different processes and begin at different blocks.
    pub fn free() -> anyhow::Result<Self> {
        for _ in 0..64 {
            let block = (std::process::id() * 7 + NEXT.fetch_add(1, Ordering::Relaxed) * 1009) % BLOCKS;
            let first = FIRST + block * BLOCK;
            let ports: Vec<u16> = (first..first + BLOCK)
                .filter_map(|p| u16::try_from(p).ok())
                .collect();
            let free: Result<Vec<_>, _> = ports
                .iter()
                .map(|p| TcpListener::bind(("127.0.0.1", *p)))
                .collect();
            if let (true, &[gateway, http, capability, policy, executor, ..]) = (free.is_ok(), &ports[..]) {
                return Ok(Self {
                    gateway,
                    http,
                    capability,
                    policy,
                    executor,
                });
            }
        }
        bail!("no eight free ports in a row")
    }

    /// The `--set` flags that put every service there.
    pub fn flags(&self) -> Vec<String> {
        let at = |port: u16| format!("127.0.0.1:{port}");
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
}

/// `http://` and a port of this machine.
pub fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
