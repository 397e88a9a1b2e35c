//! Requests that are made, not read: shapes that neither face lets through are among them.

use arbitrary::{Arbitrary, Result, Unstructured};
use deltagate_decider::{ChoiceOption, Content, Criteria, DecisionRequest, Question};

use crate::{drive, refused};

/// A decider from the request to the answers, with any finite logits.
pub fn prepare(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok((request, max_tokens)) = request(&mut input) else {
        return;
    };
    let mut logit = |_| match f32::arbitrary(&mut input) {
        Ok(value) if value.is_finite() => value,
        _ => 0.0,
    };
    if let Err(error) = drive::run(&request, max_tokens, &mut logit) {
        refused(&error, &[]);
    }
}

fn request(input: &mut Unstructured<'_>) -> Result<(DecisionRequest, usize)> {
    let max_tokens = input.int_in_range(0..=3000)?;
    let state = option(input)?;
    let count = input.int_in_range(0..=5)?;
    let questions = (0..count).map(|_| question(input)).collect::<Result<_>>()?;
    let request = DecisionRequest {
        state,
        questions,
        truncate_state: bool::arbitrary(input)?,
    };
    Ok((request, max_tokens))
}

fn question(input: &mut Unstructured<'_>) -> Result<Question> {
    let id = String::arbitrary(input)?;
    let instructions = option(input)?;
    let criteria = match input.int_in_range(0..=3)? {
        0 => Criteria::Choice(options(input)?),
        1 => Criteria::Choice(many(input)?),
        2 => {
            let count = input.int_in_range(0..=11)?;
            Criteria::Score((0..count).map(|_| content(input)).collect::<Result<_>>()?)
        }
        _ => Criteria::Noul {
            when_true: option(input)?,
            when_false: option(input)?,
        },
    };
    Ok(Question {
        id,
        instructions,
        criteria,
    })
}

fn options(input: &mut Unstructured<'_>) -> Result<Vec<ChoiceOption>> {
    let mut options = Vec::new();
    for _ in 0..input.int_in_range(0..=6)? {
        options.push(ChoiceOption {
            name: String::arbitrary(input)?,
            description: option(input)?,
        });
    }
    Ok(options)
}

/// Up to 257 options whose names cost no input.
fn many(input: &mut Unstructured<'_>) -> Result<Vec<ChoiceOption>> {
    let count = input.int_in_range(0..=257)?;
    let prefix = String::arbitrary(input)?;
    let description = option(input)?;
    let one = |i: usize| ChoiceOption {
        name: format!("{prefix}{i}"),
        description: description.clone(),
    };
    Ok((0..count).map(one).collect())
}

fn option(input: &mut Unstructured<'_>) -> Result<Option<Content>> {
    bool::arbitrary(input)?.then(|| content(input)).transpose()
}

fn content(input: &mut Unstructured<'_>) -> Result<Content> {
    let (text, json) = (<&str>::arbitrary(input)?, bool::arbitrary(input)?);
    Ok(crate::content(text, json))
}
