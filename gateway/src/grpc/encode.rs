//! From answers to `ClassifyResponse`.

use deltagate_decider::{Answer, Content};
use deltagate_mesh::wire::duration;
use deltagate_proto::v1;

use crate::classify::{Classified, Timings};

/// Converts.
pub(super) fn encode(classified: Classified) -> v1::ClassifyResponse {
    let answers = classified
        .answers
        .answers
        .into_iter()
        .map(|(question_id, answer)| v1::Answer {
            question_id,
            answer: Some(encode_answer(answer)),
        })
        .collect();
    v1::ClassifyResponse {
        model: classified.model,
        answers,
        usage: Some(v1::Usage {
            input_tokens: classified.answers.usage.input_tokens,
            output_tokens: classified.answers.usage.output_tokens,
            truncated_tokens: classified.answers.usage.truncated_tokens,
        }),
        capability_fingerprint: classified.fingerprint,
        timings: Some(encode_timings(classified.timings)),
        request_id: classified.request_id,
    }
}

fn encode_answer(answer: Answer) -> v1::answer::Answer {
    match answer {
        Answer::Choice {
            choice,
            confidence,
            own_confidence,
            probabilities,
        } => {
            let probabilities = probabilities
                .into_iter()
                .map(|(name, probability)| v1::OptionProbability { name, probability })
                .collect();
            v1::answer::Answer::Choice(v1::ChoiceAnswer {
                choice,
                confidence,
                probabilities,
                own_confidence,
            })
        }
        Answer::Score {
            score,
            confidence,
            own_confidence,
            probabilities,
            level_fit,
            legend,
        } => {
            let fit = |level: usize| level_fit.as_ref().and_then(|fit| fit.get(level).copied());
            let probabilities = probabilities
                .into_iter()
                .zip(legend)
                .enumerate()
                .map(|(level, (probability, legend))| v1::LevelProbability {
                    level: u32::try_from(level).unwrap_or(u32::MAX),
                    probability,
                    legend: Some(encode_content(legend)),
                    fit: fit(level),
                })
                .collect();
            v1::answer::Answer::Score(v1::ScoreAnswer {
                score,
                confidence,
                probabilities,
                own_confidence,
            })
        }
        Answer::Noul { noul } => v1::answer::Answer::Noul(v1::NoulAnswer { noul }),
    }
}

fn encode_content(content: Content) -> v1::Content {
    let kind = match content {
        Content::Text(text) => v1::content::Kind::Text(text),
        Content::Json(value) => v1::content::Kind::Json(value.to_string()),
    };
    v1::Content { kind: Some(kind) }
}

fn encode_timings(timings: Timings) -> v1::Timings {
    v1::Timings {
        total: Some(duration(timings.total)),
        tokenize: Some(duration(timings.tokenize)),
        policy: Some(duration(timings.policy)),
        queue: Some(duration(timings.queue)),
        forward: Some(duration(timings.forward)),
        kernels: timings
            .kernels
            .into_iter()
            .map(|kernel| v1::KernelTime {
                family: kernel.family.into(),
                backend: kernel.backend,
                busy: Some(duration(kernel.busy)),
                launches: kernel.launches,
            })
            .collect(),
    }
}
