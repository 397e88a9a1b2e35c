//! What a run leaves behind.

use serde::{Deserialize, Serialize};

/// A run, with every sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Version of this format; 1.
    pub format: u32,
    /// The model that answered.
    pub model: String,
    /// What was bound during the whole run; a run in which it changed is refused.
    pub capability_fingerprint: String,
    /// `device id: device name` of every executor that was ready.
    pub devices: Vec<String>,
    /// Untimed passes before the first sample.
    pub warm_ups: u32,
    /// Timed passes over all tasks.
    pub passes: u32,
    /// One per task, in the order of the task file.
    pub tasks: Vec<TaskRecord>,
}

/// The samples of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRecord {
    /// Index in the task file.
    pub task: usize,
    /// Tokens that went through the model.
    pub input_tokens: u64,
    /// Milliseconds from sending to the whole answer, one per pass, in order.
    pub round_trip_ms: Vec<f64>,
    /// Milliseconds on the device, one per pass, in order.
    pub forward_ms: Vec<f64>,
    /// The decision per question of the last pass: option, most likely level, or true / false.
    pub decisions: Vec<String>,
    /// gRPC codes of the passes that failed.
    pub failures: Vec<String>,
}

/// Percentiles of all samples of a run, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of samples.
    pub samples: usize,
    /// Median.
    pub p50: f64,
    /// 95th percentile, nearest rank.
    pub p95: f64,
    /// 99th percentile, nearest rank.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

impl Evidence {
    /// Percentiles of the round trips; `None` without samples.
    pub fn round_trip(&self) -> Option<Percentiles> {
        percentiles(
            self.tasks
                .iter()
                .flat_map(|t| t.round_trip_ms.iter().copied())
                .collect(),
        )
    }

    /// Percentiles of the time on the device; `None` without samples.
    pub fn forward(&self) -> Option<Percentiles> {
        percentiles(
            self.tasks
                .iter()
                .flat_map(|t| t.forward_ms.iter().copied())
                .collect(),
        )
    }

    /// Number of failed passes over all tasks.
    pub fn failures(&self) -> usize {
        self.tasks.iter().map(|t| t.failures.len()).sum()
    }
}

fn percentiles(mut samples: Vec<f64>) -> Option<Percentiles> {
    if samples.is_empty() {
        return None;
    }
    samples.sort_by(f64::total_cmp);
    let rank = |q: f64| samples[((q * samples.len() as f64).ceil() as usize).clamp(1, samples.len()) - 1];
    Some(Percentiles {
        samples: samples.len(),
        p50: rank(0.5),
        p95: rank(0.95),
        p99: rank(0.99),
        mean: samples.iter().sum::<f64>() / samples.len() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let p = percentiles((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!(
            (p.samples, p.p50, p.p95, p.p99, p.mean),
            (100, 50.0, 95.0, 99.0, 50.5)
        );
        assert_eq!(percentiles(vec![7.0]).unwrap().p99, 7.0);
        assert_eq!(percentiles(vec![]), None);
    }
}
