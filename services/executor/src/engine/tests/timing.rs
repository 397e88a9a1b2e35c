//! Where the time goes, to read and not to pass:
//! `cargo test -p deltagate-executor --lib engine::tests::timing -- --ignored --nocapture`.

use deltagate_checkpoint::ModelConfig;

use super::support::{Memory, Watcher, config, load, plan, sequence};
use crate::engine::{EngineSettings, RowSelection};

#[test]
#[ignore = "prints timings"]
fn four_layers_of_the_0_8b() {
    let layers = config().layers[..4].to_vec();
    let config = ModelConfig {
        hidden_size: 1024,
        intermediate_size: 3584,
        layers,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        linear_num_key_heads: 16,
        linear_num_value_heads: 16,
        linear_key_head_dim: 128,
        linear_value_head_dim: 128,
        max_position_embeddings: 4096,
        ..config()
    };
    let start = std::time::Instant::now();
    let mut engine = load(&Memory::new(config), &EngineSettings::default());
    println!("loaded and probed in {:?}", start.elapsed());
    for tokens in [1, 136, 1024] {
        let asked = plan(vec![sequence(tokens, RowSelection::Last)]);
        let mut best = engine.forward(&asked, &mut Watcher::default()).unwrap();
        for _ in 0..4 {
            let next = engine.forward(&asked, &mut Watcher::default()).unwrap();
            if next.end - next.start < best.end - best.start {
                best = next;
            }
        }
        println!("{tokens} tokens: {:?}", best.end - best.start);
        for kernel in &best.kernels {
            println!(
                "  {} {}: {:?}, {} launches",
                kernel.family, kernel.backend, kernel.busy, kernel.launches
            );
        }
    }
}
