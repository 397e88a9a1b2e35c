//! The command line, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use deltagate_decider::SpecialTokens;

use crate::executors::UpModelConfig;

/// Serve decision models on kernels that are proven, named and never silently replaced.
#[derive(Debug, Parser)]
#[command(name = "deltagate", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Cli {
    /// Configuration file (TOML). Values come from defaults < file < environment (DELTAGATE_…) < flags
    #[arg(long, global = true, value_name = "FILE", env = "DELTAGATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration value, such as `executor.kernels.delta_rule=cpu.recurrent`. May be repeated
    #[arg(long = "set", short = 's', global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Print one JSON document instead of text. The shapes are in docs/cli.md
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start every service on free ports, send three decisions, show answers, bound kernels and where the time went
    Demo(DemoArgs),
    /// Start and supervise all services: capability, policy, executors and gateway
    Up(UpArgs),
    /// Run the gateway alone
    Gateway(ServiceArgs),
    /// Run an executor alone
    Executor(ServiceArgs),
    /// Run the capability service alone
    Capability(ServiceArgs),
    /// Run the policy service alone
    Policy(ServiceArgs),
    /// Ask a running gateway for a decision
    Classify(ClassifyArgs),
    /// Show what every executor has really bound
    Caps(CapsArgs),
    /// Say what a model folder is, whether it would load, and why not
    Check(CheckArgs),
    /// Show or check the configuration
    Config(ConfigArgs),
    /// Show the exact sequences that a family makes of a request
    Explain(ExplainArgs),
    /// Run token ids through a model's backbone and print hidden rows
    Forward(ForwardArgs),
    /// Measure a running gateway with one request in flight, keeping every sample; or judge two runs
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Model folder; the embedded model when absent
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Give up when the services are not ready by then
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
    pub(crate) ready_within: std::time::Duration,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Serve on the CPU: the `cpu` policy bundle, by name
    #[arg(long)]
    pub(crate) cpu: bool,
    /// Model folder, and the name to serve it under if not the folder's; the embedded model when absent. May be
    /// repeated: an executor for each, on ports from `executor.listen` on
    #[arg(long = "model", value_name = "[NAME=]DIR")]
    pub(crate) models: Vec<UpModelConfig>,
    /// Run the services as tasks of this process instead of one process each
    #[arg(long)]
    pub(crate) in_process: bool,
    /// Send traces to this OTLP/gRPC endpoint, such as `http://127.0.0.1:4317`
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Exit with 3 and the reasons when the gateway is not ready by then
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) require_ready: Option<std::time::Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// Exit when standard input closes: how a supervisor ends its children
    #[arg(long)]
    pub(crate) lifeline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ClassifyArgs {
    /// The gateway's gRPC endpoint; the configured one when absent
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Model or alias
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// A System-One body (JSON) in a file, or `-` for standard input. Excludes the flags below
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state", "state_json", "choice", "score", "yes_no"])]
    pub(crate) request: Option<PathBuf>,
    /// The state, as text
    #[arg(long, value_name = "TEXT", conflicts_with = "state_json")]
    pub(crate) state: Option<String>,
    /// The state, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) state_json: Option<String>,
    /// Ask for exactly one of the --option values
    #[arg(long, value_name = "QUESTION")]
    pub(crate) choice: Option<String>,
    /// Name of an option, or NAME=DESCRIPTION. May be repeated
    #[arg(long = "option", value_name = "NAME[=DESCRIPTION]", requires = "choice")]
    pub(crate) options: Vec<String>,
    /// Ask for a level of the --level values
    #[arg(long, value_name = "QUESTION")]
    pub(crate) score: Option<String>,
    /// A level, lowest first. May be repeated
    #[arg(long = "level", value_name = "TEXT", requires = "score")]
    pub(crate) levels: Vec<String>,
    /// Ask a yes/no question
    #[arg(long, value_name = "QUESTION")]
    pub(crate) yes_no: Option<String>,
    /// Print events as they arrive
    #[arg(long)]
    pub(crate) stream: bool,
    /// Give up after this time
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub(crate) timeout: std::time::Duration,
}

#[derive(Debug, Args)]
pub(crate) struct CapsArgs {
    /// The capability service; the configured one when absent
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Exit with 3 and the reasons when no executor is ready
    #[arg(long)]
    pub(crate) require_ready: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The model folder
    #[arg(value_name = "MODEL_DIR")]
    pub(crate) model: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What to do with it
    #[command(subcommand)]
    pub(crate) action: ConfigAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Each value with its origin; secrets are redacted
    Show,
    /// Exit with 2 and the source of each fault when something is wrong
    Check,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Decider family, such as `startlux`; needs --tokenizer
    #[arg(
        long,
        value_name = "NAME",
        requires = "tokenizer",
        conflicts_with = "model",
        required_unless_present = "model"
    )]
    pub(crate) family: Option<String>,
    /// A `tokenizer.json`
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Configuration of the family, as `check --json` prints it as `card.family_config`; without it what only a checkpoint
    /// knows is unknown
    #[arg(long, value_name = "FILE", requires = "family")]
    pub(crate) family_config: Option<PathBuf>,
    /// Model folder: family, limits and tokenizer come from it
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// A System-One body (JSON) in a file, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) request: PathBuf,
    /// Longest sequence in tokens; the model's own limit when absent
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<usize>,
    /// What becomes of text that spells a special token: parity, refuse or escape
    #[arg(long, value_name = "CHOICE", default_value_t)]
    pub(crate) special_tokens: SpecialTokens,
}

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Model folder
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// A JSON array of token ids in a file, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: PathBuf,
    /// Full-attention layers see the whole sequence
    #[arg(long)]
    pub(crate) noncausal: bool,
    /// Which rows to print
    #[arg(long, value_enum, default_value_t = Rows::Last)]
    pub(crate) rows: Rows,
    /// dtype of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub(crate) dtype: Precision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rows {
    Last,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    F32,
    Bf16,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub(crate) action: BenchAction,
}

impl BenchArgs {
    /// Whether this process waits without sleeping.
    pub(crate) const fn busy_poll(&self) -> bool {
        matches!(self.action, BenchAction::Run { busy_poll: true, .. })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchAction {
    /// Replay requests with one in flight
    Run {
        /// The gateway's gRPC endpoint; the configured one when absent
        #[arg(long, value_name = "URL")]
        endpoint: Option<String>,
        /// System-One bodies, one JSON document a line
        #[arg(long, value_name = "FILE")]
        tasks: PathBuf,
        /// Untimed passes before the first sample
        #[arg(long, default_value_t = 5)]
        warm_ups: u32,
        /// Timed passes over all tasks
        #[arg(long, default_value_t = 1)]
        passes: u32,
        /// Where to write the evidence: all samples, answers and the fingerprint
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Wait for answers without sleeping: a core for a lower latency
        #[arg(long)]
        busy_poll: bool,
    },
    /// Measure how soon the device is free after a client went away
    Cancel {
        /// The gateway's gRPC endpoint; the configured one when absent
        #[arg(long, value_name = "URL")]
        endpoint: Option<String>,
        /// Two System-One bodies, one JSON document a line: a long one that is given up, and the one after it
        #[arg(long, value_name = "FILE")]
        tasks: PathBuf,
        /// Requests to give up
        #[arg(long, default_value_t = 100)]
        rounds: u32,
        /// Where to write all samples
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Measure tokenising, and the text and JSON work around it, in this process
    Tokenize(BenchTokenizeArgs),
    /// Load a model folder, without serving it: throughput and peak memory
    Load {
        /// Model folder
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// dtype of weights and activations
        #[arg(long, value_enum, default_value_t = Precision::F32)]
        dtype: Precision,
        /// Threads; one a core when absent
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
        /// Untimed passes before the first sample: they bring the files into the page cache
        #[arg(long, default_value_t = 1)]
        warm_ups: u32,
        /// Timed passes
        #[arg(long, default_value_t = 5)]
        passes: u32,
    },
    /// Run the engine alone, without services, and say how long each kernel family took
    Forward(BenchForwardArgs),
    /// Keep or reject a change: compare two evidence files
    Gate {
        /// Evidence of what is there
        #[arg(value_name = "BASELINE")]
        baseline: PathBuf,
        /// Evidence of the change
        #[arg(value_name = "CANDIDATE")]
        candidate: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BenchTokenizeArgs {
    /// Decider family, such as `startlux`; needs --tokenizer
    #[arg(long, value_name = "NAME", requires = "tokenizer", conflicts_with = "model")]
    pub(crate) family: Option<String>,
    /// A `tokenizer.json`
    #[arg(long, value_name = "FILE", conflicts_with = "model", requires = "family")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Model folder; the embedded model when neither this nor --tokenizer is given
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Configuration of the family, as `check --json` prints it as `card.family_config`
    #[arg(long, value_name = "FILE", requires = "family")]
    pub(crate) family_config: Option<PathBuf>,
    /// The `questions` of the request, a JSON object in a file; a choice of three when absent
    #[arg(long, value_name = "FILE")]
    pub(crate) questions: Option<PathBuf>,
    /// The state is text, not a JSON document with the text in it
    #[arg(long)]
    pub(crate) plain_state: bool,
    /// Lengths of all prompts of a request together
    #[arg(long, value_delimiter = ',', default_values_t = [136, 1000, 4000], value_name = "N")]
    pub(crate) tokens: Vec<u64>,
    /// Lengths of the state's text alone, instead of --tokens
    #[arg(long, value_delimiter = ',', value_name = "N", conflicts_with = "tokens")]
    pub(crate) state_tokens: Option<Vec<u64>>,
    /// Timed repetitions of each length
    #[arg(long, default_value_t = 300)]
    pub(crate) repeats: u32,
}

#[derive(Debug, Args)]
pub(crate) struct BenchForwardArgs {
    /// Size of a model with random weights: 0.8b, 2b, 4b, 9b or 27b
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "model",
        required_unless_present = "model"
    )]
    pub(crate) shape: Option<String>,
    /// Model folder
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Where the weights of a shape come from
    #[arg(long, value_enum, default_value_t = LoadFormat::Dummy, conflicts_with = "model")]
    pub(crate) load_format: LoadFormat,
    /// Rows of the embedding table of a shape
    #[arg(long, default_value_t = 4096, value_name = "N", conflicts_with = "model")]
    pub(crate) vocabulary: usize,
    /// dtype of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub(crate) dtype: Precision,
    /// Lengths of the sequences
    #[arg(long, value_delimiter = ',', default_values_t = [136, 1024], value_name = "N")]
    pub(crate) tokens: Vec<usize>,
    /// Threads; one a core when absent
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Untimed passes of each length before the first sample
    #[arg(long, default_value_t = 2)]
    pub(crate) warm_ups: u32,
    /// Timed passes of each length
    #[arg(long, default_value_t = 10)]
    pub(crate) repeats: u32,
    /// Take a sample for each line of standard input, a number of tokens, until it ends; answer each with a line of JSON
    #[arg(long, conflicts_with = "repeats")]
    pub(crate) step: bool,
    /// Where to write all samples
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadFormat {
    /// Random numbers
    Dummy,
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime_serde::re::humantime::parse_duration(text).map_err(|e| e.to_string())
}
