//! `bench tokenize`: what a request's text costs before and after the device, part by part, in this process.

use std::{
    ops::Range,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_decider::{
    Family, FamilyContext, Plan, PlannedSequence, Projection, RowSelection, SequenceOutput, Step,
    TokenizeError, Tokenizer, systemone,
};
use deltagate_evidence::Percentiles;
use deltagate_gateway::HfTokenizer;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::BenchTokenizeArgs,
    body,
    explain::{self, Subject},
    output::{Failure, Output},
};

/// Untimed repetitions of each length.
const WARM_UPS: u32 = 20;

/// Words of ordinary support mail, so that the tokenizer meets what it will meet.
const WORDS: [&str; 24] = [
    "the", "customer", "was", "charged", "twice", "for", "order", "4411", "and", "asks", "when", "a",
    "refund", "will", "arrive", "on", "their", "account", "because", "support", "has", "not", "answered",
    "yet",
];

#[derive(Serialize)]
struct Report {
    family: String,
    lengths: Vec<Length>,
}

/// Microseconds of one prompt length. All samples are kept.
#[derive(Serialize)]
struct Length {
    /// Of all prompts together.
    tokens: u64,
    /// Of the state's text alone.
    state_tokens: u64,
    body_bytes: usize,
    /// From the body to the last plan, and from the outputs to the body of the answer.
    prepare_and_finish_us: Option<Percentiles>,
    /// Requests that one thread can prepare and finish in a second.
    per_second: f64,
    tokenize_us: Option<Percentiles>,
    text_and_json_us: Option<Percentiles>,
    /// Median of text and JSON over median of tokenising.
    ratio: f64,
    samples_tokenize_us: Vec<f64>,
    samples_text_and_json_us: Vec<f64>,
}

pub(crate) fn run(args: &BenchTokenizeArgs, output: Output) -> Result<ExitCode, Failure> {
    let Subject {
        family, tokenizer, ..
    } = explain::subject(
        args.model.as_deref(),
        args.family.as_deref(),
        args.tokenizer.as_deref(),
        args.family_config.as_deref(),
    )?;
    let questions = match &args.questions {
        None => questions(),
        Some(file) => serde_json::from_slice(&body::read(file)?).map_err(Failure::usage)?,
    };
    let timed = Arc::new(Timed {
        inner: tokenizer,
        nanos: AtomicU64::new(0),
    });
    let context = FamilyContext {
        tokenizer: Arc::clone(&timed) as Arc<dyn Tokenizer>,
        max_tokens: usize::MAX,
    };
    let bench = Bench {
        family,
        timed,
        context,
        questions,
        plain_state: args.plain_state,
    };
    let (wanted, of_state) = match &args.state_tokens {
        Some(tokens) => (tokens, true),
        None => (&args.tokens, false),
    };
    let lengths = wanted
        .iter()
        .map(|tokens| bench.length(*tokens, of_state, args.repeats))
        .collect::<Result<Vec<_>, _>>()?;
    let report = Report {
        family: bench.family.id().to_owned(),
        lengths,
    };
    output.print(&report, text)?;
    Ok(ExitCode::SUCCESS)
}

/// A tokenizer that counts its time.
struct Timed {
    inner: HfTokenizer,
    nanos: AtomicU64,
}

impl Timed {
    fn take(&self) -> Duration {
        Duration::from_nanos(self.nanos.swap(0, Ordering::Relaxed))
    }
}

impl Tokenizer for Timed {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let begun = Instant::now();
        let ids = self.inner.encode(text);
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        ids
    }

    fn added_text(&self, text: &str) -> Vec<Range<usize>> {
        self.inner.added_text(text)
    }
}

struct Bench {
    family: Arc<dyn Family>,
    timed: Arc<Timed>,
    context: FamilyContext,
    questions: Value,
    plain_state: bool,
}

impl Bench {
    /// The longest prompts, or the longest state, of at most `tokens` tokens that whole words give.
    fn length(&self, tokens: u64, of_state: bool, repeats: u32) -> Result<Length, Failure> {
        let (mut fits, mut beyond) = (0, usize::try_from(tokens).map_err(Failure::usage)? + 1);
        while beyond - fits > 1 {
            let words = fits + (beyond - fits) / 2;
            let count = if of_state {
                self.state_tokens(words)?
            } else {
                self.once(&self.request(words))?.tokens
            };
            if count > tokens {
                beyond = words;
            } else {
                fits = words;
            }
        }
        let body = self.request(fits);
        let (mut tokenize, mut rest, mut counted) = (Vec::new(), Vec::new(), 0);
        for repeat in 0..WARM_UPS + repeats.max(1) {
            let once = self.once(&body)?;
            counted = once.tokens;
            if repeat >= WARM_UPS {
                tokenize.push(once.tokenize.as_secs_f64() * 1e6);
                rest.push(once.rest.as_secs_f64() * 1e6);
            }
        }
        let (of_tokenize, of_rest) = (Percentiles::of(tokenize.clone()), Percentiles::of(rest.clone()));
        let whole: Vec<f64> = tokenize.iter().zip(&rest).map(|(t, r)| t + r).collect();
        let per_second = whole.len() as f64 * 1e6 / whole.iter().sum::<f64>();
        let ratio = of_tokenize.zip(of_rest).map_or(f64::NAN, |(t, r)| r.p50 / t.p50);
        Ok(Length {
            tokens: counted,
            state_tokens: self.state_tokens(fits)?,
            body_bytes: body.len(),
            prepare_and_finish_us: Percentiles::of(whole),
            per_second,
            tokenize_us: of_tokenize,
            text_and_json_us: of_rest,
            ratio,
            samples_tokenize_us: tokenize,
            samples_text_and_json_us: rest,
        })
    }

    /// A System-One body with a state of so many words.
    fn request(&self, words: usize) -> Vec<u8> {
        let state = match self.plain_state {
            true => json!(state(words)),
            false => json!({"channel": "mail", "ticket": state(words)}),
        };
        json!({"state": state, "questions": self.questions})
            .to_string()
            .into_bytes()
    }

    fn state_tokens(&self, words: usize) -> Result<u64, Failure> {
        let ids = self.timed.encode(&state(words)).map_err(Failure::failed)?;
        Ok(ids.len() as u64)
    }

    /// One request from its body to the body of its answer, without the device.
    fn once(&self, body: &[u8]) -> Result<Once, Failure> {
        self.timed.take();
        let begun = Instant::now();
        let request = body::parse_by(body, &self.family.systemone_rules())?.request;
        let mut decider = self
            .family
            .start(&request, &self.context)
            .map_err(Failure::failed)?;
        let mut step = decider.step(None).map_err(Failure::failed)?;
        let mut spent = begun.elapsed();
        let mut tokens = 0;
        let answers = loop {
            match step {
                Step::Done(answers) => break answers,
                Step::Run(plan) => {
                    tokens += plan.input_tokens();
                    let outputs = made_up(&plan);
                    let begun = Instant::now();
                    step = decider.step(Some(&outputs)).map_err(Failure::failed)?;
                    spent += begun.elapsed();
                }
            }
        };
        let begun = Instant::now();
        let answer = systemone::render_response("bench", &answers, serde_json::Map::new()).to_string();
        spent += begun.elapsed();
        std::hint::black_box(answer);
        let tokenize = self.timed.take();
        Ok(Once {
            tokens,
            tokenize,
            rest: spent.saturating_sub(tokenize),
        })
    }
}

/// What one request cost.
struct Once {
    tokens: u64,
    tokenize: Duration,
    rest: Duration,
}

/// A state of so many words.
fn state(words: usize) -> String {
    let text: Vec<&str> = WORDS.iter().copied().cycle().take(words).collect();
    text.join(" ")
}

/// One choice of three.
fn questions() -> Value {
    json!({"team": {
        "type": "choice",
        "instructions": "Which team should handle this ticket?",
        "criteria": {"billing": "Payments and refunds", "shipping": "Delivery and tracking", "other": null},
    }})
}

/// Outputs of the right shape; what they say does not matter.
fn made_up(plan: &Plan) -> Vec<SequenceOutput> {
    let rows = |sequence: &PlannedSequence| match &sequence.read {
        _ if matches!(sequence.projection, Projection::JointHead(_)) => 1,
        RowSelection::Last => 1,
        RowSelection::Positions(positions) => positions.len(),
        RowSelection::All => usize::try_from(plan.length(sequence)).unwrap_or(usize::MAX),
    };
    let values = |sequence: &PlannedSequence| match &sequence.projection {
        Projection::Hidden => vec![0.5; 1024],
        logits => (0u16..).map(f32::from).take(logits.width(0)).collect(),
    };
    plan.sequences
        .iter()
        .map(|sequence| SequenceOutput {
            rows: vec![values(sequence); rows(sequence)],
        })
        .collect()
}

fn text(report: &Report) -> String {
    let mut out = format!(
        "family {}, microseconds:\n{:>8} {:>8} {:>14} {:>14} {:>16} {:>16} {:>7} {:>12} {:>9}\n",
        report.family,
        "state",
        "tokens",
        "tokenize p50",
        "tokenize p99",
        "text+JSON p50",
        "text+JSON p99",
        "ratio",
        "together p50",
        "/second"
    );
    for length in &report.lengths {
        let p = |of: &Option<Percentiles>| of.map_or((f64::NAN, f64::NAN), |p| (p.p50, p.p99));
        let (tokenize, rest) = (p(&length.tokenize_us), p(&length.text_and_json_us));
        out += &format!(
            "{:>8} {:>8} {:>14.1} {:>14.1} {:>16.1} {:>16.1} {:>7.3} {:>12.1} {:>9.0}\n",
            length.state_tokens,
            length.tokens,
            tokenize.0,
            tokenize.1,
            rest.0,
            rest.1,
            length.ratio,
            p(&length.prepare_and_finish_us).0,
            length.per_second
        );
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_body_is_a_request_of_the_family() {
        let body = json!({"state": state(50), "questions": questions()}).to_string();
        let parsed = body::parse(body.as_bytes()).unwrap().request;
        assert_eq!(parsed.questions.len(), 1);
    }

    #[test]
    fn made_up_outputs_have_the_shape_of_the_plan() {
        let sequence = |read, projection| PlannedSequence {
            token_ids: vec![1, 2, 3],
            read,
            projection,
        };
        let plan = Plan {
            prefix: Vec::new(),
            sequences: vec![
                sequence(RowSelection::Last, Projection::OutputEmbedding(vec![7, 8])),
                sequence(RowSelection::All, Projection::OutputEmbedding(vec![7])),
            ],
            noncausal_full_attention: false,
        };
        let outputs = made_up(&plan);
        assert_eq!(outputs[0].rows, [[0.0, 1.0]]);
        assert_eq!(outputs[1].rows.len(), 3);
    }
}
