#![allow(clippy::unwrap_used)]
use super::*;
use crate::engine::tests::support::config;

#[test]
fn calls_stand_in_the_order_of_the_model() {
    let mut config = config();
    config.layers = vec![LayerKind::LinearAttention, LayerKind::FullAttention];
    let calls: Vec<_> = LayerPlan::new(&config).calls().iter().map(|p| p.call).collect();
    assert_eq!(
        calls,
        [
            OpCall::Embed,
            OpCall::Norm(NormAt::Mixer(0)),
            OpCall::MixerInput(0),
            OpCall::Conv1d(0),
            OpCall::DeltaRule(0),
            OpCall::GatedNorm(0),
            OpCall::MixerOutput(0),
            OpCall::Norm(NormAt::Mlp(0)),
            OpCall::Mlp(0),
            OpCall::Norm(NormAt::Mixer(1)),
            OpCall::MixerInput(1),
            OpCall::Attention(1),
            OpCall::KeepRows,
            OpCall::MixerOutput(1),
            OpCall::Norm(NormAt::Mlp(1)),
            OpCall::Mlp(1),
            OpCall::Norm(NormAt::Final),
            OpCall::Readout,
        ]
    );
}

#[test]
fn segments_cover_every_call_once_and_in_order() {
    let mut config = config();
    for layers in [1, 3, 8, 24, 64] {
        config.layers = (0..layers)
            .map(|i| {
                if i % 4 == 3 {
                    LayerKind::FullAttention
                } else {
                    LayerKind::LinearAttention
                }
            })
            .collect();
        let plan = LayerPlan::new(&config);
        for (tokens, expected) in [(1, 1), (512, 1), (513, 4), (2048, 4), (2500, 5), (100_000, 8)] {
            let segments = plan.segments(tokens, 512, 8);
            assert_eq!(
                segments.len(),
                expected.min(layers),
                "{tokens} tokens, {layers} layers"
            );
            let (mut call, mut layer) = (0, 0);
            for segment in &segments {
                assert_eq!((segment.calls.start, segment.layers.start), (call, layer));
                assert!(!segment.layers.is_empty());
                let inside = &plan.calls()[segment.calls.clone()];
                assert!(inside.iter().all(|p| segment.layers.contains(&p.layer)));
                (call, layer) = (segment.calls.end, segment.layers.end);
            }
            assert_eq!((call, layer), (plan.calls().len(), layers));
        }
        assert_eq!(plan.segments(10_000, 512, 1).len(), 1);
        assert_eq!(plan.segments(10_000, 0, 0).len(), 1);
    }
}
