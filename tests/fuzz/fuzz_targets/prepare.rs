//! A decider from the request to the answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltagate_fuzz::prepare(data));
