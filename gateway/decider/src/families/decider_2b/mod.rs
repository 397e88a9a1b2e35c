//! Mapika Decider-2B v11: prompts without a chat format. Each choice and yes/no question is a row; a score is a yes/no row for each
//! level, which is judged without its number and its neighbours. All rows of a request follow the same context.
//!
//! * [`config`] reads `decider_config.json`.
//! * [`labels`] are the names of options, one token each.
//! * [`prompt`] turns questions into rows, and rows into fragments. Each fragment is encoded by itself: encoding a whole prompt at once
//!   gives other tokens.
//!
//! Where it differs from the publisher's own program: logits are f32, where there they are BF16; softmax is in f64; answers are not
//! rounded ([`crate::Family::own_response`] rounds); a context that is too long is refused, and cut as there only if the request allows
//! it; if no level fits at all, all are equally likely. Its other modes, asked for by `independent` and `isolated`, are refused.

pub mod config;
pub mod labels;
pub mod prompt;

mod answer;
mod decider;
mod encoded;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::config::Config;
use self::decider::Decider2bDecider;
use self::encoded::Encoded;
use self::prompt::Fragment;
use crate::systemone::{LevelKeys, Rules};
use crate::{
    Criteria, Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError,
    Limits, Served, Shown,
};

/// Its id.
pub const ID: &str = "decider_2b";

/// Most tokens of a row with its context, whatever the model allows.
pub const MAX_TOKENS: usize = 36_864;
/// Most tokens of all rows, the context counted with each.
pub const MAX_REQUEST_TOKENS: usize = 1 << 20;

/// Limits on the shape of a request.
pub fn limits() -> Limits {
    Limits {
        max_options: labels::LABELS.len(),
        ..Limits::default()
    }
}

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct Decider2b {
    config: Arc<Config>,
}

impl Decider2b {
    /// From the model's `decider_config.json`.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        Ok(Decider2b {
            config: Arc::new(Config::from_json(config)?),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`].
    pub fn without_model() -> Self {
        Decider2b {
            config: Arc::new(Config::default()),
        }
    }
}

impl Family for Decider2b {
    fn id(&self) -> &'static str {
        ID
    }

    fn shows(&self) -> Shown {
        Shown::Questions
    }

    /// Each label is one token, all different.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        labels::check(cx)
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            limits: limits(),
            listed_options: 2..=labels::LABELS.len(),
            level_keys: LevelKeys::Sorted,
            only_true: &["independent", "isolated"],
            ..Rules::default()
        }
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(Decider2bDecider::new(&self.config, request, cx)?))
    }

    /// One sequence per row, with `option`, the number of the level, for each row of a score. `spans` holds `context`, the token range
    /// that all rows share, and `labels` (`{"A": option, ...}`). If the state was cut, it holds `truncated_tokens`, and `text` shows the
    /// whole state: its tokens are cut, not its text.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let encoded = Encoded::new(&self.config, request, cx)?;
        let mut explained = Vec::new();
        for (row, own) in &encoded.rows {
            let question = request.questions.get(row.question);
            let names: Vec<&str> = match question.map(|question| &question.criteria) {
                Some(Criteria::Choice(options)) => {
                    options.iter().map(|option| option.name.as_str()).collect()
                }
                _ => vec!["no", "yes"],
            };
            let named = labels::LABELS.iter().zip(names);
            let named: Map<String, Value> = named
                .map(|(label, name)| ((*label).to_owned(), name.into()))
                .collect();
            let mut spans = Map::new();
            spans.insert("context".into(), json!([0, encoded.context.len()]));
            spans.insert("labels".into(), named.into());
            if encoded.truncated > 0 {
                spans.insert("truncated_tokens".into(), json!(encoded.truncated));
            }
            let mut text = encoded.context_text.clone();
            for fragment in prompt::fragments(row) {
                match fragment {
                    Fragment::Text(part) => text.push_str(&part),
                    Fragment::Label(label) => {
                        text.push_str(labels::LABELS.get(label).copied().unwrap_or_default())
                    }
                }
            }
            let ids: Vec<u32> = encoded.context.iter().chain(own).copied().collect();
            explained.push(ExplainedSequence {
                question: question.map(|question| question.id.clone()).unwrap_or_default(),
                option: row.level.map(|level| level.to_string()),
                text,
                read: vec![ids.len().saturating_sub(1)],
                ids,
                spans,
            });
        }
        Ok(explained)
    }

    /// Rounded answers with `x_p_max`, `certainty`, `level_fit` and `fit_mass`, under the name of the version.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let mut body = served.contract();
        body["model"] = format!("decider-{}", self.config.version).into();
        for (id, answer) in &served.answers.answers {
            body["answers"][id.as_str()] = answer::own(answer);
        }
        body
    }
}
