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
    /// Milliseconds of rendering and tokenising, as the gateway tells; one per pass, in order.
    #[serde(default)]
    pub tokenize_ms: Vec<f64>,
    /// Milliseconds of request rules, as the gateway tells; one per pass, in order.
    #[serde(default)]
    pub policy_ms: Vec<f64>,
    /// Milliseconds in the executor's queue; one per pass, in order.
    #[serde(default)]
    pub queue_ms: Vec<f64>,
    /// Milliseconds in the gateway, from the message to the answers; one per pass, in order.
    #[serde(default)]
    pub gateway_ms: Vec<f64>,
    /// The decision per question of the last pass: option, most likely level, or true / false.
    pub decisions: Vec<String>,
    /// gRPC codes of the passes that failed.
    pub failures: Vec<String>,
}

/// Percentiles of samples; of a run, in milliseconds.
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
    /// What the mesh adds to the work itself, one per sample: the round trip as the client sees it, less rendering and
    /// tokenising, less the executor's queue and its device. What remains is both transports, the client's own part of
    /// the first one included, decoding and encoding, policy, and the answer's arithmetic.
    pub fn overhead_ms(&self) -> Vec<f64> {
        let of = |t: &TaskRecord| -> Vec<f64> {
            t.round_trip_ms
                .iter()
                .zip(&t.tokenize_ms)
                .zip(&t.queue_ms)
                .zip(&t.forward_ms)
                .map(|(((round_trip, tokenize), queue), forward)| round_trip - tokenize - queue - forward)
                .collect()
        };
        self.tasks.iter().flat_map(of).collect()
    }

    /// Percentiles of [`Evidence::overhead_ms`]; `None` without samples.
    pub fn overhead(&self) -> Option<Percentiles> {
        percentiles(self.overhead_ms())
    }

    /// Percentiles of one of the times that the samples carry; `None` without samples.
    pub fn of(&self, pick: fn(&TaskRecord) -> &[f64]) -> Option<Percentiles> {
        percentiles(self.tasks.iter().flat_map(|t| pick(t).iter().copied()).collect())
    }

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

impl Percentiles {
    /// Of these samples, whatever their unit; `None` without samples.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        percentiles(samples)
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
    fn overhead_is_what_is_left_of_the_round_trip() {
        let old = r#"{"format": 1, "model": "m", "capability_fingerprint": "f", "devices": [], "warm_ups": 5,
            "passes": 1, "tasks": [{"task": 0, "input_tokens": 3, "round_trip_ms": [8.0, 9.0],
            "forward_ms": [4.0, 4.0], "decisions": [], "failures": []}]}"#;
        let mut evidence: Evidence = serde_json::from_str(old).unwrap();
        assert_eq!(evidence.overhead(), None, "an older file tells no parts");
        evidence.tasks[0].tokenize_ms = vec![2.0, 2.0];
        evidence.tasks[0].queue_ms = vec![1.0, 0.5];
        assert_eq!(evidence.overhead_ms(), [1.0, 2.5]);
    }

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
