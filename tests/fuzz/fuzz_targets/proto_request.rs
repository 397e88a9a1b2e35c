//! The bytes of a `ClassifyRequest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltagate_fuzz::proto_request(data));
