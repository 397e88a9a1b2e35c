//! The joint head gives the numbers that its genuine module gives for formula weights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use deltagate_kernels_reference::{JointHeadShape, JointQuestion, joint_head, joint_head_tensors};

const SHAPE: JointHeadShape = JointHeadShape {
    hidden: 8,
    width: 8,
    routing_layers: 2,
    layers: 2,
    heads: 2,
    feedforward: 16,
};

/// Tensor `t` in the bytewise order of the names holds `0.35 sin(1.3 t + 0.71 i + 0.2)`; weights of norms are one more.
fn tensors() -> HashMap<String, Vec<f64>> {
    let mut all = joint_head_tensors(&SHAPE);
    assert_eq!(all.len(), 86);
    all.sort();
    let norms = ["norm.weight", "norm1.weight", "norm2.weight", "norm3.weight"];
    let tensor = |(t, (name, dims)): (usize, (String, Vec<usize>))| {
        let base = if norms.iter().any(|end| name.ends_with(end)) {
            1.0
        } else {
            0.0
        };
        let value = |i: usize| base + 0.35 * (1.3 * t as f64 + 0.71 * i as f64 + 0.2).sin();
        (name, (0..dims.iter().product()).map(value).collect())
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
    let tensors = tensors();
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
