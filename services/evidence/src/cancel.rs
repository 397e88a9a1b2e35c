//! How soon the device is free after a client went away.

use std::time::{Duration, Instant};

use deltagate_proto::v1::{ClassifyRequest, classifier_service_client::ClassifierServiceClient};
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use crate::{BenchError, run::millis};

/// Samples of cancelled requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelEvidence {
    /// Milliseconds on the device of the request that is given up, when it is not.
    pub whole_forward_ms: f64,
    /// Tokens of the request that is given up.
    pub input_tokens: u64,
    /// Milliseconds after sending at which it was given up, one per round.
    pub given_up_after_ms: Vec<f64>,
    /// Milliseconds from giving up until the device had taken the next request, which was sent at once; one per round.
    /// The next request's own tokenising and both transports are in it, so it is an upper bound.
    pub freed_after_ms: Vec<f64>,
    /// Milliseconds that the next request waited in the executor's queue, one per round: the part that is the device's.
    pub queue_ms: Vec<f64>,
}

/// Sends `slow`, gives it up at a moment that moves from a fifth to four fifths of its time, and sends `next`.
pub async fn cancel(
    classifier: Channel,
    slow: &ClassifyRequest,
    next: &ClassifyRequest,
    rounds: u32,
) -> Result<CancelEvidence, BenchError> {
    let mut client = ClassifierServiceClient::new(classifier);
    let mut whole = Duration::MAX;
    let (mut whole_forward_ms, mut input_tokens) = (0.0, 0);
    for _ in 0..5 {
        let (took, response) = ask(&mut client, slow).await?;
        if took < whole {
            whole = took;
            whole_forward_ms = millis(response.timings.and_then(|t| t.forward));
        }
        input_tokens = response.usage.map_or(0, |u| u.input_tokens);
        ask(&mut client, next).await?;
    }
    let mut evidence = CancelEvidence {
        whole_forward_ms,
        input_tokens,
        given_up_after_ms: vec![],
        freed_after_ms: vec![],
        queue_ms: vec![],
    };
    for round in 0..rounds {
        let share = 0.2 + 0.6 * f64::from(round) / f64::from(rounds.max(1));
        let sent = Instant::now();
        {
            let pending = ask(&mut client, slow);
            tokio::pin!(pending);
            // One that ended before was not given up.
            if tokio::time::timeout(whole.mul_f64(share), &mut pending)
                .await
                .is_ok()
            {
                continue;
            }
            evidence
                .given_up_after_ms
                .push(sent.elapsed().as_secs_f64() * 1e3);
        }
        let (took, response) = ask(&mut client, next).await?;
        let timings = response.timings.unwrap_or_default();
        evidence
            .freed_after_ms
            .push(took.as_secs_f64() * 1e3 - millis(timings.forward));
        evidence.queue_ms.push(millis(timings.queue));
    }
    Ok(evidence)
}

async fn ask(
    client: &mut ClassifierServiceClient<Channel>,
    request: &ClassifyRequest,
) -> Result<(Duration, deltagate_proto::v1::ClassifyResponse), BenchError> {
    let begun = Instant::now();
    let answer = client.classify(request.clone()).await;
    let took = begun.elapsed();
    let answer = answer.map_err(|status| BenchError::NothingAnswered(format!("{:?}", status.code())))?;
    Ok((took, answer.into_inner()))
}
