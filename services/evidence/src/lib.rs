//! Bench and gate: timed runs with raw samples, and keep-or-reject verdicts
