//! The deltagate command.

mod answers;
mod args;
mod bench;
mod bench_dummy;
mod bench_forward;
mod bench_load;
mod bench_tokenize;
mod body;
mod caps;
mod check;
mod classify;
mod config;
mod demo;
mod executors;
mod explain;
mod forward;
mod output;
mod services;
mod up;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use crate::{
    args::{Cli, Command},
    output::{Failure, Output},
};

pub use crate::config::Config;

/// Parses the command line, runs the command, and prints what it gives: text, or one JSON document with `--json`.
///
/// Exit codes: 0 done, 1 failed, 2 wrong use, configuration or input, 3 not ready, and the services' own codes.
pub fn main() -> ExitCode {
    deltagate_mesh::panics::hide_payloads();
    let cli = Cli::parse();
    let output = Output { json: cli.json };
    let sources = config::Sources {
        file: cli.config,
        set: cli.set,
    };
    let done = runtime(&cli.command, &sources)
        .and_then(|runtime| runtime.block_on(run(cli.command, sources, output)));
    match done {
        Ok(code) => code,
        Err(failure) => output.fail(&failure),
    }
}

/// A process that waits for one thing at a time does so on one thread: a hop between threads costs a wake-up, and a call over
/// loopback a third of a millisecond instead of an eighth. Only what runs several services at once has more.
fn runtime(command: &Command, sources: &config::Sources) -> Result<Runtime, Failure> {
    let (threads, busy_poll) = match command {
        Command::Demo(_) | Command::Up(_) => (None, false),
        Command::Gateway(_) => {
            let config = sources.load(&[])?.value.gateway;
            (Some(config.threads), config.busy_poll)
        }
        Command::Executor(_) => (Some(1), sources.load(&[])?.value.executor.busy_poll),
        Command::Bench(args) => (Some(1), args.busy_poll()),
        _ => (Some(1), false),
    };
    let mut builder = match threads {
        Some(0 | 1) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Some(threads @ 2..) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build().map_err(Failure::failed)?;
    if busy_poll {
        // A task that always yields: the reactor looks for events between two turns and never sleeps.
        runtime.spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
    }
    Ok(runtime)
}

async fn run(command: Command, sources: config::Sources, output: Output) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo(args) => demo::run(args, &sources, output).await,
        Command::Up(args) => up::run(args, &sources, output).await,
        Command::Gateway(args) => services::run(services::Service::Gateway, args, &sources).await,
        Command::Executor(args) => services::run(services::Service::Executor, args, &sources).await,
        Command::Capability(args) => services::run(services::Service::Capability, args, &sources).await,
        Command::Policy(args) => services::run(services::Service::Policy, args, &sources).await,
        Command::Classify(args) => classify::run(args, &sources, output).await,
        Command::Caps(args) => caps::run(args, &sources, output).await,
        Command::Check(args) => check::run(&args, output),
        Command::Config(args) => config::run(&args, &sources, output),
        Command::Explain(args) => explain::run(&args, output),
        Command::Forward(args) => forward::run(&args, output),
        Command::Bench(args) => bench::run(args, &sources, output).await,
    }
}
