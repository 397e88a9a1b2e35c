//! Naive f64 oracle for probes and tests. It never serves
