//! The bytes of a safetensors file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltagate_fuzz::safetensors_header(data));
