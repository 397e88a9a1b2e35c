//! One module per decider family.
//!
//! # How to add one
//!
//! A family is a folder `families/<id>/`, after the pattern of [`startlux`]:
//!
//! * `config.rs`: its part of the model folder's decision config, read from JSON and checked key by key. What the file
//!   does not say is refused, or has a default that the family's publisher documents.
//! * `prompt.rs`: request -> text. Pure functions over [`crate::DecisionRequest`], no tokens. Golden prompts test it.
//! * `decider.rs`: text -> token ids -> [`crate::Plan`], outputs -> next plan or answers. Everything that belongs to one
//!   step goes into one plan. Refuse what is too long here, naming both numbers.
//! * `answer.rs`: logits -> [`crate::Answer`], where that is more than [`crate::Answer::unrounded`] on a softmax.
//! * `mod.rs`: the [`crate::Family`] itself, the load-time check of the tokenizer, `explain`, and nothing else.
//!
//! What families share stands beside them: `keys` reads configuration, `encoded` fits a prompt into the model, `passes` sends
//! passes of one row each and checks what comes back, `each` is the decider of families with one prompt and one row per question,
//! `codes` names options, [`crate::FamilyContext`] checks single tokens.
//!
//! More files where the family needs them (`tournament.rs` there, the spans of a joint head in `clef/encode.rs`). Then:
//!
//! 1. add the module below, its id to [`FAMILIES`] and a line to [`family`] and [`family_defaults`];
//! 2. give its HTTP server's habits as [`crate::systemone::Rules`];
//! 3. put vectors made by an independent implementation in `tests/fixtures/<id>/`, and compare in `tests/<id>_vectors.rs`.
//!
//! Traps: the order of options differs between families (yes or no first; sorted or not), so does the JSON
//! [dialect](crate::json::Dialect), the text that stands for a missing value, and the definition of confidence.

pub mod clef;
pub mod cua_s1;
pub mod decider_2b;
pub mod intern;
pub mod open_jev;
pub mod pplx;
pub mod sequence_classification;
pub mod startlux;

pub mod codes;
mod each;
mod encoded;
mod index_annotation;
mod keys;
mod passes;
mod truncate;

use std::sync::Arc;

use serde_json::Value;

use crate::{Family, FamilyError};

/// Ids of all families.
pub const FAMILIES: &[&str] = &[
    startlux::ID,
    intern::ID,
    open_jev::ID,
    pplx::V1,
    pplx::V1_1,
    sequence_classification::ID,
    cua_s1::ID,
    decider_2b::ID,
    clef::ID,
];

/// The family `id` without a model: what its publisher documents for all sizes, and temperature 1. It renders the same
/// prompts, so it is good for [`Family::explain`]; probabilities need a model's own config.
pub fn family_defaults(id: &str) -> Result<Arc<dyn Family>, FamilyError> {
    match id {
        startlux::ID => Ok(Arc::new(startlux::StartLux::without_model())),
        intern::ID => Ok(Arc::new(intern::Intern::without_model())),
        open_jev::ID => Ok(Arc::new(open_jev::OpenJev::without_model())),
        pplx::V1 | pplx::V1_1 => Ok(Arc::new(pplx::Pplx::without_model(id))),
        sequence_classification::ID => Ok(Arc::new(
            sequence_classification::SequenceClassification::without_model(),
        )),
        cua_s1::ID => Ok(Arc::new(cua_s1::CuaS1)),
        decider_2b::ID => Ok(Arc::new(decider_2b::Decider2b::without_model())),
        clef::ID => Ok(Arc::new(clef::Clef::without_model())),
        _ => Err(FamilyError::Unknown { id: id.to_owned() }),
    }
}

/// The family `id` as the model's decision config sets it up.
pub fn family(id: &str, config: &Value) -> Result<Arc<dyn Family>, FamilyError> {
    match id {
        startlux::ID => Ok(Arc::new(startlux::StartLux::new(config)?)),
        intern::ID => Ok(Arc::new(intern::Intern::new(config)?)),
        open_jev::ID => Ok(Arc::new(open_jev::OpenJev::new(config)?)),
        pplx::V1 | pplx::V1_1 => Ok(Arc::new(pplx::Pplx::new(id, config)?)),
        sequence_classification::ID => Ok(Arc::new(sequence_classification::SequenceClassification::new(
            config,
        )?)),
        cua_s1::ID => Ok(Arc::new(cua_s1::CuaS1::new(config)?)),
        decider_2b::ID => Ok(Arc::new(decider_2b::Decider2b::new(config)?)),
        clef::ID => Ok(Arc::new(clef::Clef::new(config)?)),
        _ => Err(FamilyError::Unknown { id: id.to_owned() }),
    }
}
