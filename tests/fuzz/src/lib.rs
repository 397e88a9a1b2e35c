//! What the fuzz targets do with their bytes. A target fails when something panics, or when a promise stated here does
//! not hold.

mod drive;
mod prepare;
mod weights;

// The two readers of requests that lie in the gateway are pure; its other half (a server) would only be built in vain.
#[path = "../../../gateway/src/grpc/decode.rs"]
mod decode;
#[path = "../../../gateway/src/http/peek.rs"]
mod peek;

use deltagate_decider::{Content, DecisionRequest, Limits, RequestError, systemone};
use deltagate_proto::v1;
use prost::Message;

pub use prepare::prepare;
pub use weights::safetensors_header;

/// The body of `POST /v1/systemone`: refused as a 400 or 422, or answered.
pub fn http_body(bytes: &[u8]) {
    let rules = drive::startlux().systemone_rules();
    let peeked = peek::model(bytes);
    match systemone::parse_body(bytes, &rules) {
        Err(error) => refused(&error, bytes),
        Ok(parsed) => {
            if let Ok(model) = peeked {
                assert_eq!(
                    model, parsed.model,
                    "the model looked for is not the one that was read"
                );
            }
            answered(&parsed.request);
        }
    }
}

/// The bytes of a `ClassifyRequest`: no message, refused, or answered.
pub fn proto_request(bytes: &[u8]) {
    let Ok(message) = v1::ClassifyRequest::decode(bytes) else {
        return;
    };
    match decode::decode(message, &Limits::default()) {
        Err(error) => refused(&error, bytes),
        Ok(request) => {
            assert!(request.state.as_ref().is_some_and(|state| !state.is_null()));
            answered(&request);
        }
    }
}

fn answered(request: &DecisionRequest) {
    // Two lengths: one that most requests fit, and one that few do.
    for max_tokens in [100_000, 400] {
        match drive::run(request, max_tokens, &mut |_| 0.0) {
            Ok(answers) => {
                let body = systemone::render_response("m", &answers, Default::default());
                let ids = body["answers"].as_object().map(|answers| answers.len());
                assert_eq!(ids, Some(request.questions.len()), "an answer is missing");
            }
            Err(error) => refused(&error, &[]),
        }
    }
}

/// A refusal says where and why, is the caller's fault, and quotes none of the long words of the request.
fn refused(error: &RequestError, bytes: &[u8]) {
    assert!(matches!(error.http_status(), 400 | 422));
    assert!(!error.violations.is_empty());
    let body = systemone::refusal_body(error).to_string();
    assert!(body.len() < 16 * 1024, "a refusal of {} bytes", body.len());
    const MARK: &[u8] = b"zqxjkv";
    if bytes.windows(MARK.len()).any(|window| window == MARK) {
        assert!(!body.contains("zqxjkv"), "the request is quoted");
    }
}

/// A text as content, or the JSON document that it is.
fn content(text: &str, json: bool) -> Content {
    let parsed =
        json.then(|| deltagate_decider::parse_json(text, &deltagate_decider::JsonLimits::STRICT).ok());
    parsed
        .flatten()
        .map_or_else(|| Content::Text(text.to_owned()), Content::Json)
}
