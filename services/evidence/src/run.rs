//! Replays tasks with one request in flight.

use std::time::{Duration, Instant};

use deltagate_proto::v1::{
    Answer, ClassifyRequest, answer, capability_service_client::CapabilityServiceClient,
    classifier_service_client::ClassifierServiceClient,
};
use tonic::transport::Channel;

use crate::{Evidence, TaskRecord};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct BenchSettings {
    /// Untimed passes over all tasks before the first sample.
    pub warm_ups: u32,
    /// Timed passes over all tasks.
    pub passes: u32,
    /// Deadline of one request.
    pub timeout: Duration,
}

/// Why a run gave no evidence.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Nothing to replay.
    #[error("the task file holds no task")]
    NoTasks,
    /// The capability service did not answer.
    #[error("cannot read what is bound: {0}")]
    Capability(Box<tonic::Status>),
    /// Kernels were swapped in between, so the samples are not of one thing.
    #[error("the capability fingerprint changed during the run")]
    FingerprintChanged,
    /// Not one request was answered.
    #[error("no request was answered; the last code was {0}")]
    NothingAnswered(String),
}

/// Replays `tasks` and keeps every sample. Requests that fail are counted, not retried.
pub async fn run(
    classifier: Channel,
    capability: Channel,
    tasks: &[ClassifyRequest],
    settings: BenchSettings,
) -> Result<Evidence, BenchError> {
    if tasks.is_empty() {
        return Err(BenchError::NoTasks);
    }
    let view = CapabilityServiceClient::new(capability)
        .get(deltagate_proto::v1::CapabilityServiceGetRequest {})
        .await;
    let mut devices: Vec<String> = view
        .map_err(|status| BenchError::Capability(Box::new(status)))?
        .into_inner()
        .executors
        .into_iter()
        .filter_map(|e| e.snapshot?.device)
        .map(|d| format!("{}: {}", d.id, d.name))
        .collect();
    devices.sort();
    let mut client = ClassifierServiceClient::new(classifier);
    let mut records: Vec<TaskRecord> = (0..tasks.len())
        .map(|task| TaskRecord {
            task,
            input_tokens: 0,
            round_trip_ms: vec![],
            forward_ms: vec![],
            tokenize_ms: vec![],
            policy_ms: vec![],
            queue_ms: vec![],
            gateway_ms: vec![],
            decisions: vec![],
            failures: vec![],
        })
        .collect();
    let (mut fingerprint, mut model, mut last_code) = (None::<String>, String::new(), String::new());
    for pass in 0..settings.warm_ups + settings.passes {
        for (task, record) in tasks.iter().zip(&mut records) {
            let mut request = tonic::Request::new(task.clone());
            request.set_timeout(settings.timeout);
            let start = Instant::now();
            let response = client.classify(request).await;
            let elapsed = start.elapsed();
            match response.map(tonic::Response::into_inner) {
                Ok(response) => {
                    if *fingerprint.get_or_insert_with(|| response.capability_fingerprint.clone())
                        != response.capability_fingerprint
                    {
                        return Err(BenchError::FingerprintChanged);
                    }
                    model = response.model;
                    if pass >= settings.warm_ups {
                        let timings = response.timings.unwrap_or_default();
                        record.input_tokens = response.usage.map_or(0, |u| u.input_tokens);
                        record.round_trip_ms.push(elapsed.as_secs_f64() * 1e3);
                        record.forward_ms.push(millis(timings.forward));
                        record.tokenize_ms.push(millis(timings.tokenize));
                        record.policy_ms.push(millis(timings.policy));
                        record.queue_ms.push(millis(timings.queue));
                        record.gateway_ms.push(millis(timings.total));
                        record.decisions = response.answers.iter().map(decision).collect();
                    }
                }
                Err(status) => {
                    last_code = format!("{:?}", status.code());
                    if pass >= settings.warm_ups {
                        record.failures.push(last_code.clone());
                    }
                }
            }
        }
    }
    let capability_fingerprint = fingerprint.ok_or(BenchError::NothingAnswered(last_code))?;
    Ok(Evidence {
        format: 1,
        model,
        capability_fingerprint,
        devices,
        warm_ups: settings.warm_ups,
        passes: settings.passes,
        tasks: records,
    })
}

pub(crate) fn millis(duration: Option<prost_types::Duration>) -> f64 {
    duration.map_or(0.0, |d| d.seconds as f64 * 1e3 + f64::from(d.nanos) / 1e6)
}

fn decision(answer: &Answer) -> String {
    match &answer.answer {
        Some(answer::Answer::Choice(choice)) => choice.choice.clone(),
        Some(answer::Answer::Score(score)) => score
            .probabilities
            .iter()
            .rev()
            .max_by(|a, b| a.probability.total_cmp(&b.probability))
            .map_or_else(String::new, |p| p.level.to_string()),
        Some(answer::Answer::Noul(noul)) => (noul.noul >= 0.5).to_string(),
        None => String::new(),
    }
}
