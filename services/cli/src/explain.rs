//! `explain`: the exact sequences that a family makes of a request.

use std::{ops::Range, path::Path, process::ExitCode, sync::Arc};

use deltagate_checkpoint::Checkpoint;
use deltagate_decider::{ExplainedSequence, Family, FamilyContext, Projection, Step};
use deltagate_gateway::HfTokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    args::ExplainArgs,
    body,
    output::{Failure, Output},
};

/// Longest sequence when neither the model nor the command says so.
const MAX_TOKENS: usize = 262_144;

/// Stands for what only a checkpoint knows.
const UNKNOWN: &str = "unknown";

#[derive(Serialize)]
struct Explanation {
    family: String,
    /// Whether the questions share a prompt.
    joint: bool,
    /// The family's configuration of this model: temperatures, codes and the like.
    config: Value,
    /// Whether full-attention layers see the whole sequence.
    noncausal_full_attention: Value,
    /// Tokens that all sequences begin with: they travel once.
    prefix_tokens: Value,
    sequences: Vec<Explained>,
}

#[derive(Serialize)]
struct Explained {
    question: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    option: Option<String>,
    text: String,
    ids: Vec<u32>,
    read: Vec<usize>,
    /// What is computed from each row that is read.
    readout: Value,
    spans: Map<String, Value>,
}

impl From<ExplainedSequence> for Explained {
    fn from(s: ExplainedSequence) -> Self {
        Self {
            question: s.question,
            option: s.option,
            text: s.text,
            ids: s.ids,
            read: s.read,
            readout: UNKNOWN.into(),
            spans: s.spans,
        }
    }
}

pub(crate) fn run(args: &ExplainArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.model.is_none() && args.tokenizer.is_none() {
        return Err(Failure::usage(
            "either --model, or --family with --tokenizer, is needed",
        ));
    }
    let Subject {
        family,
        tokenizer,
        max_tokens: model_limit,
        config,
    } = subject(
        args.model.as_deref(),
        args.family.as_deref(),
        args.tokenizer.as_deref(),
        args.family_config.as_deref(),
    )?;
    let request = body::parse_by(&body::read(&args.request)?, &family.systemone_rules())?;
    let max_tokens = args.max_length.unwrap_or(model_limit);
    let context = FamilyContext {
        tokenizer: Arc::new(tokenizer),
        max_tokens,
    };
    let refused = |e: &dyn std::fmt::Display| Failure::usage(format!("request: {e}"));
    let treated = args
        .special_tokens
        .treat(&request.request, family.as_ref(), &context)
        .map_err(|e| refused(&e))?;
    let explained = treated
        .explain(family.as_ref(), &context)
        .map_err(|e| refused(&e))?;
    let mut explanation = Explanation {
        family: family.id().to_owned(),
        joint: family.joint(),
        config: config.map_or_else(|| UNKNOWN.into(), shortened),
        noncausal_full_attention: UNKNOWN.into(),
        prefix_tokens: UNKNOWN.into(),
        sequences: explained.into_iter().map(Explained::from).collect(),
    };
    // A family that needs a head to answer renders prompts without one, and makes no plan.
    let first = treated
        .start(family.as_ref(), &context)
        .and_then(|mut decider| decider.step(None));
    if let Ok(Step::Run(plan)) = first {
        explanation.noncausal_full_attention = plan.noncausal_full_attention.into();
        explanation.prefix_tokens = plan.prefix.len().into();
        // The first plan holds the first sequences.
        for (sequence, planned) in explanation.sequences.iter_mut().zip(&plan.sequences) {
            sequence.readout = readout(&planned.projection);
        }
    }
    output.print(&explanation, text)?;
    Ok(ExitCode::SUCCESS)
}

fn readout(projection: &Projection) -> Value {
    match projection {
        Projection::Hidden => "hidden".into(),
        Projection::OutputEmbedding(rows) => json!({"output_embedding": rows}),
        Projection::DecisionHead(rows) => json!({"decision_head": rows}),
        Projection::JointHead(questions) => {
            let questions: Vec<Value> = questions
                .iter()
                .map(|question| {
                    let range = |span: &Range<u32>| json!([span.start, span.end]);
                    let options: Vec<Value> = question.options.iter().map(range).collect();
                    json!({"kind": question.kind, "span": range(&question.span), "options": options})
                })
                .collect();
            json!({"joint_head": questions})
        }
    }
}

/// A configuration with its long lists told by their length.
fn shortened(config: Value) -> Value {
    match config {
        Value::Array(items) if items.len() > 32 => format!("{} items", items.len()).into(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, shortened(value)))
            .collect(),
        other => other,
    }
}

/// What is explained, or measured.
pub(crate) struct Subject {
    pub(crate) family: Arc<dyn Family>,
    pub(crate) tokenizer: HfTokenizer,
    /// Longest sequence.
    pub(crate) max_tokens: usize,
    /// The family's configuration, if a model has one.
    pub(crate) config: Option<Value>,
}

/// That of a model folder, or of a name and a file (with a configuration of the family or without one), or of the embedded model.
pub(crate) fn subject(
    model: Option<&Path>,
    family: Option<&str>,
    file: Option<&Path>,
    config: Option<&Path>,
) -> Result<Subject, Failure> {
    match (model, family, file) {
        (Some(dir), _, _) => of_model(&Checkpoint::open(dir).map_err(Failure::usage)?),
        (None, Some(name), Some(file)) => {
            let config = config.map(body::read).transpose()?;
            let config: Option<Value> = config
                .map(|bytes| serde_json::from_slice(&bytes))
                .transpose()
                .map_err(|error| Failure::usage(format!("--family-config: {error}")))?;
            let family = match &config {
                None => deltagate_decider::family_defaults(name),
                Some(config) => deltagate_decider::family(name, config),
            };
            Ok(Subject {
                family: family.map_err(Failure::usage)?,
                tokenizer: tokenizer(&body::read(file)?)?,
                max_tokens: MAX_TOKENS,
                config,
            })
        }
        (None, None, None) => of_model(&Checkpoint::embedded().map_err(Failure::usage)?),
        _ => Err(Failure::usage("--family and --tokenizer go together")),
    }
}

fn of_model(checkpoint: &Checkpoint) -> Result<Subject, Failure> {
    let dir = checkpoint.dir();
    let card = checkpoint.card();
    let name = card.family.as_deref().ok_or_else(|| {
        Failure::usage(format!(
            "{} has no decider family: it is a backbone only",
            dir.display()
        ))
    })?;
    let family = deltagate_decider::family(name, &card.family_config).map_err(Failure::usage)?;
    let asset = card
        .assets
        .iter()
        .find(|a| a.name == "tokenizer.json")
        .and_then(|a| checkpoint.asset_path(&a.sha256))
        .ok_or_else(|| Failure::usage(format!("{} has no tokenizer.json", dir.display())))?;
    Ok(Subject {
        family,
        tokenizer: tokenizer(&body::read(&asset)?)?,
        max_tokens: card.max_tokens as usize,
        config: Some(card.family_config.clone()),
    })
}

fn tokenizer(bytes: &[u8]) -> Result<HfTokenizer, Failure> {
    HfTokenizer::from_bytes(bytes).map_err(|e| Failure::usage(format!("tokenizer: {e}")))
}

fn text(explanation: &Explanation) -> String {
    let mut out = format!(
        "family {}, config {}\nquestions {}, full attention {}, shared prefix {} tokens\n",
        explanation.family,
        explanation.config,
        if explanation.joint {
            "in one prompt"
        } else {
            "each alone"
        },
        match explanation.noncausal_full_attention {
            Value::Bool(true) => "noncausal",
            Value::Bool(false) => "causal",
            _ => UNKNOWN,
        },
        explanation.prefix_tokens,
    );
    for s in &explanation.sequences {
        let option = s
            .option
            .as_ref()
            .map_or_else(String::new, |o| format!(", option {o}"));
        out += &format!(
            "\n--- question {}{option}: {} tokens, read at {:?}, readout {}\n{}\n",
            s.question,
            s.ids.len(),
            s.read,
            s.readout,
            s.text
        );
    }
    out
}
