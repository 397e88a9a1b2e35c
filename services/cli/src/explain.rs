//! `explain`: the exact sequences that a family makes of a request.

use std::{path::Path, process::ExitCode, sync::Arc};

use deltagate_checkpoint::Checkpoint;
use deltagate_decider::{ExplainedSequence, Family, FamilyContext};
use deltagate_gateway::HfTokenizer;
use serde::Serialize;

use crate::{
    args::ExplainArgs,
    body,
    output::{Failure, Output},
};

/// Longest sequence when neither the model nor the command says so.
const MAX_TOKENS: usize = 262_144;

#[derive(Serialize)]
struct Explanation {
    family: String,
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
    spans: serde_json::Map<String, serde_json::Value>,
}

impl From<ExplainedSequence> for Explained {
    fn from(s: ExplainedSequence) -> Self {
        Self {
            question: s.question,
            option: s.option,
            text: s.text,
            ids: s.ids,
            read: s.read,
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
    let (family, tokenizer, model_limit) = family_and_tokenizer(
        args.model.as_deref(),
        args.family.as_deref(),
        args.tokenizer.as_deref(),
    )?;
    let request = body::parse_by(&body::read(&args.request)?, &family.systemone_rules())?;
    let max_tokens = args.max_length.unwrap_or(model_limit);
    let context = FamilyContext {
        tokenizer: Arc::new(tokenizer),
        max_tokens,
    };
    let refused = |e: &dyn std::fmt::Display| Failure::usage(format!("request: {e}"));
    let sequences = args
        .special_tokens
        .treat(&request.request, family.as_ref(), &context)
        .map_err(|e| refused(&e))?
        .explain(family.as_ref(), &context)
        .map_err(|e| refused(&e))?
        .into_iter()
        .map(Explained::from)
        .collect();
    output.print(
        &Explanation {
            family: family.id().to_owned(),
            sequences,
        },
        text,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Those of a model folder, or of a name and a file, or of the embedded model; and the longest sequence.
pub(crate) fn family_and_tokenizer(
    model: Option<&Path>,
    family: Option<&str>,
    file: Option<&Path>,
) -> Result<(Arc<dyn Family>, HfTokenizer, usize), Failure> {
    match (model, family, file) {
        (Some(dir), _, _) => of_model(&Checkpoint::open(dir).map_err(Failure::usage)?),
        (None, Some(name), Some(file)) => {
            let family = deltagate_decider::family_defaults(name).map_err(Failure::usage)?;
            Ok((family, tokenizer(&body::read(file)?)?, MAX_TOKENS))
        }
        (None, None, None) => of_model(&Checkpoint::embedded().map_err(Failure::usage)?),
        _ => Err(Failure::usage("--family and --tokenizer go together")),
    }
}

fn of_model(checkpoint: &Checkpoint) -> Result<(Arc<dyn Family>, HfTokenizer, usize), Failure> {
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
    Ok((family, tokenizer(&body::read(&asset)?)?, card.max_tokens as usize))
}

fn tokenizer(bytes: &[u8]) -> Result<HfTokenizer, Failure> {
    HfTokenizer::from_bytes(bytes).map_err(|e| Failure::usage(format!("tokenizer: {e}")))
}

fn text(explanation: &Explanation) -> String {
    let mut out = format!("family {}\n", explanation.family);
    for s in &explanation.sequences {
        let option = s
            .option
            .as_ref()
            .map_or_else(String::new, |o| format!(", option {o}"));
        out += &format!(
            "\n--- question {}{option}: {} tokens, read at {:?}\n{}\n",
            s.question,
            s.ids.len(),
            s.read,
            s.text
        );
    }
    out
}
