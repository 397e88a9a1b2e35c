//! Fail-closed decisions in Rego, and the permits that carry them
