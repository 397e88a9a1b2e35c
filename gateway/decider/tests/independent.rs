//! What another question of the request changes: nothing, except in families that say so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use deltagate_decider::families::FAMILIES;
use deltagate_decider::systemone::parse_body;
use deltagate_decider::{ExplainedSequence, Family, FamilyContext, TokenizeError, family_defaults};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use support::Odd;

/// One token per character; `<decision>` is one token, as in the tokenizers of the family that needs it.
fn encode(text: &str) -> Result<Vec<u32>, TokenizeError> {
    let pieces: Vec<&str> = text.split("<decision>").collect();
    let ids = pieces
        .iter()
        .map(|piece| piece.chars().map(u32::from).collect::<Vec<_>>());
    Ok(ids.collect::<Vec<_>>().join(&0x11_0001))
}

fn explain(family: &dyn Family, questions: &Map<String, Value>) -> Vec<ExplainedSequence> {
    let cx = FamilyContext {
        tokenizer: Arc::new(Odd(encode)),
        max_tokens: 262_144,
    };
    let body = json!({"state": "It rained all day.", "questions": questions}).to_string();
    let request = parse_body(body.as_bytes(), &family.systemone_rules())
        .unwrap()
        .request;
    family.explain(&request, &cx).unwrap()
}

/// Questions that the family answers.
fn questions(id: &str) -> Vec<Value> {
    let choice = |instructions: Value, names: [&str; 3]| {
        let criteria: Map<String, Value> = names
            .iter()
            .map(|name| ((*name).to_owned(), Value::Null))
            .collect();
        json!({"type": "choice", "instructions": instructions, "criteria": criteria})
    };
    match id {
        "sequence_classification" => vec![
            choice(Value::Null, ["a", "b", "c"]),
            choice(Value::Null, ["c", "a", "b"]),
            choice(Value::Null, ["a", "d", "e"]),
        ],
        "cua_s1" => vec![
            choice("Go on?".into(), ["yes", "no", "later"]),
            choice("Which one?".into(), ["left", "right", "up"]),
            choice(Value::Null, ["a", "b", "c"]),
        ],
        _ => vec![
            choice("Which one?".into(), ["left", "right", "up"]),
            json!({"type": "score", "instructions": "How bad?", "criteria": ["low", "middle", "high"]}),
            json!({"type": "noul", "instructions": "Is it?"}),
        ],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Renamed, reordered, with others or alone: the same prompts, token by token.
    #[test]
    fn another_question_changes_no_prompt_of_families_that_are_not_joint(
        order in Just(vec![0usize, 1, 2]).prop_shuffle(), names in prop::collection::hash_set("[a-zé ]{1,12}", 3),
    ) {
        let names: Vec<String> = names.into_iter().collect();
        for id in FAMILIES {
            let family = family_defaults(id).unwrap();
            let asked = questions(id);
            let together: Map<String, Value> = order.iter().map(|at| (names[*at].clone(), asked[*at].clone())).collect();
            let all = explain(&*family, &together);
            let mut same = true;
            for (at, question) in asked.iter().enumerate() {
                let alone = explain(&*family, &Map::from_iter([("q".to_owned(), question.clone())]));
                let ids = |sequences: &[ExplainedSequence]| -> Vec<Vec<u32>> {
                    sequences.iter().map(|sequence| sequence.ids.clone()).collect()
                };
                let mine: Vec<_> = all.iter().filter(|sequence| sequence.question == names[at]).cloned().collect();
                same &= ids(&mine) == ids(&alone);
            }
            prop_assert_eq!(same, !family.joint(), "{}", id);
        }
    }
}
