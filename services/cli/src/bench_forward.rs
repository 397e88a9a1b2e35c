//! `bench forward`: the engine alone, without services, with every sample and the time of every kernel family.

use std::{
    io::{BufRead, Write},
    ops::ControlFlow,
    process::ExitCode,
    time::Instant,
};

use deltagate_checkpoint::Checkpoint;
use deltagate_executor::engine::{
    Dtype, Engine, EngineError, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection,
    SegmentDone, SequencePlan, TensorSource,
};
use serde::Serialize;

use crate::{
    args::{BenchForwardArgs, Precision},
    bench_dummy::{self, Dummy},
    output::{Failure, Output},
};

#[derive(Serialize)]
struct Report {
    model: String,
    load_format: &'static str,
    parameters: u64,
    dtype: &'static str,
    threads: usize,
    device: Device,
    bindings: Vec<Binding>,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Device {
    kind: String,
    name: String,
    compute_capability: String,
}

#[derive(Serialize)]
struct Binding {
    family: String,
    backend: String,
    version: String,
    source_digest: String,
}

/// Samples of one length.
#[derive(Serialize)]
struct Run {
    tokens: usize,
    median_ms: Option<f64>,
    min_ms: Option<f64>,
    samples_ms: Vec<f64>,
    families: Vec<Family>,
}

/// What one family did, sample by sample.
#[derive(Serialize)]
struct Family {
    family: String,
    backend: String,
    launches: u64,
    busy_ms: Vec<f64>,
}

/// Lets every segment pass.
struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

pub(crate) fn run(args: &BenchForwardArgs, output: Output) -> Result<ExitCode, Failure> {
    let dtype = match args.dtype {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::Bf16,
    };
    let settings = EngineSettings {
        dtype,
        threads: args.threads,
        ..EngineSettings::default()
    };
    let (model, load_format, parameters, mut engine, vocabulary) = match (&args.shape, &args.model) {
        (Some(shape), _) => {
            let config = bench_dummy::config(shape, args.vocabulary).ok_or_else(|| {
                Failure::usage(format!("no shape `{shape}`: {}", bench_dummy::names().join(", ")))
            })?;
            let parameters = bench_dummy::parameters(&config);
            fits(parameters, dtype)?;
            let source = Dummy::new(config);
            let engine = load(&source, &settings)?;
            (shape.clone(), "dummy", parameters, engine, args.vocabulary)
        }
        (None, Some(folder)) => {
            let checkpoint = Checkpoint::open(folder).map_err(Failure::usage)?;
            let card = checkpoint.card();
            let engine = load(&checkpoint, &settings)?;
            (
                card.name.clone(),
                "safetensors",
                card.parameters,
                engine,
                card.config.vocab_size,
            )
        }
        (None, None) => return Err(Failure::usage("either --shape or --model is needed")),
    };
    engine.is_bound().map_err(Failure::not_ready)?;
    let mut runs: Vec<Run> = args.tokens.iter().map(|tokens| Run::new(*tokens)).collect();
    for run in &mut runs {
        for _ in 0..args.warm_ups {
            measure(&mut engine, run.tokens, vocabulary)?;
        }
    }
    if args.step {
        step(&mut engine, vocabulary, &mut runs)?;
    } else {
        // Turn by turn, so that what disturbs the machine for a while does not disturb one length only.
        for _ in 0..args.repeats {
            for run in &mut runs {
                run.add(measure(&mut engine, run.tokens, vocabulary)?);
            }
        }
    }
    runs.iter_mut().for_each(Run::finish);
    let identity = engine.device();
    let report = Report {
        model,
        load_format,
        parameters,
        dtype: dtype.as_str(),
        threads: args
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)),
        device: Device {
            kind: identity.kind,
            name: identity.name,
            compute_capability: identity.compute_capability,
        },
        bindings: bindings(&engine),
        runs,
    };
    if let Some(out) = &args.out {
        let text = serde_json::to_vec_pretty(&report).map_err(Failure::failed)?;
        std::fs::write(out, text)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", out.display())))?;
    }
    if !args.step {
        output.print(&report, text_of)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(source: &dyn TensorSource, settings: &EngineSettings) -> Result<Engine, Failure> {
    Engine::from_source(source, settings, &mut |_| {}).map_err(Failure::failed)
}

fn bindings(engine: &Engine) -> Vec<Binding> {
    let bindings = engine.report().bindings.iter();
    bindings
        .map(|bound| Binding {
            family: bound.family.to_string(),
            backend: bound.backend.clone(),
            version: bound.version.clone(),
            source_digest: bound.source_digest.clone(),
        })
        .collect()
}

/// Refuses a model that would not fit in the memory that is free now, where the system tells.
fn fits(parameters: u64, dtype: Dtype) -> Result<(), Failure> {
    let bytes = parameters * if dtype == Dtype::F32 { 4 } else { 2 };
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    match available {
        Some(kib) if kib * 1024 < bytes / 4 * 5 => Err(Failure::usage(format!(
            "the weights take {bytes} bytes, and {} are free",
            kib * 1024
        ))),
        _ => Ok(()),
    }
}

/// A sample: milliseconds, and per family its backend, launches and milliseconds.
struct Sample {
    ms: f64,
    families: Vec<(String, String, u64, f64)>,
}

fn measure(engine: &mut Engine, tokens: usize, vocabulary: usize) -> Result<Sample, Failure> {
    let plan = ForwardPlan {
        sequences: vec![SequencePlan {
            token_ids: (0..tokens)
                .map(|i| (i * 7919 % vocabulary.max(1)) as u32)
                .collect(),
            rows: RowSelection::Last,
            projection: Projection::Hidden,
        }],
        noncausal_full_attention: false,
    };
    let start = Instant::now();
    let done = engine.forward(&plan, &mut Unwatched);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let done = done.map_err(|error| match error {
        EngineError::InvalidPlan { .. } => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    let families = done.kernels.into_iter().map(|span| {
        let busy = span.busy.as_secs_f64() * 1e3;
        (
            span.family.to_string(),
            span.backend.to_string(),
            span.launches,
            busy,
        )
    });
    Ok(Sample {
        ms,
        families: families.collect(),
    })
}

/// A sample for each line of standard input, which is a number of tokens; answers a line of JSON each, after one that says it is
/// ready. Another program can so take turns with this one.
fn step(engine: &mut Engine, vocabulary: usize, runs: &mut Vec<Run>) -> Result<(), Failure> {
    let mut answers = std::io::stdout().lock();
    let mut answer = |value: serde_json::Value| {
        writeln!(answers, "{value}")
            .and_then(|()| answers.flush())
            .map_err(Failure::failed)
    };
    answer(serde_json::json!({"ready": true}))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Failure::failed)?;
        let tokens: usize = line
            .trim()
            .parse()
            .map_err(|_| Failure::usage("a line of standard input is not a number of tokens"))?;
        let sample = measure(engine, tokens, vocabulary)?;
        answer(serde_json::json!({"tokens": tokens, "ms": sample.ms}))?;
        match runs.iter_mut().find(|run| run.tokens == tokens) {
            Some(run) => run.add(sample),
            None => {
                let mut run = Run::new(tokens);
                run.add(sample);
                runs.push(run);
            }
        }
    }
    Ok(())
}

impl Run {
    const fn new(tokens: usize) -> Self {
        Self {
            tokens,
            median_ms: None,
            min_ms: None,
            samples_ms: Vec::new(),
            families: Vec::new(),
        }
    }

    fn add(&mut self, sample: Sample) {
        self.samples_ms.push(sample.ms);
        for (family, backend, launches, busy) in sample.families {
            match self.families.iter_mut().find(|known| known.family == family) {
                Some(known) => known.busy_ms.push(busy),
                None => self.families.push(Family {
                    family,
                    backend,
                    launches,
                    busy_ms: vec![busy],
                }),
            }
        }
    }

    fn finish(&mut self) {
        self.median_ms = median(&self.samples_ms);
        self.min_ms = self.samples_ms.iter().copied().min_by(f64::total_cmp);
    }
}

/// The middle sample, or the mean of the two in the middle.
fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[sorted.len() / 2 - 1], upper)
    } else {
        upper
    })
}

fn text_of(report: &Report) -> String {
    let mut out = format!(
        "{} ({}), {} parameters, {}, {} threads on {} ({})",
        report.model,
        report.load_format,
        report.parameters,
        report.dtype,
        report.threads,
        report.device.name,
        report.device.compute_capability
    );
    for run in &report.runs {
        let (Some(middle), Some(best)) = (run.median_ms, run.min_ms) else {
            continue;
        };
        out += &format!(
            "\n{} tokens: median {middle:.2} ms, best {best:.2} ms, {} samples",
            run.tokens,
            run.samples_ms.len()
        );
        for family in &run.families {
            let busy = median(&family.busy_ms).unwrap_or(0.0);
            out += &format!("\n  {:<12} {:<16} {busy:9.2} ms", family.family, family.backend);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn what_no_machine_holds_is_refused() {
        assert!(fits(1 << 60, Dtype::Bf16).is_err());
        assert!(fits(1, Dtype::F32).is_ok());
    }
}
