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
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output.fail(&Failure::failed(error)),
    };
    match runtime.block_on(run(cli, output)) {
        Ok(code) => code,
        Err(failure) => output.fail(&failure),
    }
}

async fn run(cli: Cli, output: Output) -> Result<ExitCode, Failure> {
    let sources = config::Sources {
        file: cli.config,
        set: cli.set,
    };
    match cli.command {
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
