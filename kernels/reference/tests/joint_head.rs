//! The joint head gives the numbers that its genuine module gives for formula weights; `tests/fixtures/clef/README.md` says which.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use deltagate_kernels_reference::{JointHeadShape, JointQuestion, joint_head, joint_head_tensors};
use serde_json::Value;

const SHAPE: JointHeadShape = JointHeadShape {
    hidden: 8,
    width: 8,
    routing_layers: 2,
    layers: 2,
    heads: 2,
    feedforward: 16,
};

/// Tensor `t` in the bytewise order of the names holds `value(t, i)` at `i`; weights of norms are one more.
fn tensors(shape: &JointHeadShape, value: impl Fn(f64, f64) -> f64) -> HashMap<String, Vec<f64>> {
    let mut all = joint_head_tensors(shape);
    all.sort();
    let norms = ["norm.weight", "norm1.weight", "norm2.weight", "norm3.weight"];
    let tensor = |(t, (name, dims)): (usize, (String, Vec<usize>))| {
        let is_norm = norms.iter().any(|end| name.ends_with(end));
        let base = if is_norm { 1.0 } else { 0.0 };
        let at = |i: usize| base + value(t as f64, i as f64);
        (name, (0..dims.iter().product()).map(at).collect())
    };
    all.into_iter().enumerate().map(tensor).collect()
}

fn assert_close(actual: &[f64], expected: &[f64], by: f64) {
    assert_eq!(actual.len(), expected.len());
    for (a, e) in actual.iter().zip(expected) {
        assert!((a - e).abs() < by, "{actual:?} is not {expected:?}");
    }
}

#[test]
fn the_golden_joint_head_gives_the_printed_numbers() {
    let tensors = tensors(&SHAPE, |t, i| 0.35 * (1.3 * t + 0.71 * i + 0.2).sin());
    assert_eq!(tensors.len(), 86);
    assert_close(&tensors["prior_logit_scale"], &[0.306_857_886], 1e-9);
    assert_close(&tensors["joint_logit_scale"], &[-0.270_270_167], 1e-9);
    assert_close(&tensors["residual_gate"], &[-0.176_163_751], 1e-9);
    let rows: Vec<f64> = (0..14 * 8)
        .map(|at| (0.9 * f64::from(at / 8) + 0.53 * f64::from(at % 8) + 0.4).sin())
        .collect();
    let output_embedding: Vec<f64> = (0..20 * 8)
        .map(|at| (0.6 * f64::from(at / 8) + 0.47 * f64::from(at % 8)).cos())
        .collect();
    let ids: Vec<u32> = (0..14).map(|p| 3 * p % 20).collect();
    let questions = [
        JointQuestion {
            kind: 1,
            span: 2..4,
            options: vec![4..6, 6..7, 7..9],
        },
        JointQuestion {
            kind: 0,
            span: 9..10,
            options: vec![10..12, 12..13],
        },
    ];
    let out = joint_head(&SHAPE, &tensors, &rows, &output_embedding, &ids, &questions);
    assert_close(
        &out.logits,
        &[
            1.169_058_131,
            -0.059_651_644,
            0.856_175_122,
            1.570_167_086,
            -0.810_265_487,
        ],
        1e-9,
    );
    assert_close(
        &out.questions[..3],
        &[1.095_384_28, 0.212_883_86, -0.529_385_08],
        1e-8,
    );
    assert_close(
        &out.options[..3],
        &[5.696_724_18, 6.013_017_83, 3.041_213_53],
        1e-8,
    );
    assert_close(&out.prior[..2], &[0.853_042_12, -0.327_821_06], 1e-8);
    assert_close(&out.cosine[..2], &[0.942_108_89, 0.895_114_12], 1e-8);
    assert_close(&out.residual[..2], &[-0.026_085_1, -0.095_129_97], 1e-7);
}

/// Other sizes, numbers of questions and lengths, as the genuine module computes them in f64.
#[test]
fn the_joint_head_agrees_with_the_genuine_module() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/clef/vectors.json")).unwrap();
    let heads = vectors["heads"].as_array().unwrap();
    assert_eq!(heads.len(), 4);
    for head in heads {
        let size = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let config = &head["config"];
        let shape = JointHeadShape {
            hidden: size(&config["hidden_size"]),
            width: size(&config["width"]),
            routing_layers: size(&config["routing_layers"]),
            layers: size(&config["layers"]),
            heads: size(&config["heads"]),
            feedforward: size(&config["feedforward"]),
        };
        let [a, b, c, by] = ["a", "b", "c", "size"].map(|key| head["formula"][key].as_f64().unwrap());
        let tensors = tensors(&shape, |t, i| by * (a * t + b * i + c).sin());
        assert_eq!(tensors.len(), size(&head["tensors"]));
        let (tokens, vocabulary) = (size(&head["tokens"]), size(&head["vocabulary"]));
        let table = |rows: usize, value: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            let at = |at: usize| value((at / shape.hidden) as f64, (at % shape.hidden) as f64);
            (0..rows * shape.hidden).map(at).collect()
        };
        let span = |value: &Value| size(&value[0])..size(&value[1]);
        let questions: Vec<JointQuestion> = head["questions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|question| JointQuestion {
                kind: size(&question["type"]),
                span: span(&question["span"]),
                options: question["options"].as_array().unwrap().iter().map(span).collect(),
            })
            .collect();
        let out = joint_head(
            &shape,
            &tensors,
            &table(tokens, &|p, j| (0.9 * p + 0.53 * j + c).sin()),
            &table(vocabulary, &|v, j| (0.6 * v + 0.47 * j + c).cos()),
            &(0..tokens)
                .map(|p| ((3 * p + 1) % vocabulary) as u32)
                .collect::<Vec<_>>(),
            &questions,
        );
        let expected: Vec<f64> = head["logits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|z| z.as_f64().unwrap())
            .collect();
        assert_close(&out.logits, &expected, 1e-11);
    }
}
