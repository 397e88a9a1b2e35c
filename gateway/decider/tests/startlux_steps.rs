//! The step loop of StartLux: what it refuses, what it bounds, what it never answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use deltagate_decider::{
    Answer, ChoiceOption, Content, Criteria, DeciderError, DecisionRequest, FamilyContext,
    MAX_SEQUENCES_PER_PLAN, Question, RowSelection, SequenceOutput, Step,
};
use serde_json::{Value, json};
use support::{choice, context, drive, letters, plain_startlux, request};

fn rows(values: &[&[f32]]) -> Vec<SequenceOutput> {
    values
        .iter()
        .map(|row| SequenceOutput {
            rows: vec![row.to_vec()],
        })
        .collect()
}

#[test]
fn a_plan_reads_the_letters_in_use_from_the_last_row() {
    let noul = Question {
        id: "n".into(),
        instructions: None,
        criteria: Criteria::Noul {
            when_true: None,
            when_false: None,
        },
    };
    let mut decider = plain_startlux()
        .start(
            &request(vec![choice("c", 3), noul, choice("one", 1)]),
            &context().1,
        )
        .unwrap();
    let Step::Run(plan) = decider.step(None).unwrap() else {
        panic!()
    };
    assert!(!plan.noncausal_full_attention);
    let got: Vec<Vec<u32>> = plan.sequences.iter().map(letters).collect();
    assert_eq!(got, [vec![32, 33, 34], vec![32, 33]]);
    assert!(
        plan.sequences
            .iter()
            .all(|sequence| sequence.read == RowSelection::Last)
    );
    let Step::Done(answers) = decider
        .step(Some(&rows(&[&[0.0, 9.0, 0.0], &[0.0, 0.0]])))
        .unwrap()
    else {
        panic!()
    };
    assert_eq!(answers.usage.input_tokens, plan.input_tokens());
    assert!(matches!(&answers.answers[0].1, Answer::Choice { choice, .. } if choice == "option 1 of many"));
    assert_eq!(answers.answers[1].1, Answer::Noul { noul: 0.5 });
    let only = "option 0 of many".to_owned();
    assert_eq!(
        answers.answers[2].1,
        Answer::Choice {
            choice: only.clone(),
            confidence: 1.0,
            own_confidence: None,
            probabilities: vec![(only, 1.0)]
        }
    );
}

#[test]
fn a_request_that_needs_no_model_is_done_at_once() {
    let (answers, plans) = drive(
        &*plain_startlux(),
        &request(vec![choice("one", 1)]),
        &context().1,
        |_, _| panic!(),
    )
    .unwrap();
    assert_eq!((answers.usage.input_tokens, plans.len()), (0, 0));
}

#[test]
fn too_long_is_refused_with_both_numbers() {
    let (_, cx) = context();
    let two = request(vec![choice("a", 2), choice("b", 3)]);
    let longest = plain_startlux().explain(&two, &cx).unwrap()[1].ids.len();
    let limited = |max_tokens| {
        plain_startlux()
            .start(
                &two,
                &FamilyContext {
                    max_tokens,
                    ..cx.clone()
                },
            )
            .map(|_| ())
    };
    assert_eq!(limited(longest), Ok(()));
    let Err(DeciderError::Request(error)) = limited(longest - 1) else {
        panic!()
    };
    assert_eq!((error.http_status(), error.reason()), (422, "PROMPT_TOO_LONG"));
    assert_eq!(error.violations[0].field(), "questions[1]");
    assert_eq!(
        error.to_string(),
        format!(
            "questions[1]: the prompt has {longest} tokens, the limit is {}",
            longest - 1
        )
    );
}

#[test]
fn a_later_round_may_be_too_long_as_well() {
    // The finalists have long names, so the last prompt is the longest.
    let option = |i: usize| ChoiceOption {
        name: format!(
            "{i}{}",
            if i % 14 < 3 {
                "x".repeat(150)
            } else {
                String::new()
            }
        ),
        description: None,
    };
    let mut question = choice("q", 0);
    question.criteria = Criteria::Choice((0..27).map(option).collect());
    let (_, cx) = context();
    let one = request(vec![question]);
    let first = plain_startlux()
        .explain(&one, &cx)
        .unwrap()
        .iter()
        .map(|sequence| sequence.ids.len())
        .max()
        .unwrap();
    let cx = FamilyContext {
        max_tokens: first,
        ..cx
    };
    let Err(DeciderError::Request(error)) = drive(&*plain_startlux(), &one, &cx, |_, n| {
        (0..n).map(|i| -(i as f32)).collect()
    }) else {
        panic!()
    };
    assert_eq!(
        (error.reason(), error.violations[0].field().as_str()),
        ("PROMPT_TOO_LONG", "questions[0]")
    );
}

#[test]
fn values_that_are_not_finite_are_never_an_answer() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut decider = plain_startlux()
            .start(&request(vec![choice("a", 2), choice("b", 2)]), &context().1)
            .unwrap();
        decider.step(None).unwrap();
        let error = decider
            .step(Some(&rows(&[&[0.0, 1.0], &[0.0, bad]])))
            .unwrap_err();
        assert_eq!(error, DeciderError::NotFinite { sequence: 1 });
        assert_eq!(
            decider.step(Some(&rows(&[&[0.0, 1.0], &[0.0, 1.0]]))),
            Err(DeciderError::OutOfTurn)
        );
    }
}

#[test]
fn outputs_must_fit_the_plan() {
    let outputs: [(&str, Vec<SequenceOutput>); 4] = [
        ("sequences", rows(&[])),
        ("sequences", rows(&[&[0.0, 1.0], &[0.0, 1.0]])),
        ("rows", vec![SequenceOutput { rows: vec![] }]),
        ("values", rows(&[&[0.0, 1.0, 2.0]])),
    ];
    for (wrong, output) in outputs {
        let mut decider = plain_startlux()
            .start(&request(vec![choice("a", 2)]), &context().1)
            .unwrap();
        decider.step(None).unwrap();
        assert!(
            matches!(decider.step(Some(&output)), Err(DeciderError::OutputShape { what, .. }) if what == wrong)
        );
    }
}

#[test]
fn steps_out_of_turn_are_errors() {
    let start = || {
        plain_startlux()
            .start(&request(vec![choice("a", 2)]), &context().1)
            .unwrap()
    };
    assert_eq!(
        start().step(Some(&rows(&[&[0.0, 1.0]]))),
        Err(DeciderError::OutOfTurn)
    );
    let mut decider = start();
    decider.step(None).unwrap();
    assert_eq!(decider.step(None), Err(DeciderError::OutOfTurn));
    let mut decider = start();
    decider.step(None).unwrap();
    assert!(matches!(
        decider.step(Some(&rows(&[&[0.0, 1.0]]))),
        Ok(Step::Done(_))
    ));
    assert_eq!(decider.step(None), Err(DeciderError::OutOfTurn));
}

#[test]
fn a_step_beyond_the_executors_bound_is_cut_and_its_answers_stay_in_place() {
    let questions: Vec<Question> = (0..64).map(|i| choice(&format!("q{i}"), 255)).collect();
    let many = request(questions);
    let (answers, plans) = drive(&*plain_startlux(), &many, &context().1, |pass, n| {
        (0..n).map(|i| if i == pass % n { 3.0 } else { 0.0 }).collect()
    })
    .unwrap();
    let counts: Vec<usize> = plans.iter().map(|plan| plan.sequences.len()).collect();
    assert!(counts.iter().all(|count| *count <= MAX_SEQUENCES_PER_PLAN));
    assert_eq!(counts, [256, 256, 192, 128, 64]);
    assert_eq!(answers.answers.len(), 64);
    assert_eq!(
        answers.usage.input_tokens,
        plans.iter().map(|plan| plan.input_tokens()).sum::<u64>()
    );
    for (i, (id, answer)) in answers.answers.iter().enumerate() {
        assert_eq!(id, &format!("q{i}"));
        let Answer::Choice { probabilities, .. } = answer else {
            panic!()
        };
        assert_eq!(probabilities.len(), 255);
        assert!((probabilities.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}

#[test]
fn questions_of_a_request_do_not_mix() {
    let both = request(vec![choice("a", 40), choice("b", 3), choice("c", 30)]);
    let logits_of = |n: usize| (0..n).map(|i| ((7 * i) % 11) as f32 / 4.0).collect::<Vec<_>>();
    let (together, plans) = drive(&*plain_startlux(), &both, &context().1, |_, n| logits_of(n)).unwrap();
    assert_eq!(
        plans.iter().map(|plan| plan.sequences.len()).collect::<Vec<_>>(),
        [5, 2]
    );
    for (index, question) in both.questions.iter().enumerate() {
        let (alone, _) = drive(
            &*plain_startlux(),
            &request(vec![question.clone()]),
            &context().1,
            |_, n| logits_of(n),
        )
        .unwrap();
        assert_eq!(alone.answers[0], together.answers[index]);
    }
}

#[test]
fn explain_shows_the_groups_of_a_wide_choice() {
    let explained = plain_startlux()
        .explain(&request(vec![choice("q", 27)]), &context().1)
        .unwrap();
    let spans: Vec<(Value, Value, usize)> = explained
        .iter()
        .map(|s| {
            (
                s.spans["group"].clone(),
                s.spans["groups"].clone(),
                s.spans["letters"].as_object().unwrap().len(),
            )
        })
        .collect();
    assert_eq!(spans, [(json!(0), json!(2), 14), (json!(1), json!(2), 13)]);
    assert_eq!(explained[1].spans["letters"]["A"], "option 14 of many");
}

/// A request about a long state that may be cut.
fn long(questions: Vec<Question>, state: &str) -> DecisionRequest {
    DecisionRequest {
        state: Some(Content::Text(state.into())),
        truncate_state: true,
        ..request(questions)
    }
}

#[test]
fn a_state_is_cut_only_where_the_request_allows_it_and_the_cut_is_counted() {
    let (tokenizer, cx) = context();
    let cx = FamilyContext {
        max_tokens: 1000,
        ..cx
    };
    for state in [
        "ab cd ".repeat(2000),
        "é".repeat(3000),
        format!(" {}{}", "x".repeat(900), "語".repeat(900)),
    ] {
        let asked = long(vec![choice("a", 2), choice("b", 30)], &state);
        let refused = DecisionRequest {
            truncate_state: false,
            ..asked.clone()
        };
        assert!(plain_startlux().start(&refused, &cx).is_err());
        tokenizer.texts.lock().unwrap().clear();
        let (answers, plans) = drive(&*plain_startlux(), &asked, &cx, |_, n| vec![0.0; n]).unwrap();
        let mut cut = 0;
        let unbounded = FamilyContext {
            max_tokens: usize::MAX,
            ..cx.clone()
        };
        let (_, whole) = drive(&*plain_startlux(), &asked, &unbounded, |_, n| vec![0.0; n]).unwrap();
        for (plan, whole) in plans.iter().zip(&whole) {
            for (sequence, whole) in plan.sequences.iter().zip(&whole.sequences) {
                let (count, all) = (sequence.token_ids.len(), whole.token_ids.len());
                // One character may be three tokens of this tokenizer.
                assert!((1000 - 8..=1000).contains(&count), "{count} tokens");
                // The beginning of the state is there, and everything behind the state.
                let same = sequence
                    .token_ids
                    .iter()
                    .zip(&whole.token_ids)
                    .take_while(|(a, b)| a == b)
                    .count();
                let tail = sequence
                    .token_ids
                    .iter()
                    .rev()
                    .zip(whole.token_ids.iter().rev())
                    .take_while(|(a, b)| a == b)
                    .count();
                assert!(
                    same + tail >= count,
                    "something else than the end of the state was cut"
                );
                cut += (all - count) as u64;
            }
        }
        assert_eq!(answers.usage.truncated_tokens, cut);
    }
    // What fits is not touched, and what cannot fit is refused as ever, with both numbers.
    let fits = long(vec![choice("a", 2)], "short");
    let (answers, _) = drive(&*plain_startlux(), &fits, &cx, |_, n| vec![0.0; n]).unwrap();
    assert_eq!(answers.usage.truncated_tokens, 0);
    let tight = FamilyContext {
        max_tokens: 100,
        ..cx
    };
    let whole = plain_startlux()
        .explain(&request(vec![choice("a", 2)]), &context().1)
        .unwrap()[0]
        .ids
        .len();
    let Err(DeciderError::Request(error)) = plain_startlux().start(&long(vec![choice("a", 2)], "x"), &tight)
    else {
        panic!()
    };
    assert_eq!(
        error.to_string(),
        format!("questions[0]: the prompt has {whole} tokens, the limit is 100")
    );
}
