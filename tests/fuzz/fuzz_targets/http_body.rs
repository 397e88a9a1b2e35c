//! The body of `POST /v1/systemone`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltagate_fuzz::http_body(data));
