//! One call of `ExecutorService.Forward`, and what its failures mean for the request.

use std::time::{Duration, Instant};

use deltagate_decider::{JointQuestion, Plan, PlannedSequence, Projection, RowSelection, SequenceOutput};
use deltagate_mesh::{
    deadline::{exceeded, set_remaining},
    error::{Code, ServiceError},
    trace::{client_span, end_client_span, inject_span},
};
use deltagate_proto::v1::{
    self, ForwardRequest, ForwardResult, executor_service_client::ExecutorServiceClient,
    forward_response::Event as Heard, readout,
};
use tonic::{Request, Status};
use tonic_types::StatusExt;
use tracing::Instrument;

use super::{call::Event, refusal::Refusal, rounds::Rounds};
use crate::view::{InFlight, Lease};

const METHOD: &str = "deltagate.v1.ExecutorService/Forward";

/// Largest answer of an executor: every row of a long sequence, as hidden values.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// Most sequences in one plan, by the contract of the executor.
const MAX_SEQUENCES: usize = 256;

/// What a failed run means.
pub(super) enum Failure {
    /// The request fails.
    Final(Box<Refusal>),
    /// The binding or the permit is not valid (any more): a fresh permit may do.
    FreshPermit(Box<ServiceError>),
    /// This executor is away, leaving or full: another one may do.
    OtherExecutor(&'static str, Box<ServiceError>),
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self::Final(Box::new(error.into()))
    }
}

impl Rounds<'_> {
    /// Runs the sequences of the plan from `from` on, as many as one call may take.
    pub(super) async fn run(
        &mut self,
        lease: &Lease,
        plan: &Plan,
        step: u32,
        from: usize,
    ) -> Result<Vec<SequenceOutput>, Failure> {
        let sequences = fitting(plan, from, lease)?;
        self.stage.set("forward");
        let span = client_span(METHOD);
        let _counted = InFlight::enter(&lease.in_flight);
        let heard = self.call(lease, plan, sequences, step, from, &span);
        let result = heard.instrument(span.clone()).await;
        match result {
            Ok(result) => {
                end_client_span(&span, &Ok(()));
                let outputs = self.check(lease, sequences.len(), &result)?;
                self.timings.add(&result);
                Ok(outputs)
            }
            Err(status) => {
                let error = ServiceError::from(&status);
                end_client_span::<()>(&span, &Err(error.clone()));
                let failure = self.failure(&status, error);
                if let Failure::OtherExecutor("EXECUTOR_UNREACHABLE", _) = failure {
                    self.classifier.view.lost(&lease.instance);
                }
                Err(failure)
            }
        }
    }

    async fn call(
        &mut self,
        lease: &Lease,
        plan: &Plan,
        sequences: &[PlannedSequence],
        step: u32,
        from: usize,
        span: &tracing::Span,
    ) -> Result<ForwardResult, Status> {
        let message = ForwardRequest {
            permit: Some(lease.permit.clone()),
            capability_fingerprint: lease.fingerprint.clone(),
            sequences: sequences.iter().map(wire_sequence).collect(),
            noncausal_full_attention: plan.noncausal_full_attention,
            segment_events: self.events.is_some(),
            result_only: self.events.is_none(),
            prefix_token_ids: plan.prefix.clone(),
        };
        let mut request = Request::new(message);
        set_remaining(&mut request, Some(way_back(self.deadline)))?;
        inject_span(span, &mut request);
        let mut client =
            ExecutorServiceClient::new(lease.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        let mut stream = client.forward(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            match response.event {
                Some(Heard::Accepted(_)) => self.tell_accepted(plan.sequences.len(), plan.input_tokens()),
                Some(Heard::Segment(mut segment)) => {
                    segment.step = step;
                    segment.sequence = segment
                        .sequence
                        .saturating_add(u32::try_from(from).unwrap_or(u32::MAX));
                    self.tell(Event::Segment(segment));
                }
                Some(Heard::Result(result)) => return Ok(result),
                None => {}
            }
        }
        // A short read never becomes an answer.
        Err(Status::unavailable(
            "the executor ended the call without a result",
        ))
    }

    /// Once per request, when its first step is queued.
    pub(super) fn tell_accepted(&mut self, sequences: usize, input_tokens: u64) {
        if self.accepted || self.events.is_none() {
            return;
        }
        self.accepted = true;
        let sequences = u32::try_from(sequences).unwrap_or(u32::MAX);
        self.tell(Event::Accepted {
            request_id: self.request_id.clone(),
            sequences,
            input_tokens,
        });
    }

    /// An answer is complete, finite, and of the binding that was asked for, or it is an error.
    fn check(
        &self,
        lease: &Lease,
        expected: usize,
        result: &ForwardResult,
    ) -> Result<Vec<SequenceOutput>, Failure> {
        let broken = |what: &str| Failure::from(ServiceError::internal("EXECUTOR_ANSWER_INVALID", what));
        if result.capability_fingerprint != lease.fingerprint {
            return Err(broken("the executor answered with another binding"));
        }
        if result.outputs.len() != expected {
            return Err(broken("the executor answered with another number of sequences"));
        }
        let rows = result.outputs.iter().flat_map(|output| &output.rows);
        if !rows.flat_map(|row| &row.values).all(|value| value.is_finite()) {
            return Err(
                ServiceError::internal("NOT_FINITE", "the executor gave a value that is not finite").into(),
            );
        }
        let outputs = result.outputs.iter().map(|output| SequenceOutput {
            rows: output.rows.iter().map(|row| row.values.clone()).collect(),
        });
        Ok(outputs.collect())
    }

    fn failure(&self, status: &Status, mut error: ServiceError) -> Failure {
        let retry_after = self.classifier.config.limits.retry_after;
        // No service of the mesh speaks without ErrorInfo: this status was made by a transport on the way.
        let on_the_way = status.get_details_error_info().is_none();
        if on_the_way
            && matches!(
                error.code,
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
            )
        {
            let lost = ServiceError::unavailable("EXECUTOR_UNREACHABLE", "the executor cannot be reached")
                .retry_after(retry_after);
            return Failure::OtherExecutor("EXECUTOR_UNREACHABLE", Box::new(lost));
        }
        let fresh = |error: ServiceError| {
            let away = ServiceError::unavailable(error.reason, error.message).retry_after(retry_after);
            Failure::FreshPermit(Box::new(away))
        };
        match error.reason.as_ref() {
            "FINGERPRINT_MISMATCH"
            | "PERMIT_MISSING"
            | "PERMIT_INVALID"
            | "PERMIT_EXPIRED"
            | "EXECUTOR_NOT_READY"
            | "LOADING" => fresh(error),
            "DRAINING" => {
                let leaving = ServiceError::unavailable("DRAINING", error.message).retry_after(retry_after);
                Failure::OtherExecutor("DRAINING", Box::new(leaving))
            }
            // Nothing was begun: a replica may have room.
            "QUEUE_FULL" if error.code == Code::ResourceExhausted => {
                error.retry_after.get_or_insert(retry_after);
                Failure::OtherExecutor("QUEUE_FULL", Box::new(error))
            }
            _ => {
                match error.code {
                    // These say that the plan is wrong, which is never the caller's fault: it did not make the plan.
                    Code::InvalidArgument
                    | Code::NotFound
                    | Code::Unimplemented
                    | Code::OutOfRange
                    | Code::Unknown => {
                        error.code = Code::Internal;
                        error.fields.clear();
                    }
                    // The caller did not cancel, or this would not run any more.
                    Code::Cancelled => error.code = Code::Unavailable,
                    // The client's own timer knows no stage.
                    Code::DeadlineExceeded if error.fact("stage").is_none() => error = exceeded("forward"),
                    _ => {}
                }
                if matches!(error.code, Code::ResourceExhausted | Code::Unavailable) {
                    error.retry_after.get_or_insert(retry_after);
                }
                error.into()
            }
        }
    }
}

/// A result must still get back: the executor is told a little less than is left.
fn way_back(deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    let reserve = Duration::from_millis(5).min(left / 10);
    deadline.checked_sub(reserve).unwrap_or(deadline)
}

/// The sequences from `from` on that fit one plan of this permit.
fn fitting<'p>(plan: &'p Plan, from: usize, lease: &Lease) -> Result<&'p [PlannedSequence], Failure> {
    let sequences = plan.sequences.get(from..).unwrap_or_default();
    let most = usize::try_from(lease.max_plan_sequences)
        .unwrap_or(MAX_SEQUENCES)
        .clamp(1, MAX_SEQUENCES);
    let mut tokens = 0u64;
    let mut count = 0;
    for sequence in sequences.iter().take(most) {
        tokens += plan.length(sequence);
        if tokens > lease.max_plan_tokens {
            break;
        }
        count += 1;
    }
    if count == 0 {
        let message = format!(
            "a prompt has {tokens} tokens, policy allows {}",
            lease.max_plan_tokens
        );
        return Err(Failure::Final(Box::new(Refusal::prompt_too_long(message))));
    }
    Ok(sequences.get(..count).unwrap_or_default())
}

fn wire_sequence(sequence: &PlannedSequence) -> v1::Sequence {
    let rows = match &sequence.read {
        RowSelection::Last => readout::Rows::Last(v1::LastRow {}),
        RowSelection::All => readout::Rows::All(v1::AllRows {}),
        RowSelection::Positions(positions) => readout::Rows::Positions(v1::RowPositions {
            positions: positions.clone(),
        }),
    };
    let projection = match &sequence.projection {
        Projection::Hidden => readout::Projection::Hidden(v1::HiddenRow {}),
        Projection::OutputEmbedding(token_ids) => {
            readout::Projection::OutputEmbedding(v1::OutputEmbeddingRows {
                token_ids: token_ids.clone(),
            })
        }
        Projection::DecisionHead(rows) => {
            readout::Projection::DecisionHead(v1::DecisionHeadRows { rows: rows.clone() })
        }
        Projection::JointHead(questions) => readout::Projection::JointHead(v1::JointQuestions {
            questions: questions.iter().map(wire_question).collect(),
        }),
    };
    v1::Sequence {
        token_ids: sequence.token_ids.clone(),
        readout: Some(v1::Readout {
            rows: Some(rows),
            projection: Some(projection),
        }),
    }
}

fn wire_question(question: &JointQuestion) -> v1::JointQuestion {
    let wire = |span: &std::ops::Range<u32>| v1::TokenSpan {
        start: span.start,
        end: span.end,
    };
    v1::JointQuestion {
        r#type: question.kind,
        span: Some(wire(&question.span)),
        options: question.options.iter().map(wire).collect(),
    }
}
