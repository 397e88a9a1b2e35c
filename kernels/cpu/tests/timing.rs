//! Timings to read, not to pass: `cargo test -p deltagate-kernels-cpu --test timing -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use candle_core::{Device, Tensor};
use deltagate_kernels_api::{Conv1d, DeltaRule, DeltaRuleShape, GateWeights, Random};
use deltagate_kernels_cpu::{Chunked, Cpu, CpuConv1d, Recurrent};

fn median(mut run: impl FnMut()) -> Duration {
    run();
    let mut times: Vec<Duration> = (0..7)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "prints timings"]
fn delta_rule_at_the_sizes_of_the_0_8b_and_the_27b() {
    for (name, value_heads) in [("0.8B", 16), ("27B", 48)] {
        let shape = DeltaRuleShape {
            key_heads: 16,
            value_heads,
            key_dim: 128,
            value_dim: 128,
        };
        for tokens in [1, 16, 64, 136, 1024] {
            let random = &mut Random::new(1);
            let matrix = |random: &mut Random, columns: usize| {
                Tensor::from_vec(
                    random.values(tokens * columns, -2.0, 2.0),
                    (tokens, columns),
                    &Device::Cpu,
                )
                .unwrap()
            };
            let qkv = matrix(random, shape.qkv_columns());
            let ba = matrix(random, 2 * value_heads);
            let vector = |random: &mut Random| {
                Tensor::from_vec(random.values(value_heads, -2.0, 1.0), value_heads, &Device::Cpu).unwrap()
            };
            let (a_log, dt_bias) = (vector(random), vector(random));
            let time = |op: &dyn DeltaRule<Cpu>| {
                let gates = op
                    .gates(
                        &ba,
                        &GateWeights {
                            a_log: &a_log,
                            dt_bias: &dt_bias,
                        },
                    )
                    .unwrap();
                median(|| {
                    black_box(op.delta_rule(&qkv, &gates, &shape).unwrap());
                })
            };
            let taps = Tensor::from_vec(
                random.values(shape.qkv_columns() * 4, -0.5, 0.5),
                (shape.qkv_columns(), 4),
                &Device::Cpu,
            );
            let taps = taps.unwrap();
            let conv = median(|| {
                black_box(CpuConv1d.conv1d(&qkv, &taps).unwrap());
            });
            println!(
                "{name} T={tokens}: chunked {:?}, recurrent {:?}, conv1d {conv:?}, {} threads",
                time(&Chunked),
                time(&Recurrent),
                rayon::current_num_threads()
            );
        }
    }
}
