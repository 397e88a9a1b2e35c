//! `decision_config.json` of the StartLux family.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{
    AttentionMode, Finding, Problem,
    family::{DECISION_CONFIG, Family, number},
};

/// Name of the family.
pub(crate) const NAME: &str = "startlux";
const LETTERS: usize = 26;
/// What the family's own server announces when the file does not say.
const DEFAULT_RELEASE_DATE: &str = "2026-10-01";
/// Keys that say where a model comes from.
const DESCRIPTIVE: [&str; 8] = [
    "name",
    "description",
    "license",
    "model",
    "model_id",
    "base_model",
    "revision",
    "created_by",
];
const TYPES: [&str; 3] = ["choice", "noul", "score"];

/// Checks the content; what is wrong becomes a finding.
pub(crate) fn read(
    bytes: Vec<u8>,
    value: Value,
    vocab_size: Option<usize>,
    findings: &mut Vec<Finding>,
) -> Family {
    let mut tokens = Vec::new();
    let mut release_date = DEFAULT_RELEASE_DATE.to_owned();
    let mut refuse = |key: &str, reason: &str| {
        findings.push(Finding::of(
            DECISION_CONFIG,
            key,
            Problem::Key {
                reason: reason.to_owned(),
            },
        ));
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "letter_token_ids" => tokens = letters(value, vocab_size, &mut refuse),
            "temperature_by_type" => temperatures(value, &mut refuse),
            "wide_choice" => wide_choice(value, &mut refuse),
            "release_date" => match value.as_str().filter(|date| is_date(date)) {
                Some(date) => release_date = date.to_owned(),
                None => refuse(key, "is not a date of the form YYYY-MM-DD"),
            },
            _ if DESCRIPTIVE.contains(&key.as_str()) => {}
            _ => refuse(key, "is a key that this version does not know"),
        }
    }
    Family {
        name: NAME,
        tokens,
        config: value,
        files: vec![(DECISION_CONFIG, bytes)],
        attention: AttentionMode::Causal,
        release_date: Some(release_date),
        max_tokens: None,
        side: None,
        decision_head: None,
        joint_head: None,
        needs_output_embedding: true,
        needs_tokenizer: true,
        joint_questions: false,
        adapter: None,
    }
}

/// Each letter with its id; none if the ids are unusable.
fn letters(
    value: &Value,
    vocab_size: Option<usize>,
    refuse: &mut impl FnMut(&str, &str),
) -> Vec<(String, u64)> {
    let ids: Option<Vec<u64>> = value
        .as_array()
        .and_then(|ids| ids.iter().map(Value::as_u64).collect());
    let Some(ids) = ids.filter(|ids| ids.len() == LETTERS) else {
        refuse("letter_token_ids", "is not an array of 26 token ids");
        return Vec::new();
    };
    let beyond = vocab_size.is_some_and(|size| ids.iter().any(|&id| id >= size as u64));
    if beyond {
        refuse("letter_token_ids", "has an id that is not below `vocab_size`");
    }
    let unique: BTreeSet<u64> = ids.iter().copied().collect();
    let twice = unique.len() != LETTERS;
    if twice {
        refuse("letter_token_ids", "has an id twice");
    }
    if beyond || twice {
        return Vec::new();
    }
    ('A'..='Z').map(String::from).zip(ids).collect()
}

fn temperatures(value: &Value, refuse: &mut impl FnMut(&str, &str)) {
    let Some(object) = value.as_object() else {
        return refuse("temperature_by_type", "is not an object");
    };
    for (kind, value) in object {
        let key = format!("temperature_by_type.{kind}");
        if !TYPES.contains(&kind.as_str()) {
            refuse(&key, "is none of `choice`, `noul` and `score`");
        } else if !number(value).is_some_and(|t| t > 0.0) {
            refuse(&key, "is not a finite number above 0");
        }
    }
}

/// The tournament of wide choices ends only if each round leaves fewer options than it was given. Groups of n > 26 options are larger than
/// half of `group`, so that keeping at most half of `group` always drops one.
fn wide_choice(value: &Value, refuse: &mut impl FnMut(&str, &str)) {
    let Some(object) = value.as_object() else {
        return refuse("wide_choice", "is not an object");
    };
    let group = integer(object, "group", 25);
    match group {
        Some(group) if (2..=LETTERS as u64).contains(&group) => {}
        _ => refuse("wide_choice.group", "is not an integer from 2 to 26"),
    }
    match integer(object, "keep", 3) {
        Some(keep) if keep >= 1 && group.is_none_or(|group| keep <= group / 2) => {}
        _ => refuse("wide_choice.keep", "is not an integer from 1 to half of `group`"),
    }
    if !object
        .get("residual")
        .is_none_or(|residual| residual.as_f64().is_some_and(|r| (0.0..1.0).contains(&r)))
    {
        refuse("wide_choice.residual", "is not a number from 0 to below 1");
    }
    for key in object
        .keys()
        .filter(|key| !["group", "keep", "residual"].contains(&key.as_str()))
    {
        refuse(
            &format!("wide_choice.{key}"),
            "is a key that this version does not know",
        );
    }
}

fn integer(object: &Map<String, Value>, key: &str, default: u64) -> Option<u64> {
    object.get(key).map_or(Some(default), Value::as_u64)
}

pub(crate) fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    let dashes = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-';
    let digits = bytes
        .iter()
        .enumerate()
        .all(|(i, byte)| i == 4 || i == 7 || byte.is_ascii_digit());
    dashes
        && digits
        && number(5..7).is_some_and(|month| (1..=12).contains(&month))
        && number(8..10).is_some_and(|day| (1..=31).contains(&day))
}

#[cfg(test)]
mod tests {
    use super::is_date;

    #[test]
    fn dates_have_their_form() {
        assert!(is_date("2026-10-01"));
        for text in [
            "",
            "2026-13-01",
            "2026-00-01",
            "2026-01-32",
            "2026-1-01",
            "20261001",
            "2026-10-01T",
            "+026-10-01",
            "2026-10-é",
        ] {
            assert!(!is_date(text), "{text}");
        }
    }
}
