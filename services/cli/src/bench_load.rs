//! `bench load`: how fast a model folder becomes a model, and how much memory that takes at its peak.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use deltagate_checkpoint::{Checkpoint, backbone_tensors};
use deltagate_executor::engine::{Dtype, Engine, EngineSettings};
use serde::Serialize;

use crate::{
    args::Precision,
    output::{Failure, Output},
};

/// What to load, and how often.
#[derive(Debug)]
pub(crate) struct LoadBench<'a> {
    pub(crate) model: &'a Path,
    pub(crate) dtype: Precision,
    pub(crate) threads: Option<usize>,
    pub(crate) warm_ups: u32,
    pub(crate) passes: u32,
}

#[derive(Serialize)]
struct Report {
    model: String,
    dtype: &'static str,
    /// Bytes of the weights in the files.
    bytes: u64,
    /// Bytes of the same weights in the compute dtype.
    compute_bytes: u64,
    /// Median over the passes of `bytes` by `load_s`, in 10^9 bytes per second.
    gb_per_s: f64,
    /// Anonymous resident memory of the whole process at the peak of its first pass: mapped files do not count. Later passes say less,
    /// because the allocator keeps what they free. Null where the system does not tell.
    peak_rss_anon_bytes: Option<u64>,
    /// `peak_rss_anon_bytes` by `compute_bytes`.
    peak_ratio: Option<f64>,
    passes: Vec<Pass>,
}

#[derive(Serialize)]
struct Pass {
    /// Config, headers, digests.
    open_s: f64,
    /// All weights onto the device.
    load_s: f64,
    /// Probes and binding.
    bind_s: f64,
    gb_per_s: f64,
}

pub(crate) fn run(bench: &LoadBench<'_>, output: Output) -> Result<ExitCode, Failure> {
    if bench.passes == 0 {
        return Err(Failure::usage("--passes: at least one is needed"));
    }
    let peak = Peak::watch();
    let first = pass(bench)?;
    let peak = peak.stop();
    let mut passes = vec![first];
    for _ in 1..u64::from(bench.warm_ups) + u64::from(bench.passes) {
        passes.push(pass(bench)?);
    }
    passes.drain(..bench.warm_ups as usize);
    let checkpoint = Checkpoint::open(bench.model).map_err(Failure::usage)?;
    let compute_bytes = compute_bytes(&checkpoint, bench.dtype)?;
    let mut rates: Vec<f64> = passes.iter().map(|pass| pass.gb_per_s).collect();
    rates.sort_by(f64::total_cmp);
    let report = Report {
        model: checkpoint.card().name.clone(),
        dtype: dtype(bench.dtype).as_str(),
        bytes: checkpoint.card().weight_bytes,
        compute_bytes,
        gb_per_s: rates[rates.len() / 2],
        peak_rss_anon_bytes: peak,
        peak_ratio: peak.map(|peak| peak as f64 / compute_bytes as f64),
        passes,
    };
    output.print(&report, text)?;
    Ok(ExitCode::SUCCESS)
}

fn pass(bench: &LoadBench<'_>) -> Result<Pass, Failure> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(bench.model).map_err(Failure::usage)?;
    let opened = Instant::now();
    let settings = EngineSettings {
        dtype: dtype(bench.dtype),
        threads: bench.threads,
        ..EngineSettings::default()
    };
    let mut loaded = opened;
    let engine = Engine::load(&checkpoint, &settings, &mut |progress| {
        if progress.done_bytes == progress.total_bytes {
            loaded = Instant::now();
        }
    });
    let engine = engine.map_err(Failure::failed)?;
    let bound = Instant::now();
    drop(engine);
    let load_s = (loaded - opened).as_secs_f64();
    Ok(Pass {
        open_s: (opened - start).as_secs_f64(),
        load_s,
        bind_s: (bound - loaded).as_secs_f64(),
        gb_per_s: checkpoint.card().weight_bytes as f64 / load_s.max(1e-9) / 1e9,
    })
}

const fn dtype(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::Bf16,
    }
}

/// Matrices are in the compute dtype, and everything small is f32. A tied head is counted once.
fn compute_bytes(checkpoint: &Checkpoint, precision: Precision) -> Result<u64, Failure> {
    let config = &checkpoint.card().config;
    let mut tensors: Vec<Vec<usize>> = backbone_tensors(config)
        .into_iter()
        .map(|(_, shape)| shape)
        .collect();
    let head = checkpoint.output_embedding().map_err(Failure::failed)?;
    if let Some(head) = head.filter(|_| !config.tie_word_embeddings) {
        tensors.push(head.shape.to_vec());
    }
    let size = |shape: &[usize]| match (precision, shape.len()) {
        (Precision::Bf16, 2) => 2,
        _ => 4,
    };
    let bytes = tensors
        .iter()
        .map(|shape| shape.iter().product::<usize>() * size(shape));
    Ok(bytes.sum::<usize>() as u64)
}

/// Looks at the memory of this process all the time.
struct Peak {
    highest: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Peak {
    const EVERY: Duration = Duration::from_millis(1);

    fn watch() -> Self {
        let (highest, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (max, end) = (Arc::clone(&highest), Arc::clone(&done));
        let watch = move || {
            while !end.load(Ordering::Relaxed) {
                max.fetch_max(rss_anon().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Self::EVERY);
            }
        };
        let watcher = std::thread::Builder::new()
            .name("deltagate-memory".to_owned())
            .spawn(watch);
        Self {
            highest,
            done,
            watcher: watcher.ok(),
        }
    }

    /// The peak in bytes; none where the system does not tell.
    fn stop(self) -> Option<u64> {
        let last = rss_anon()?;
        self.done.store(true, Ordering::Relaxed);
        self.watcher?.join().ok()?;
        Some(self.highest.load(Ordering::Relaxed).max(last))
    }
}

/// Anonymous resident memory of this process in bytes, as Linux tells it.
fn rss_anon() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn text(report: &Report) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut out = format!(
        "{}: {:.1} MiB in the files, {:.1} MiB in {}\n{:.2} GB/s",
        report.model,
        mib(report.bytes),
        mib(report.compute_bytes),
        report.dtype,
        report.gb_per_s
    );
    if let Some(ratio) = report.peak_ratio {
        out += &format!(", peak memory {ratio:.3} of the weights");
    }
    for pass in &report.passes {
        out += &format!(
            "\n  open {:.3} s  load {:.3} s ({:.2} GB/s)  bind {:.3} s",
            pass.open_s, pass.load_s, pass.gb_per_s, pass.bind_s
        );
    }
    out
}
