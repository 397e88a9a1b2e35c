//! Open-Jev: one prompt per candidate, which asks whether it is the correct answer; a linear head on the last hidden row
//! gives the candidate's logit.
//!
//! * [`config`] reads `open_jev_export.json`.
//! * [`prompt`] turns questions into text.
//! * [`decider`] runs the candidates.
//! * [`answer`] turns logits into answers.

pub mod answer;
pub mod config;
pub mod decider;
pub mod prompt;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::config::Config;
use self::decider::{OpenJevDecider, Questions};
use crate::systemone::Rules;
use crate::{
    Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, FamilyError, Served,
    Shown,
};

/// Its id.
pub const ID: &str = "open_jev";

/// Tokens of the chat format. A tokenizer without them would spell them out, and every answer would silently be wrong.
const SPECIAL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// The family, set up for one model.
#[derive(Clone, Debug)]
pub struct OpenJev {
    config: Arc<Config>,
}

impl OpenJev {
    /// From the content of the model's `open_jev_export.json`.
    pub fn new(config: &Value) -> Result<Self, FamilyError> {
        Ok(OpenJev {
            config: Arc::new(Config::from_json(config)?),
        })
    }

    /// Of no model in particular: see [`super::family_defaults`]. It has no decision head, so that it renders prompts and
    /// refuses to answer.
    pub fn without_model() -> Self {
        OpenJev {
            config: Arc::new(Config::default()),
        }
    }

    /// No prompt is longer than the export allows, nor than the model takes.
    fn bounded(&self, cx: &FamilyContext) -> FamilyContext {
        FamilyContext {
            max_tokens: cx.max_tokens.min(self.config.max_length),
            ..cx.clone()
        }
    }
}

impl Family for OpenJev {
    fn id(&self) -> &'static str {
        ID
    }

    /// Each special token that the chat wrapping spells is one token.
    fn check(&self, cx: &FamilyContext) -> Result<(), FamilyError> {
        let wrapping = [&self.config.chat_prefix, &self.config.chat_suffix];
        for special in SPECIAL {
            if !wrapping.iter().any(|text| text.contains(special)) {
                continue;
            }
            cx.one_token(special, special)?;
        }
        Ok(())
    }

    fn systemone_rules(&self) -> Rules {
        Rules {
            only_noul_sides: true,
            ..Rules::default()
        }
    }

    fn shows(&self) -> Shown {
        Shown::Questions
    }

    fn start(&self, request: &DecisionRequest, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        Ok(Box::new(OpenJevDecider::new(
            self.config.clone(),
            request,
            self.bounded(cx),
        )?))
    }

    /// One sequence per candidate, with `option`: the name of a choice's option or the number of a score's level; one
    /// without it for a noul. `spans` holds `truncated_tokens` if the state was cut.
    fn explain(
        &self,
        request: &DecisionRequest,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let (questions, cx) = (Questions::new(request)?, self.bounded(cx));
        let mut explained = Vec::new();
        for candidate in questions.candidates() {
            let encoded = questions.encode(candidate, &self.config, &cx)?;
            let option = questions.option(candidate);
            explained.push(encoded.explain(questions.id(candidate), option, Map::new()));
        }
        Ok(explained)
    }

    /// The contract under the name of the base model, and `metadata` about how it was answered.
    fn own_response(&self, served: &Served<'_>) -> Value {
        let mut body = served.contract();
        let candidates: usize = served
            .request
            .questions
            .iter()
            .map(decider::candidate_count)
            .sum();
        body["model"] = self.config.model_id.clone().into();
        body["metadata"] = json!({
            "method": "native_merged_lora_decision_head",
            "temperature": self.config.temperature,
            "candidate_sequences": candidates,
            "inference_seconds": served.latency.as_secs_f64(),
            "base_revision": self.config.base_revision,
            "max_length": self.config.max_length,
            "prefix_cache": {"enabled": false, "mode": "independent_candidates"},
        });
        body
    }
}
