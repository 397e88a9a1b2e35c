//! Requests that tests send, in both forms, and the bundle that allows them.

use std::fmt::Write;

use deltagate_proto::v1::{
    Bundle, BundleModule, ChoiceCriteria, ChoiceOption, ClassifyRequest, Content, NoulCriteria, Question,
    ScoreCriteria, content::Kind, question::Criteria,
};
use sha2::{Digest, Sha256};

pub(crate) fn text(value: &str) -> Content {
    Content {
        kind: Some(Kind::Text(value.into())),
    }
}

pub(crate) fn json(value: &str) -> Content {
    Content {
        kind: Some(Kind::Json(value.into())),
    }
}

pub(crate) fn choice(id: &str, options: &[&str]) -> Question {
    let options = options
        .iter()
        .map(|name| ChoiceOption {
            name: (*name).into(),
            description: None,
        })
        .collect();
    Question {
        id: id.into(),
        instructions: Some(text("Which?")),
        criteria: Some(Criteria::Choice(ChoiceCriteria { options })),
    }
}

pub(crate) fn ask(questions: Vec<Question>) -> ClassifyRequest {
    ClassifyRequest {
        model: String::new(),
        state: Some(text("some state")),
        questions,
        truncate_state: false,
    }
}

/// A small valid request.
pub(crate) fn small() -> ClassifyRequest {
    ask(vec![choice("q", &["a", "b", "c"])])
}

/// The same as an HTTP body.
pub(crate) const SMALL_BODY: &str = r#"{"state":"some state","questions":{"q":{"type":"choice","instructions":"Which?","criteria":{"a":null,"b":null,"c":null}}}}"#;

/// One question of each type.
pub(crate) fn all_types() -> ClassifyRequest {
    let mut team = choice("team", &["shipping", "billing", "other"]);
    if let Some(Criteria::Choice(choice)) = &mut team.criteria {
        choice.options[0].description = Some(text("Delivery and tracking"));
        choice.options[1].description = Some(json(r#"{"b": 1, "a": [1.50, null]}"#));
    }
    let severity = Question {
        id: "severity".into(),
        instructions: Some(text("How severe?")),
        criteria: Some(Criteria::Score(ScoreCriteria {
            levels: vec![text("low"), text("mid"), json(r#"{"l":"high"}"#)],
        })),
    };
    let urgent = Question {
        id: "urgent".into(),
        instructions: None,
        criteria: Some(Criteria::Noul(NoulCriteria {
            true_description: Some(text("today")),
            false_description: None,
        })),
    };
    ClassifyRequest {
        model: "mini".into(),
        state: Some(json(r#"{"ticket":"charged twice","amount":12.50}"#)),
        questions: vec![team, severity, urgent],
        truncate_state: false,
    }
}

/// The same as an HTTP body.
pub(crate) const ALL_TYPES_BODY: &str = r#"{"model":"mini","state":{"ticket":"charged twice","amount":12.50},"questions":{
  "team":{"type":"choice","instructions":"Which?","criteria":{"shipping":"Delivery and tracking","billing":{"b": 1, "a": [1.50, null]},"other":null}},
  "severity":{"type":"score","instructions":"How severe?","criteria":["low","mid",{"l":"high"}]},
  "urgent":{"type":"noul","criteria":{"true":"today"}}}}"#;

/// A choice of `count` options, which is a tournament beyond 26.
pub(crate) fn wide(count: usize) -> ClassifyRequest {
    let names: Vec<String> = (0..count).map(|index| format!("option {index}")).collect();
    ask(vec![choice(
        "q",
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )])
}

/// The same as an HTTP body.
pub(crate) fn wide_body(count: usize) -> String {
    let mut options = String::new();
    for index in 0..count {
        let comma = if index == 0 { "" } else { "," };
        write!(options, r#"{comma}"option {index}":null"#).unwrap();
    }
    format!(
        r#"{{"state":"some state","questions":{{"q":{{"type":"choice","instructions":"Which?","criteria":{{{options}}}}}}}}}"#
    )
}

/// A bundle with these request rules; its revision is that of its content.
pub(crate) fn bundle(request_rules: &str) -> Bundle {
    let module = |name: &str, rules: &str| BundleModule {
        name: format!("{name}.rego"),
        rego: format!("package deltagate.{name}\nimport rego.v1\n{rules}\n"),
    };
    let mut bundle = Bundle {
        name: "test".into(),
        revision: String::new(),
        modules: vec![
            module(
                "readiness",
                r#"decision := {"allow": false, "reasons": ["not asked"]}"#,
            ),
            module("request", request_rules),
        ],
        data_json: "{}".into(),
    };
    bundle.revision = revision(&bundle);
    bundle
}

/// A bundle that allows every request.
pub(crate) fn open_bundle() -> Bundle {
    bundle(r#"decision := {"allow": true, "reasons": []}"#)
}

/// SHA-256 over name, modules and data, each with its length in front.
fn revision(bundle: &Bundle) -> String {
    let mut hash = Sha256::new();
    let mut parts = vec![bundle.name.as_str()];
    for module in &bundle.modules {
        parts.extend([module.name.as_str(), module.rego.as_str()]);
    }
    parts.push(&bundle.data_json);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}
