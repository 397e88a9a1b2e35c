//! What StartLux checks before anything runs: the tokenizer at load, and requests that did not come through HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use deltagate_decider::{
    ChoiceOption, Content, Criteria, DeciderError, DecisionRequest, FamilyContext, FamilyError,
    TokenizeError, family, family_defaults,
};
use serde_json::json;
use support::{Odd, choice, context, plain_startlux, request};

fn byte_ids(text: &str) -> Vec<u32> {
    text.bytes()
        .map(|b| {
            if b.is_ascii_uppercase() {
                u32::from(b) - 33
            } else {
                1000 + u32::from(b)
            }
        })
        .collect()
}

#[test]
fn the_load_check_wants_each_letter_as_its_own_token() {
    let check = |encode| {
        plain_startlux().check(&FamilyContext {
            tokenizer: Arc::new(Odd(encode)),
            max_tokens: 1000,
        })
    };
    let reason = |encode| match check(encode) {
        Err(FamilyError::Tokenizer { reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(check(|text| Ok(byte_ids(text))), Ok(()));
    let other_ids = |text: &str| Ok(text.bytes().map(u32::from).collect());
    assert_eq!(
        reason(other_ids),
        "letter A is not token 32, as letter_token_ids says"
    );
    let doubled = |text: &str| Ok(byte_ids(text).into_iter().flat_map(|id| [id, id]).collect());
    assert_eq!(reason(doubled), "letter A is 2 tokens, not one");
    let merging = |text: &str| match text.strip_suffix("\nQ") {
        Some(rest) => Ok(byte_ids(rest).into_iter().chain([7]).collect()),
        None => Ok(byte_ids(text)),
    };
    assert_eq!(reason(merging), "letter Q merges with the end of the prompt");
    assert_eq!(reason(|_| Err(TokenizeError)), "it cannot encode a prompt");
}

#[test]
fn a_tokenizer_that_fails_is_not_the_requests_fault() {
    let cx = FamilyContext {
        tokenizer: Arc::new(Odd(|_| Err(TokenizeError))),
        max_tokens: 1000,
    };
    let error = plain_startlux()
        .start(&request(vec![choice("a", 2)]), &cx)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error, DeciderError::Tokenize(TokenizeError));
}

#[test]
fn requests_that_did_not_come_through_http_are_checked_too() {
    let refused = |request: DecisionRequest| match plain_startlux().start(&request, &context().1).map(|_| ())
    {
        Err(DeciderError::Request(error)) => (error.violations[0].field(), error.reason()),
        other => panic!("{other:?}"),
    };
    let one = |question| request(vec![question]);
    assert_eq!(
        refused(DecisionRequest {
            state: None,
            questions: vec![choice("a", 2)],
            truncate_state: false,
        }),
        ("state".into(), "MISSING")
    );
    assert_eq!(refused(request(vec![])), ("questions".into(), "QUESTION_COUNT"));
    assert_eq!(
        refused(request(vec![choice("a", 2), choice("a", 2)])),
        ("questions[1].id".into(), "DUPLICATE_ID")
    );
    assert_eq!(
        refused(one(choice(&"x".repeat(201), 2))),
        ("questions[0].id".into(), "INVALID_ID")
    );
    assert_eq!(
        refused(one(choice("a", 0))),
        ("questions[0].choice.options".into(), "OPTION_COUNT")
    );
    assert_eq!(
        refused(one(choice("a", 256))),
        ("questions[0].choice.options".into(), "OPTION_COUNT")
    );
    let mut twice = choice("a", 2);
    let option = ChoiceOption {
        name: "same".into(),
        description: None,
    };
    twice.criteria = Criteria::Choice(vec![option.clone(), option]);
    assert_eq!(
        refused(one(twice)),
        ("questions[0].choice.options[1].name".into(), "DUPLICATE_OPTION")
    );
    let mut levels = choice("a", 0);
    levels.criteria = Criteria::Score(vec![Content::Text("only".into())]);
    assert_eq!(
        refused(one(levels)),
        ("questions[0].score.levels".into(), "LEVEL_COUNT")
    );
    let mut silent = choice("a", 2);
    silent.instructions = Some(Content::Json(json!("\u{1c} ")));
    assert_eq!(
        refused(one(silent)),
        ("questions[0].instructions".into(), "MISSING")
    );
}

#[test]
fn unknown_families_are_refused() {
    assert_eq!(
        family_defaults("").unwrap_err(),
        FamilyError::Unknown { id: String::new() }
    );
    assert_eq!(
        family("star-lux", &json!({})).unwrap_err(),
        FamilyError::Unknown {
            id: "star-lux".into()
        }
    );
}

#[test]
fn a_family_without_a_model_renders_the_same_prompts() {
    let (_, cx) = context();
    let one = request(vec![choice("a", 27)]);
    let defaults = family_defaults("startlux").unwrap();
    assert_eq!(defaults.explain(&one, &cx), plain_startlux().explain(&one, &cx));
    assert_eq!(defaults.check(&cx), Ok(()));
}
