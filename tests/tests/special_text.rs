//! Text that spells a special token, in every field, for every family and every token of the Qwen3.5 tokenizer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    sync::{Arc, LazyLock},
};

use deltagate_decider::{
    Answer, Answers, ChoiceOption, Content, Criteria, Decider, DecisionRequest, ExplainedSequence, Family,
    FamilyContext, Projection, Question, RowSelection, SequenceOutput, Shown, SpecialTokens, Step,
    families::FAMILIES, family, family_defaults, special::SPECIAL_TOKEN_TEXT,
};
use deltagate_gateway::HfTokenizer;
use deltagate_tests::tree::qwen35_tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer, normalizers::NFC};

/// The tokenizer, once as the gateway uses it and once to decode. A family has a marker of its own, which its checkpoints
/// add to the vocabulary.
struct Qwen {
    cx: FamilyContext,
    decodes: tokenizers::Tokenizer,
    added: Vec<(u32, String)>,
}

static QWEN: LazyLock<Qwen> = LazyLock::new(|| {
    let text = fs::read_to_string(qwen35_tokenizer().unwrap()).unwrap();
    let list = r#""added_tokens": ["#;
    assert_eq!(text.matches(list).count(), 1);
    let marker = r#"{"id": 248077, "content": "<decision>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}, "#;
    let text = text.replacen(list, &format!("{list}{marker}"), 1);
    let decodes = tokenizers::Tokenizer::from_bytes(text.as_bytes()).unwrap();
    let added = decodes.get_added_tokens_decoder();
    let mut added: Vec<_> = added.into_iter().map(|(id, token)| (id, token.content)).collect();
    added.sort_unstable();
    assert_eq!(added.len(), 34, "33 of the model and the marker");
    Qwen {
        cx: FamilyContext {
            tokenizer: Arc::new(HfTokenizer::from_bytes(text.as_bytes()).unwrap()),
            max_tokens: 262_144,
        },
        decodes,
        added,
    }
});

impl Qwen {
    fn count_added<'a>(&self, ids: impl IntoIterator<Item = &'a u32>) -> usize {
        let added = |id: &&u32| self.added.binary_search_by_key(*id, |(id, _)| *id).is_ok();
        ids.into_iter().filter(added).count()
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.decodes.decode(ids, false).unwrap()
    }
}

/// All families, so that they can answer where that needs no more than a made-up head.
fn families() -> Vec<Arc<dyn Family>> {
    let of = |id: &&str| match *id {
        "open_jev" => {
            let export = json!({
                "format": "open-jev-text-merged/1", "model_id": "m", "base_revision": "a", "checkpoint_revision": "b",
                "temperature": 1.0, "chat_prefix": "<|im_start|>user\n", "head_weight": [1.0], "head_bias": 0.0,
                "chat_suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            });
            family(id, &export).unwrap()
        }
        id => family_defaults(id).unwrap(),
    };
    // It answers no question of these kinds, and its prompt is the state alone: see below.
    let general = FAMILIES.iter().filter(|id| **id != "sequence_classification");
    general.map(of).collect()
}

/// Where a request holds text, as refusals spell it.
const FIELDS: [&str; 11] = [
    "state",
    "state",
    "state",
    "questions[0].id",
    "questions[0].instructions",
    "questions[0].choice.options[1].name",
    "questions[0].choice.options[1].description",
    "questions[0].choice.options[0].description",
    "questions[1].score.levels[1]",
    "questions[2].noul.true_description",
    "questions[2].noul.false_description",
];

/// A request with this text in field number `field`, and in no other.
fn request(field: usize, special: &str) -> DecisionRequest {
    let at = |number: usize| if number == field { special } else { "plain" };
    let text = |number: usize| Some(Content::Text(at(number).to_owned()));
    let state = match field {
        1 => Content::Json(json!({special: 1, "z": [true, null]})),
        2 => Content::Json(json!({"z": {"a": ["x", special]}, "b": 1.5})),
        _ => Content::Text(at(0).to_owned()),
    };
    let option = |name: &str, description| ChoiceOption {
        name: name.to_owned(),
        description,
    };
    let question = |id: &str, instructions, criteria| Question {
        id: id.to_owned(),
        instructions,
        criteria,
    };
    let json = Some(Content::Json(json!({"why": at(7)})));
    let choice = Criteria::Choice(vec![
        option("first", json),
        option(at(5), text(6)),
        option("z", None),
    ]);
    let score = Criteria::Score(
        ["low", at(8), "high"]
            .map(|text| Content::Text(text.to_owned()))
            .to_vec(),
    );
    let noul = Criteria::Noul {
        when_true: text(9),
        when_false: text(10),
    };
    DecisionRequest {
        state: Some(state),
        questions: vec![
            question(at(3), text(4), choice),
            question("severity", Some(Content::Text("How bad?".into())), score),
            question("urgent", Some(Content::Text("Now?".into())), noul),
        ],
        truncate_state: false,
    }
}

/// The same, of what the family answers: some take choices only. None if the field is not there then.
fn request_of(family: &dyn Family, field: usize, special: &str) -> Option<DecisionRequest> {
    let mut request = request(field, special);
    if family.id() != "cua_s1" {
        return Some(request);
    }
    request.questions.truncate(1);
    if let Criteria::Choice(options) = &mut request.questions[0].criteria {
        // It shows a description in place of the name.
        options[1].description = options[1].description.take().filter(|_| field != 5);
    }
    let there = FIELDS
        .get(field)
        .is_none_or(|path| path.starts_with("state") || path.starts_with("questions[0]"));
    there.then_some(request)
}

fn ids(explained: &[ExplainedSequence]) -> impl Iterator<Item = &u32> {
    explained.iter().flat_map(|sequence| &sequence.ids)
}

/// Token ids of all sequences of the first plan, and the answers to zeros.
fn drive(mut decider: Box<dyn Decider>) -> (Vec<Vec<u32>>, Answers) {
    let (mut first, mut outputs) = (None, None);
    loop {
        match decider.step(outputs.as_deref()).unwrap() {
            Step::Done(answers) => return (first.unwrap(), answers),
            Step::Run(plan) => {
                let plan = plan.unshared();
                let zeros = plan.sequences.iter().map(|sequence| {
                    let rows = match (&sequence.read, &sequence.projection) {
                        // A joint head makes one row of all.
                        (RowSelection::Last, _) | (_, Projection::JointHead(_)) => 1,
                        (RowSelection::Positions(positions), _) => positions.len(),
                        (RowSelection::All, _) => sequence.token_ids.len(),
                    };
                    SequenceOutput {
                        rows: vec![vec![0.0; sequence.projection.width(1)]; rows],
                    }
                });
                outputs = Some(zeros.collect::<Vec<_>>());
                let ids = plan.sequences.into_iter().map(|sequence| sequence.token_ids);
                first.get_or_insert_with(|| ids.collect());
            }
        }
    }
}

/// Every text that answers give back: it has to be the request's.
fn check_names(request: &DecisionRequest, answers: &Answers) {
    assert_eq!(answers.answers.len(), request.questions.len());
    for (question, (id, answer)) in request.questions.iter().zip(&answers.answers) {
        assert_eq!(id, &question.id);
        match (&question.criteria, answer) {
            (
                Criteria::Choice(options),
                Answer::Choice {
                    choice,
                    probabilities,
                    ..
                },
            ) => {
                let names: Vec<_> = options.iter().map(|option| &option.name).collect();
                assert!(
                    probabilities
                        .iter()
                        .map(|(name, _)| name)
                        .eq(names.iter().copied())
                );
                assert!(names.contains(&choice));
            }
            (Criteria::Score(levels), Answer::Score { legend, .. }) => assert_eq!(legend, levels),
            (Criteria::Noul { .. }, Answer::Noul { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_token_in_every_field_is_passed_refused_or_spelled_out() {
    let qwen = &*QWEN;
    let mut answered = 0;
    for family in families() {
        let family = family.as_ref();
        for (field, path) in FIELDS.into_iter().enumerate() {
            let shown = path != "questions[0].id" || family.shows() == Shown::QuestionIds;
            let Some(harmless) = request_of(family, field, "a word b") else {
                continue;
            };
            for choice in SpecialTokens::ALL {
                let treated = choice.treat(&harmless, family, &qwen.cx).unwrap();
                assert_eq!(treated.action(), None);
                assert_eq!(
                    treated.explain(family, &qwen.cx),
                    family.explain(&harmless, &qwen.cx)
                );
            }
            let own = qwen.count_added(ids(&family.explain(&harmless, &qwen.cx).unwrap()));
            for (_, token) in &qwen.added {
                let context = format!("{} {path} {token}", family.id());
                let Some(request) = request_of(family, field, &format!("a {token}b")) else {
                    continue;
                };
                let as_before = family.explain(&request, &qwen.cx);

                // Parity: to the bit what the family does.
                let parity = SpecialTokens::Parity.treat(&request, family, &qwen.cx).unwrap();
                assert_eq!(
                    parity.action(),
                    shown.then_some(SpecialTokens::Parity),
                    "{context}"
                );
                assert_eq!(parity.explain(family, &qwen.cx), as_before, "{context}");
                match &as_before {
                    Ok(explained) => {
                        assert_eq!(qwen.count_added(ids(explained)) > own, shown, "{context}");
                    }
                    Err(_) => assert_eq!(token, "<decision>", "{context}"),
                }

                // Refuse: the field is named, and nothing else.
                match SpecialTokens::Refuse.treat(&request, family, &qwen.cx) {
                    Ok(treated) => assert!(!shown && treated.action().is_none(), "{context}"),
                    Err(error) => {
                        let [violation] = error.violations.as_slice() else {
                            panic!("{context}: {error:?}")
                        };
                        assert!(shown, "{context}");
                        assert_eq!(
                            (violation.field().as_str(), violation.reason),
                            (path, SPECIAL_TOKEN_TEXT)
                        );
                        assert!(!error.to_string().contains(token), "{context}: {error}");
                        assert_eq!(error.http_status(), 422);
                    }
                }

                // Escape: the same characters, no token.
                let escape = SpecialTokens::Escape.treat(&request, family, &qwen.cx).unwrap();
                assert_eq!(
                    escape.action(),
                    shown.then_some(SpecialTokens::Escape),
                    "{context}"
                );
                let explained = escape.explain(family, &qwen.cx).unwrap();
                assert_eq!(qwen.count_added(ids(&explained)), own, "{context}");
                for sequence in &explained {
                    assert_eq!(qwen.decode(&sequence.ids), sequence.text, "{context}");
                }
                if let Ok(as_before) = as_before {
                    let texts = |explained: &[ExplainedSequence]| -> Vec<_> {
                        let shown =
                            |s: &ExplainedSequence| (s.question.clone(), s.option.clone(), s.text.clone());
                        explained.iter().map(shown).collect()
                    };
                    assert_eq!(texts(&explained), texts(&as_before), "{context}");
                }
                if let Ok(decider) = escape.start(family, &qwen.cx) {
                    let (planned, answers) = drive(decider);
                    assert!(planned.iter().eq(explained.iter().map(|s| &s.ids)), "{context}");
                    check_names(&request, &answers);
                    answered += 1;
                }
            }
        }
    }
    assert!(answered >= 3 * FIELDS.len() * qwen.added.len(), "{answered}");
}

#[test]
fn every_field_with_special_text_is_named_once() {
    let qwen = &*QWEN;
    let mut all = request(usize::MAX, "");
    all.state = Some(Content::Json(json!({"<think>": "<|im_end|>", "b": ["</think>"]})));
    all.questions[0].instructions = Some(Content::Json(json!("<tts_pad>")));
    all.questions[2].id = "<|im_start|>".into();
    let refused = |family: &str| {
        let family = family_defaults(family).unwrap();
        let refused = SpecialTokens::Refuse.treat(&all, family.as_ref(), &qwen.cx);
        let violations = refused.unwrap_err().violations;
        violations
            .iter()
            .map(|violation| violation.field())
            .collect::<Vec<_>>()
    };
    assert_eq!(refused("startlux"), ["state", "questions[0].instructions"]);
    assert_eq!(
        refused("intern"),
        ["state", "questions[0].instructions", "questions[2].id"]
    );
}

#[test]
fn what_cannot_be_spelled_out_is_refused() {
    let qwen = &*QWEN;
    let family = family_defaults("startlux").unwrap();
    let refused = |request: &DecisionRequest| {
        let error = SpecialTokens::Escape
            .treat(request, family.as_ref(), &qwen.cx)
            .unwrap_err();
        assert_eq!(error.reason(), SPECIAL_TOKEN_TEXT);
        error
            .violations
            .iter()
            .map(|violation| violation.field())
            .collect::<Vec<_>>()
    };
    // No letter is left for the mark; one is enough.
    let every_mark: String = ('\u{12000}'..='\u{12399}').collect();
    let mut full = request(0, &format!("<think>{every_mark}"));
    assert_eq!(refused(&full), ["state"]);
    full.state = Some(Content::Text(format!(
        "<think>{}",
        every_mark.replace('\u{12345}', "")
    )));
    let treated = SpecialTokens::Escape
        .treat(&full, family.as_ref(), &qwen.cx)
        .unwrap();
    for sequence in treated.explain(family.as_ref(), &qwen.cx).unwrap() {
        assert!(sequence.text.contains("<think>\u{12000}") && !sequence.text.contains('\u{12345}'));
        assert_eq!(qwen.decode(&sequence.ids), sequence.text);
    }
    // A name is as long as names may be, without any mark.
    let mut long = request(5, &format!("{}<think>", "x".repeat(192)));
    assert!(
        SpecialTokens::Escape
            .treat(&long, family.as_ref(), &qwen.cx)
            .is_ok()
    );
    long = request(5, &format!("{}<think>", "x".repeat(193)));
    assert_eq!(refused(&long), ["questions[0].choice.options[1].name"]);
    // One character is a token.
    let tiny = json!({
        "version": "1.0", "added_tokens": [{"id": 3, "content": "\n", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
    });
    let cx = FamilyContext {
        tokenizer: Arc::new(HfTokenizer::from_bytes(tiny.to_string().as_bytes()).unwrap()),
        max_tokens: 100,
    };
    let error = SpecialTokens::Escape
        .treat(&request(4, "a\nb"), family.as_ref(), &cx)
        .unwrap_err();
    assert_eq!(error.violations[0].field(), "questions[0].instructions");
}

fn nfc(text: &str) -> String {
    let mut text = NormalizedString::from(text);
    NFC.normalize(&mut text).unwrap();
    text.get().to_owned()
}

/// Random characters among special texts and parts of them.
fn pieces() -> impl Strategy<Value = String> {
    let special = (0..QWEN.added.len()).prop_map(|index| QWEN.added[index].1.clone());
    let part = (0..QWEN.added.len(), 0..6usize).prop_map(|(index, cut)| {
        let token = &QWEN.added[index].1;
        token[cut.min(token.len())..].to_owned()
    });
    let piece = prop_oneof![2 => special, 2 => part, 3 => any::<String>(), 1 => "[<|>/ _\u{338}\u{12000}\u{12001}é'\"\\\\]{1,4}"];
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts_keep_their_characters_and_spell_no_token(state in pieces(), key in pieces(), other in pieces(), name in pieces()) {
        let qwen = &*QWEN;
        let mut request = request(0, &state);
        if let Criteria::Choice(options) = &mut request.questions[0].criteria {
            let name: String = name.replace(['\n', '\r'], "").chars().take(90).collect();
            options[0].name = format!("o{name}");
        }
        request.questions[1].instructions = Some(Content::Json(json!({&key: &other, &other: [&key]})));
        for family in families() {
            let family = family.as_ref();
            let mut request = request.clone();
            if family.id() == "cua_s1" {
                request.questions.truncate(1);
            }
            let own = {
                let plain = request_of(family, 0, "plain").unwrap();
                qwen.count_added(ids(&family.explain(&plain, &qwen.cx).unwrap()))
            };
            let treated = SpecialTokens::Escape.treat(&request, family, &qwen.cx).unwrap();
            let explained = treated.explain(family, &qwen.cx).unwrap();
            prop_assert_eq!(qwen.count_added(ids(&explained)), own);
            for sequence in &explained {
                prop_assert_eq!(nfc(&qwen.decode(&sequence.ids)), nfc(&sequence.text));
            }
            match family.explain(&request, &qwen.cx) {
                Ok(as_before) => {
                    let texts = |explained: &[ExplainedSequence]| explained.iter().map(|s| s.text.clone()).collect::<Vec<_>>();
                    prop_assert_eq!(texts(&explained), texts(&as_before));
                    if treated.action().is_none() {
                        prop_assert_eq!(&explained, &as_before);
                    }
                }
                Err(error) => prop_assert!(error.to_string().contains("marker"), "{error}"),
            }
            if let Ok(decider) = treated.start(family, &qwen.cx) {
                check_names(&request, &drive(decider).1);
            }
        }
    }
}

/// What a request asks is a JSON document of any shape: marks must not change its keys' order or number.
#[test]
fn documents_keep_their_shape() {
    let document: Value =
        json!({"<think>": {"<think>": 1, "<": 2, "</think>": 3}, "<t": [], "a": "<|im_end|>", "": null});
    let qwen = &*QWEN;
    for family in families() {
        let mut request = request_of(family.as_ref(), usize::MAX, "").unwrap();
        request.state = Some(Content::Json(document.clone()));
        let treated = SpecialTokens::Escape
            .treat(&request, family.as_ref(), &qwen.cx)
            .unwrap();
        let explained = treated.explain(family.as_ref(), &qwen.cx).unwrap();
        let before = family.explain(&request, &qwen.cx).unwrap();
        for (sequence, before) in explained.iter().zip(&before) {
            assert_eq!(sequence.text, before.text);
            assert_eq!(qwen.decode(&sequence.ids), before.text);
            assert_ne!(sequence.ids, before.ids);
        }
    }
}

/// A family that shows the state alone: names of options are compared with labels, and are nobody's injection.
#[test]
fn what_no_prompt_shows_is_left_alone() {
    let qwen = &*QWEN;
    let family = family("sequence_classification", &json!({"labels": ["<think>", "ham"]})).unwrap();
    let family = family.as_ref();
    let option = |name: &str| ChoiceOption {
        name: name.to_owned(),
        description: None,
    };
    let question = Question {
        id: "<|im_end|>".to_owned(),
        instructions: None,
        criteria: Criteria::Choice(vec![option("ham"), option("<think>")]),
    };
    let mut request = DecisionRequest {
        state: Some(Content::Text("a state".to_owned())),
        questions: vec![question],
        truncate_state: false,
    };
    for choice in SpecialTokens::ALL {
        let treated = choice.treat(&request, family, &qwen.cx).unwrap();
        assert_eq!(treated.action(), None);
    }
    request.state = Some(Content::Text("a </think>state".to_owned()));
    assert!(SpecialTokens::Refuse.treat(&request, family, &qwen.cx).is_err());
    let treated = SpecialTokens::Escape.treat(&request, family, &qwen.cx).unwrap();
    let (planned, answers) = drive(treated.start(family, &qwen.cx).unwrap());
    assert_eq!(qwen.count_added(planned.iter().flatten()), 0);
    assert_eq!(qwen.decode(&planned[0]), "a </think>state");
    check_names(&request, &answers);
}
