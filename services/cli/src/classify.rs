//! `classify`: ask a running gateway for a decision.

use std::process::ExitCode;

use deltagate_decider::{ChoiceOption, Content, Criteria, DecisionRequest, Question};
use deltagate_mesh::ServiceError;
use deltagate_proto::v1::{
    self as pb, classifier_service_client::ClassifierServiceClient, classify_stream_response::Event,
};
use serde::Serialize;

use crate::{
    answers::{self, ResponseDocument},
    args::ClassifyArgs,
    body, config,
    output::{Failure, Output},
};

#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum StreamDocument {
    Accepted {
        request_id: String,
        sequences: u32,
        input_tokens: u64,
    },
    Segment {
        step: u32,
        sequence: u32,
        segment: u32,
        segments: u32,
        first_layer: u32,
        end_layer: u32,
        elapsed_ms: f64,
    },
}

pub(crate) async fn run(
    args: ClassifyArgs,
    sources: &config::Sources,
    output: Output,
) -> Result<ExitCode, Failure> {
    let config = sources.load(&[])?.value;
    let endpoint = config::gateway_endpoint(args.endpoint.clone(), &config);
    let request = request(&args)?;
    let mut client = ClassifierServiceClient::new(config::channel(&endpoint)?);
    let response = if args.stream {
        let mut request = tonic::Request::new(pb::ClassifyStreamRequest {
            request: Some(request),
        });
        request.set_timeout(args.timeout);
        let mut events = client
            .classify_stream(request)
            .await
            .map_err(refused)?
            .into_inner();
        let mut answers = None;
        while let Some(event) = events.message().await.map_err(refused)? {
            match event.event {
                Some(Event::Accepted(a)) => output.print(
                    &StreamDocument::Accepted {
                        request_id: a.request_id,
                        sequences: a.sequences,
                        input_tokens: a.input_tokens,
                    },
                    event_text,
                )?,
                Some(Event::Segment(s)) => output.print(
                    &StreamDocument::Segment {
                        step: s.step,
                        sequence: s.sequence,
                        segment: s.segment,
                        segments: s.segments,
                        first_layer: s.first_layer,
                        end_layer: s.end_layer,
                        elapsed_ms: answers::millis(s.elapsed.as_ref()),
                    },
                    event_text,
                )?,
                Some(Event::Answers(response)) => answers = Some(response),
                None => {}
            }
        }
        answers.ok_or_else(|| Failure::failed("the stream ended without answers"))?
    } else {
        let mut request = tonic::Request::new(request);
        request.set_timeout(args.timeout);
        client.classify(request).await.map_err(refused)?.into_inner()
    };
    output.print(&ResponseDocument::from(response), answers::text)?;
    Ok(ExitCode::SUCCESS)
}

/// A refusal, for a person: code, reason, message, and the fields at fault.
pub(crate) fn refused(status: tonic::Status) -> Failure {
    let error = ServiceError::from(&status);
    let fields: String = error
        .fields
        .iter()
        .map(|f| format!("\n  {}: {}", f.field, f.description))
        .collect();
    Failure::failed(format!(
        "{:?} {}: {}{fields}",
        status.code(),
        error.reason,
        status.message()
    ))
}

fn event_text(event: &StreamDocument) -> String {
    match event {
        StreamDocument::Accepted {
            request_id,
            sequences,
            input_tokens,
        } => {
            format!("accepted {request_id}: {sequences} sequences, {input_tokens} tokens")
        }
        StreamDocument::Segment {
            step,
            sequence,
            segment,
            segments,
            first_layer,
            end_layer,
            elapsed_ms,
        } => format!(
            "step {step} sequence {sequence} segment {}/{segments}: layers {first_layer}..{end_layer} at {elapsed_ms:.3} ms",
            segment + 1
        ),
    }
}

fn request(args: &ClassifyArgs) -> Result<pb::ClassifyRequest, Failure> {
    if let Some(file) = &args.request {
        let parsed = body::parse(&body::read(file)?)?;
        return Ok(body::to_proto(
            args.model.clone().or(parsed.model),
            parsed.request,
        ));
    }
    let state = match (&args.state, &args.state_json) {
        (Some(text), _) => Some(Content::Text(text.clone())),
        (None, Some(json)) => {
            let value =
                serde_json::from_str(json).map_err(|e| Failure::usage(format!("--state-json: {e}")))?;
            Some(Content::Json(value))
        }
        (None, None) => return Err(Failure::usage("--state, --state-json or --request is needed")),
    };
    let mut questions = Vec::new();
    let mut ask = |id: &str, text: &String, criteria| {
        questions.push(Question {
            id: id.to_owned(),
            instructions: Some(Content::Text(text.clone())),
            criteria,
        });
    };
    if let Some(text) = &args.choice {
        let option = |o: &String| match o.split_once('=') {
            Some((name, d)) => ChoiceOption {
                name: name.to_owned(),
                description: Some(Content::Text(d.to_owned())),
            },
            None => ChoiceOption {
                name: o.clone(),
                description: None,
            },
        };
        ask(
            "choice",
            text,
            Criteria::Choice(args.options.iter().map(option).collect()),
        );
    }
    if let Some(text) = &args.score {
        ask(
            "score",
            text,
            Criteria::Score(args.levels.iter().cloned().map(Content::Text).collect()),
        );
    }
    if let Some(text) = &args.yes_no {
        ask(
            "yes_no",
            text,
            Criteria::Noul {
                when_true: None,
                when_false: None,
            },
        );
    }
    if questions.is_empty() {
        return Err(Failure::usage(
            "--choice, --score, --yes-no or --request is needed",
        ));
    }
    Ok(body::to_proto(
        args.model.clone(),
        DecisionRequest {
            state,
            questions,
            truncate_state: false,
        },
    ))
}
