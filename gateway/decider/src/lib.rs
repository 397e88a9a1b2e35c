//! Decider families: prompts, readout plans and answer rules. Pure: no I/O
