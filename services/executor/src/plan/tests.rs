//! Every rule of the contract, and the field that its breach names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const LIMITS: ModelLimits = ModelLimits {
    max_tokens: 8,
    vocab_size: 100,
    hidden_size: 4,
    output_embedding: true,
    decision_head_rows: 3,
    joint_head: true,
};

fn sequence(token_ids: Vec<u32>) -> v1::Sequence {
    let readout = v1::Readout {
        rows: Some(WireRows::Last(v1::LastRow {})),
        projection: Some(WireProjection::Hidden(v1::HiddenRow {})),
    };
    v1::Sequence {
        token_ids,
        readout: Some(readout),
    }
}

fn request(sequences: Vec<v1::Sequence>) -> v1::ForwardRequest {
    v1::ForwardRequest {
        capability_fingerprint: "f".to_owned(),
        sequences,
        ..Default::default()
    }
}

fn with_rows(rows: Option<WireRows>) -> v1::ForwardRequest {
    let mut sequence = sequence(vec![1, 2, 3]);
    sequence.readout.as_mut().unwrap().rows = rows;
    request(vec![sequence])
}

fn with_projection(projection: Option<WireProjection>) -> v1::ForwardRequest {
    let mut sequence = sequence(vec![1, 2, 3]);
    sequence.readout.as_mut().unwrap().projection = projection;
    request(vec![sequence])
}

fn positions(positions: Vec<u32>) -> Option<WireRows> {
    Some(WireRows::Positions(v1::RowPositions { positions }))
}

fn embedding(token_ids: Vec<u32>) -> Option<WireProjection> {
    Some(WireProjection::OutputEmbedding(v1::OutputEmbeddingRows {
        token_ids,
    }))
}

fn decision(rows: Vec<u32>) -> Option<WireProjection> {
    Some(WireProjection::DecisionHead(v1::DecisionHeadRows { rows }))
}

fn joint(questions: Vec<v1::JointQuestion>) -> v1::ForwardRequest {
    let mut request = with_projection(Some(WireProjection::JointHead(v1::JointQuestions { questions })));
    request.sequences[0].readout.as_mut().unwrap().rows = Some(WireRows::All(v1::AllRows {}));
    request
}

fn span(start: u32, end: u32) -> v1::TokenSpan {
    v1::TokenSpan { start, end }
}

/// A question about a sequence of three tokens.
fn question() -> v1::JointQuestion {
    v1::JointQuestion {
        r#type: 2,
        span: Some(span(0, 3)),
        options: vec![span(2, 3), span(0, 1)],
    }
}

#[test]
fn questions_for_the_joint_head_are_checked_span_by_span() {
    let valid = validate(&joint(vec![question(); 256]), &LIMITS).unwrap();
    let sequence = &valid.plan.sequences[0];
    let Projection::JointHead(questions) = &sequence.projection else {
        panic!("{sequence:?}")
    };
    assert_eq!((questions.len(), expected_width(sequence, &LIMITS)), (256, 512));
    assert_eq!(expected_rows(sequence), 1);
    assert_eq!((questions[0].kind, questions[0].options[0].clone()), (2, 2..3));

    let with = |change: &dyn Fn(&mut v1::JointQuestion)| {
        let mut second = question();
        change(&mut second);
        joint(vec![question(), second])
    };
    let at = "sequences[0].readout.joint_head.questions";
    for (request, field, reason) in [
        (joint(vec![]), String::new(), "OUT_OF_RANGE"),
        (joint(vec![question(); 257]), String::new(), "OUT_OF_RANGE"),
        (
            with(&|q| q.options = vec![span(0, 1); 4095]),
            String::new(),
            "OUT_OF_RANGE",
        ),
        (with(&|q| q.r#type = 3), "[1].type".into(), "OUT_OF_RANGE"),
        (with(&|q| q.span = None), "[1].span".into(), "REQUIRED"),
        (
            with(&|q| q.span = Some(span(2, 2))),
            "[1].span".into(),
            "OUT_OF_RANGE",
        ),
        (
            with(&|q| q.span = Some(span(0, 4))),
            "[1].span".into(),
            "OUT_OF_RANGE",
        ),
        (with(&|q| q.options = vec![]), "[1].options".into(), "REQUIRED"),
        (
            with(&|q| q.options[1] = span(3, 2)),
            "[1].options[1]".into(),
            "OUT_OF_RANGE",
        ),
        (
            with(&|q| q.options[1] = span(u32::MAX, u32::MAX)),
            "[1].options[1]".into(),
            "OUT_OF_RANGE",
        ),
    ] {
        let error = validate(&request, &LIMITS).expect_err(&field);
        let found = (&*error.fields[0].field, &*error.fields[0].reason);
        assert_eq!(found, (&*format!("{at}{field}"), reason));
    }

    let mut last = joint(vec![question()]);
    last.sequences[0].readout.as_mut().unwrap().rows = Some(WireRows::Last(v1::LastRow {}));
    let error = validate(&last, &LIMITS).unwrap_err();
    assert_eq!(error.fields[0].field, "sequences[0].readout.rows");

    let limits = ModelLimits {
        joint_head: false,
        ..LIMITS
    };
    let error = validate(&joint(vec![question()]), &limits).unwrap_err();
    let found = (&*error.fields[0].field, &*error.fields[0].reason);
    assert_eq!(found, ("sequences[0].readout.joint_head", "UNSUPPORTED"));

    // Positions count from the prefix.
    let mut prefixed = joint(vec![question()]);
    prefixed.prefix_token_ids = vec![1, 2];
    let moved = |end| {
        let mut request = prefixed.clone();
        let readout = request.sequences[0].readout.as_mut().unwrap();
        let Some(WireProjection::JointHead(asked)) = &mut readout.projection else {
            panic!()
        };
        asked.questions[0].options[0] = span(2, end);
        request
    };
    assert!(validate(&moved(5), &LIMITS).is_ok() && validate(&moved(6), &LIMITS).is_err());
}

#[test]
fn accepts_the_edges() {
    let valid = validate(&request(vec![sequence(vec![99; 8]), sequence(vec![0])]), &LIMITS).unwrap();
    assert_eq!((valid.plan.sequences.len(), valid.tokens), (2, 9));
    validate(&with_rows(positions(vec![2, 0, 2])), &LIMITS).unwrap();
    validate(&with_rows(Some(WireRows::All(v1::AllRows {}))), &LIMITS).unwrap();
    validate(&with_projection(embedding(vec![99; 256])), &LIMITS).unwrap();
    validate(&request(vec![sequence(vec![1]); 256]), &LIMITS).unwrap();
}

#[test]
fn names_the_field_at_fault() {
    let mut no_fingerprint = request(vec![sequence(vec![1])]);
    no_fingerprint.capability_fingerprint.clear();
    let mut no_readout = sequence(vec![1]);
    no_readout.readout = None;
    let cases = [
        (no_fingerprint, "capability_fingerprint", "REQUIRED"),
        (request(vec![]), "sequences", "OUT_OF_RANGE"),
        (request(vec![sequence(vec![1]); 257]), "sequences", "OUT_OF_RANGE"),
        (
            request(vec![sequence(vec![1]), sequence(vec![])]),
            "sequences[1].token_ids",
            "REQUIRED",
        ),
        (
            request(vec![sequence(vec![1; 9])]),
            "sequences[0].token_ids",
            "PROMPT_TOO_LONG",
        ),
        (
            request(vec![sequence(vec![1, 100])]),
            "sequences[0].token_ids",
            "OUT_OF_RANGE",
        ),
        (request(vec![no_readout]), "sequences[0].readout", "REQUIRED"),
        (with_rows(None), "sequences[0].readout.rows", "REQUIRED"),
        (
            with_rows(positions(vec![])),
            "sequences[0].readout.positions.positions",
            "OUT_OF_RANGE",
        ),
        (
            with_rows(positions(vec![3])),
            "sequences[0].readout.positions.positions",
            "OUT_OF_RANGE",
        ),
        (
            with_rows(positions(vec![0; 4])),
            "sequences[0].readout.positions.positions",
            "OUT_OF_RANGE",
        ),
        (
            with_projection(None),
            "sequences[0].readout.projection",
            "REQUIRED",
        ),
        (
            with_projection(embedding(vec![])),
            "sequences[0].readout.output_embedding.token_ids",
            "OUT_OF_RANGE",
        ),
        (
            with_projection(embedding(vec![1; 257])),
            "sequences[0].readout.output_embedding.token_ids",
            "OUT_OF_RANGE",
        ),
        (
            with_projection(embedding(vec![100])),
            "sequences[0].readout.output_embedding.token_ids",
            "OUT_OF_RANGE",
        ),
        (
            with_projection(decision(vec![])),
            "sequences[0].readout.decision_head.rows",
            "OUT_OF_RANGE",
        ),
        (
            with_projection(decision(vec![0, 3])),
            "sequences[0].readout.decision_head.rows",
            "OUT_OF_RANGE",
        ),
    ];
    for (request, field, reason) in cases {
        let error = validate(&request, &LIMITS).expect_err(field);
        assert_eq!(error.code, tonic::Code::InvalidArgument);
        let fields: Vec<_> = error
            .fields
            .iter()
            .map(|f| (f.field.as_str(), f.reason.as_ref()))
            .collect();
        assert_eq!(fields, [(field, reason)]);
    }
}

#[test]
fn a_model_without_a_table_projects_on_nothing() {
    let limits = ModelLimits {
        output_embedding: false,
        decision_head_rows: 0,
        joint_head: false,
        ..LIMITS
    };
    for (projection, field) in [
        (embedding(vec![1]), "sequences[0].readout.output_embedding"),
        (decision(vec![1]), "sequences[0].readout.decision_head"),
    ] {
        let error = validate(&with_projection(projection), &limits).unwrap_err();
        assert_eq!(
            (&*error.fields[0].field, &*error.fields[0].reason),
            (field, "UNSUPPORTED")
        );
    }
}

#[test]
fn a_prefix_stands_before_each_sequence_and_counts_with_each() {
    let mut request = request(vec![sequence(vec![3, 4]), sequence(vec![5])]);
    request.prefix_token_ids = vec![1, 2];
    let at = |sequence: &mut v1::Sequence, position| {
        sequence.readout.as_mut().unwrap().rows = positions(vec![0, position]);
    };
    at(&mut request.sequences[0], 3);
    let valid = validate(&request, &LIMITS).unwrap();
    let ids: Vec<_> = valid
        .plan
        .sequences
        .iter()
        .map(|s| s.token_ids.as_slice())
        .collect();
    assert_eq!(ids, [&[1, 2, 3, 4][..], &[1, 2, 5]]);
    assert_eq!(valid.tokens, 7);

    let field_of = |request: &v1::ForwardRequest| {
        let error = validate(request, &LIMITS).unwrap_err();
        (error.fields[0].field.clone(), error.fields[0].reason.clone())
    };
    at(&mut request.sequences[0], 4);
    let (field, reason) = field_of(&request);
    assert_eq!(
        (&*field, &*reason),
        ("sequences[0].readout.positions.positions", "OUT_OF_RANGE")
    );
    at(&mut request.sequences[0], 3);
    request.sequences[1].token_ids.clear();
    let (field, reason) = field_of(&request);
    assert_eq!((&*field, &*reason), ("sequences[1].token_ids", "REQUIRED"));
    request.sequences[1].token_ids = vec![5; 7];
    let (field, reason) = field_of(&request);
    assert_eq!((&*field, &*reason), ("sequences[1].token_ids", "PROMPT_TOO_LONG"));
    request.sequences[1].token_ids = vec![5];
    request.prefix_token_ids = vec![100];
    let (field, reason) = field_of(&request);
    assert_eq!((&*field, &*reason), ("prefix_token_ids", "OUT_OF_RANGE"));
    request.prefix_token_ids = vec![1; 8];
    let (field, reason) = field_of(&request);
    assert_eq!((&*field, &*reason), ("prefix_token_ids", "PROMPT_TOO_LONG"));
}

#[test]
fn only_long_prompts_are_called_so() {
    let long = validate(&request(vec![sequence(vec![1; 9]); 2]), &LIMITS).unwrap_err();
    assert_eq!(long.reason, "PROMPT_TOO_LONG");
    let mixed = validate(&request(vec![sequence(vec![1; 9]), sequence(vec![])]), &LIMITS).unwrap_err();
    assert_eq!(mixed.reason, "INVALID_REQUEST");
}

#[test]
fn the_list_of_faults_is_bounded_and_so_is_the_readout() {
    let error = validate(&request(vec![sequence(vec![]); 256]), &LIMITS).unwrap_err();
    assert_eq!(error.fields.len(), MAX_VIOLATIONS);
    let limits = ModelLimits {
        hidden_size: MAX_READOUT_VALUES,
        ..LIMITS
    };
    validate(&request(vec![sequence(vec![1])]), &limits).unwrap();
    let error = validate(&request(vec![sequence(vec![1]); 2]), &limits).unwrap_err();
    assert_eq!(error.fields[0].reason, "READOUT_TOO_LARGE");
}

#[test]
fn a_permit_bounds_tokens_and_sequences() {
    let valid = validate(&request(vec![sequence(vec![1; 4]); 2]), &LIMITS).unwrap();
    let claims = |max_plan_tokens, max_plan_sequences| v1::PermitClaims {
        max_plan_tokens,
        max_plan_sequences,
        ..Default::default()
    };
    within_permit(&valid, &claims(8, 2)).unwrap();
    for claims in [claims(7, 2), claims(8, 1), claims(0, 0)] {
        assert_eq!(
            within_permit(&valid, &claims).unwrap_err().code,
            tonic::Code::PermissionDenied
        );
    }
}
