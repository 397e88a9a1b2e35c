//! A folder of the Intern family: an ordinary model whose tokenizer has a token for a decision.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    AttentionMode, Finding, Problem,
    family::{Family, number},
    files,
};

/// Name of the family.
pub(crate) const NAME: &str = "intern";
/// Our own file, for models whose temperature is not known here: the publisher has none.
pub(crate) const CONFIG: &str = "intern_decision.json";
const TOKENIZER: &str = "tokenizer.json";
const MARKER: &str = "<decision>";
/// What the publisher prints beside the weights of each size, by `hidden_size`.
const TEMPERATURES: [(usize, f64); 3] = [(1024, 2.747_760_550_703), (2048, 2.100_509), (2560, 1.992_418)];
/// Longest prompt of the family's own program.
const MAX_TOKENS: u32 = 8_192;

/// Whether the folder's tokenizer has the marker. A tokenizer that cannot be read has none.
pub(crate) fn is_marked(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct Tokenizer {
        added_tokens: Vec<Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        content: String,
    }
    let Ok(bytes) = files::read(dir, TOKENIZER, files::MAX_ASSET_BYTES) else {
        return false;
    };
    let tokenizer = serde_json::from_slice::<Tokenizer>(&bytes);
    tokenizer.is_ok_and(|tokenizer| tokenizer.added_tokens.iter().any(|token| token.content == MARKER))
}

/// The family with its temperature, from the file or by the size of the model.
pub(crate) fn read(dir: &Path, hidden_size: Option<usize>, findings: &mut Vec<Finding>) -> Option<Family> {
    let mut refuse = |file: &str, key: &str, reason: String| {
        findings.push(Finding::of(file, key, Problem::Key { reason }));
    };
    if files::exists(dir, TOKENIZER) && !is_marked(dir) {
        refuse(TOKENIZER, "added_tokens", format!("has no token `{MARKER}`"));
    }
    let (temperature, read) = if files::exists(dir, CONFIG) {
        let (bytes, value) = match files::json(dir, CONFIG) {
            Ok(read) => read,
            Err(finding) => {
                findings.push(finding);
                return None;
            }
        };
        for key in value
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .filter(|key| *key != "temperature")
        {
            refuse(CONFIG, key, "is a key that this version does not know".to_owned());
        }
        let temperature = value.get("temperature").and_then(number).filter(|t| *t > 0.0);
        if temperature.is_none() {
            refuse(
                CONFIG,
                "temperature",
                "is missing or not a finite number above 0".to_owned(),
            );
        }
        (value.get("temperature").cloned(), vec![(CONFIG, bytes)])
    } else {
        let size = hidden_size?;
        let known = TEMPERATURES.iter().find(|(hidden, _)| *hidden == size);
        if known.is_none() {
            let reason = format!(
                "is missing, and the temperature of an Intern model of `hidden_size` {size} is not known: \
                 write it as {{\"temperature\": …}}"
            );
            findings.push(Finding::file(CONFIG, Problem::Key { reason }));
        }
        (known.map(|(_, temperature)| json!(temperature)), Vec::new())
    };
    Some(Family {
        name: NAME,
        tokens: Vec::new(),
        config: json!({"temperature": temperature.unwrap_or(Value::Null)}),
        files: read,
        attention: AttentionMode::Causal,
        release_date: None,
        max_tokens: Some(MAX_TOKENS),
        needs_output_embedding: true,
        side: None,
        decision_head: None,
        joint_head: None,
        needs_tokenizer: true,
        joint_questions: true,
        adapter: None,
    })
}
