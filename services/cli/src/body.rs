//! A System-One body becomes a gRPC request, so that files written for HTTP can be asked over gRPC.

use std::{io::Read, path::Path};

use deltagate_decider::{Content, Criteria, DecisionRequest, systemone};
use deltagate_proto::v1::{self as pb, question};

use crate::output::Failure;

/// Largest file that is read.
const MAX_BYTES: u64 = 32 << 20;

/// Reads a file, or standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |e: std::io::Error| Failure::usage(format!("cannot read {}: {e}", path.display()));
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(fail)?;
    } else {
        std::fs::File::open(path)
            .and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(fail)?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!(
            "{} is larger than {MAX_BYTES} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}

/// Parses a System-One body by the general rules; the gateway holds it against its model's family.
pub(crate) fn parse(bytes: &[u8]) -> Result<systemone::SystemOneRequest, Failure> {
    parse_by(bytes, &systemone::Rules::default())
}

/// Parses a System-One body by a family's own rules.
pub(crate) fn parse_by(
    bytes: &[u8],
    rules: &systemone::Rules,
) -> Result<systemone::SystemOneRequest, Failure> {
    systemone::parse_body(bytes, rules).map_err(|e| Failure::usage(format!("request: {}", e.summary())))
}

/// The gRPC request that asks the same.
pub(crate) fn to_proto(model: Option<String>, request: DecisionRequest) -> pb::ClassifyRequest {
    pb::ClassifyRequest {
        model: model.unwrap_or_default(),
        state: request.state.map(content),
        truncate_state: request.truncate_state,
        questions: request
            .questions
            .into_iter()
            .map(|q| pb::Question {
                id: q.id,
                instructions: q.instructions.map(content),
                criteria: Some(match q.criteria {
                    Criteria::Choice(options) => question::Criteria::Choice(pb::ChoiceCriteria {
                        options: options
                            .into_iter()
                            .map(|o| pb::ChoiceOption {
                                name: o.name,
                                description: o.description.map(content),
                            })
                            .collect(),
                    }),
                    Criteria::Score(levels) => question::Criteria::Score(pb::ScoreCriteria {
                        levels: levels.into_iter().map(content).collect(),
                    }),
                    Criteria::Noul {
                        when_true,
                        when_false,
                    } => question::Criteria::Noul(pb::NoulCriteria {
                        true_description: when_true.map(content),
                        false_description: when_false.map(content),
                    }),
                }),
            })
            .collect(),
    }
}

/// Text or JSON, as the contract carries it.
pub(crate) fn content(content: Content) -> pb::Content {
    let kind = match content {
        Content::Text(text) => pb::content::Kind::Text(text),
        Content::Json(value) => pb::content::Kind::Json(value.to_string()),
    };
    pb::Content { kind: Some(kind) }
}
