//! The CPU backend: candle-core with its own conv1d and gated delta rule ops
