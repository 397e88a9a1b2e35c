//! End-to-end, fault and conformance tests
