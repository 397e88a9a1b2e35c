//! Which decider family a folder belongs to, by the files in it.

use std::path::Path;

use serde_json::Value;

use crate::{
    AttentionMode, Finding, JointHeadConfig, ModelConfig, Problem, adapter, clef, cua_s1, decider_2b,
    examine::Config, files, intern, open_jev, pplx, sequence_classification, startlux,
};

/// Files that only one family has.
const MARKERS: [(&str, &str); 12] = [
    (open_jev::EXPORT, open_jev::NAME),
    (open_jev::UNMERGED, open_jev::NAME),
    (clef::CONFIG, clef::NAME),
    (clef::WEIGHTS, clef::NAME),
    (pplx::READOUT, pplx::NAME),
    (decider_2b::CONFIG, decider_2b::NAME),
    (intern::CONFIG, intern::NAME),
    (adapter::MARKERS[0], cua_s1::NAME),
    (adapter::MARKERS[1], cua_s1::NAME),
    (adapter::MARKERS[2], cua_s1::NAME),
    (adapter::MARKERS[3], cua_s1::NAME),
    (adapter::MARKERS[4], cua_s1::NAME),
];
/// Families that this version serves, by the names that their files tell.
const SERVED: [&str; 8] = [
    clef::NAME,
    startlux::NAME,
    open_jev::NAME,
    cua_s1::NAME,
    pplx::NAME,
    sequence_classification::NAME,
    decider_2b::NAME,
    intern::NAME,
];
/// Two families have a file of this name.
pub(crate) const DECISION_CONFIG: &str = "decision_config.json";

/// What a family's files say.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// The configuration as read, and its bytes.
    pub(crate) config: Value,
    /// Files that belong to the digest, with their bytes.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    pub(crate) attention: AttentionMode,
    pub(crate) release_date: Option<String>,
    /// Longest sequence, in tokens, if that is less than what the backbone takes.
    pub(crate) max_tokens: Option<u32>,
    /// Whether the readout needs rows of the output embedding.
    pub(crate) needs_output_embedding: bool,
    /// Tensors in a file of their own.
    pub(crate) side: Option<SideFile>,
    /// Name of the decision head, a tensor of the side file or of the weights beside the backbone, and its rows.
    pub(crate) decision_head: Option<(&'static str, usize)>,
    /// Sizes of the joint head, whose tensors are those of the side file.
    pub(crate) joint_head: Option<JointHeadConfig>,
    /// Whether prompts are made of text.
    pub(crate) needs_tokenizer: bool,
    /// Whether the questions of a request share a prompt.
    pub(crate) joint_questions: bool,
    /// Tokens whose ids the configuration names; the tokenizer must agree.
    pub(crate) tokens: Vec<(String, u64)>,
    /// An adapter that is merged into the weights.
    pub(crate) adapter: Option<adapter::Found>,
}

/// A file of weights beside those of the backbone. It holds these tensors and no others.
pub(crate) struct SideFile {
    pub(crate) name: &'static str,
    /// Name in the file and shape.
    pub(crate) tensors: Vec<(String, Vec<usize>)>,
}

/// A finite number.
pub(crate) fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

/// The family of a folder; none if no family's file is there.
pub(crate) fn recognise(dir: &Path, config: Option<&Config>, findings: &mut Vec<Finding>) -> Option<Family> {
    let model = config.map(|config| &config.model);
    let mut found: Vec<(&'static str, &'static str)> = MARKERS
        .into_iter()
        .filter(|(file, _)| files::exists(dir, file))
        .collect();
    if config.is_some_and(|config| sequence_classification::is(&config.value)) {
        found.push(("config.json", sequence_classification::NAME));
    }
    let mut decision = None;
    if files::exists(dir, DECISION_CONFIG) {
        match files::json(dir, DECISION_CONFIG) {
            Ok((bytes, value)) => {
                let family = of_decision_config(&value);
                if family.is_none() {
                    let reason =
                        "is missing, and so is every key of another family that has this file".to_owned();
                    findings.push(Finding::of(
                        DECISION_CONFIG,
                        "letter_token_ids",
                        Problem::Key { reason },
                    ));
                }
                found.extend(
                    family
                        .into_iter()
                        .flatten()
                        .map(|family| (DECISION_CONFIG, family)),
                );
                decision = Some((bytes, value));
            }
            Err(finding) => findings.push(finding),
        }
    }
    // A family without a file of its own: it is told by a token, which does no harm beside the file of another one.
    if found.is_empty() && !files::exists(dir, DECISION_CONFIG) && intern::is_marked(dir) {
        found.push((intern::CONFIG, intern::NAME));
    }
    let mut families: Vec<&'static str> = Vec::new();
    for &(file, family) in &found {
        if families.contains(&family) {
            continue;
        }
        families.push(family);
        if !SERVED.contains(&family) {
            findings.push(Finding::file(file, Problem::UnservedFamily { family }));
        }
    }
    if families.len() > 1 {
        let files: Vec<&str> = found.iter().map(|(file, _)| *file).collect();
        findings.push(Finding::file(
            files.join(", "),
            Problem::AmbiguousFamily(families),
        ));
        return None;
    }
    match (&families[..], decision) {
        ([startlux::NAME], Some((bytes, value))) => {
            let vocab_size = model.map(|model| model.vocab_size);
            Some(startlux::read(bytes, value, vocab_size, findings))
        }
        ([open_jev::NAME], None) => open_jev(dir, model, findings),
        ([pplx::NAME], Some((bytes, value))) => Some(pplx::read(bytes, &value, model, findings)),
        ([pplx::NAME], None) => {
            // A file that cannot be read has its own finding.
            if !files::exists(dir, DECISION_CONFIG) {
                let needed_by = Some(pplx::NAME);
                findings.push(Finding::file(DECISION_CONFIG, Problem::MissingFile { needed_by }));
            }
            None
        }
        ([sequence_classification::NAME], None) => {
            config.map(|config| sequence_classification::read(&config.value, findings))
        }
        ([cua_s1::NAME], None) => cua_s1::read(dir, findings),
        ([intern::NAME], None) => intern::read(dir, model.map(|model| model.hidden_size), findings),
        ([decider_2b::NAME], None) => match files::json(dir, decider_2b::CONFIG) {
            Ok((bytes, value)) => Some(decider_2b::read(bytes, value, findings)),
            Err(finding) => {
                findings.push(finding);
                None
            }
        },
        ([clef::NAME], None) => clef::read(dir, model, findings),
        _ => None,
    }
}

/// The export of an Open-Jev folder; a finding if there is none yet.
fn open_jev(dir: &Path, model: Option<&ModelConfig>, findings: &mut Vec<Finding>) -> Option<Family> {
    if !files::exists(dir, open_jev::EXPORT) {
        let reason = format!(
            "is of an Open-Jev model that is not merged: export it, so that `{}` is there",
            open_jev::EXPORT
        );
        findings.push(Finding::file(open_jev::UNMERGED, Problem::Key { reason }));
        return None;
    }
    match files::json(dir, open_jev::EXPORT) {
        Ok((bytes, value)) => {
            let hidden_size = model.map(|model| model.hidden_size);
            Some(open_jev::read(bytes, value, hidden_size, findings))
        }
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

/// Families whose keys are in a `decision_config.json`; none if it has keys of neither.
fn of_decision_config(value: &Value) -> Option<Vec<&'static str>> {
    let has = |keys: &[&str]| keys.iter().any(|key| value.get(key).is_some());
    let mut families = Vec::new();
    if has(&["letter_token_ids"]) {
        families.push(startlux::NAME);
    }
    if has(&["codes", "token_ids", "pooling"]) {
        families.push(pplx::NAME);
    }
    (!families.is_empty()).then_some(families)
}
