//! The active policy bundle, whose request rules are evaluated in this process.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use deltagate_decider::{Criteria, DecisionRequest, Step};
use deltagate_mesh::error::ServiceError;
use deltagate_policy::{BundleEvaluator, KindCounts, RequestFacts};
use deltagate_proto::v1::Bundle;
use parking_lot::Mutex;

/// Callers do not say who they are: the gateway knows no credentials.
const ANONYMOUS: &str = "anonymous";

/// Evaluators that are kept for the next requests.
const KEPT_EVALUATORS: usize = 16;

/// An allowed shape stays allowed for so long: less than any decision of policy holds, so that rules which look at the
/// clock are late by no more than permits are. Refusals, and evaluations that fail, are never remembered.
const ALLOWED_FOR: Duration = Duration::from_secs(1);

/// Most shapes that are remembered.
const MOST_ALLOWED: usize = 4096;

/// Everything that the rules see of a request. The caller is the same for all.
#[derive(PartialEq, Eq, Hash)]
struct Shape {
    model: Box<str>,
    questions: u64,
    kinds: KindCounts,
    tokens: u64,
    sequences: Option<u64>,
}

/// A bundle whose content is that of its revision and whose rules compile.
pub struct ActiveBundle {
    name: String,
    revision: String,
    /// An evaluation needs an evaluator for itself. One that waits here has its caches warm.
    evaluators: Mutex<Vec<BundleEvaluator>>,
    first: Mutex<BundleEvaluator>,
    /// When each shape was last allowed. An evaluation takes some 100 µs, and most requests have a shape that was seen.
    allowed: Mutex<HashMap<Shape, Instant>>,
}

impl ActiveBundle {
    /// Checks and compiles. The error is for people.
    pub(super) fn compile(bundle: &Bundle) -> Result<Self, String> {
        let evaluator = BundleEvaluator::verified(bundle).map_err(|error| error.to_string())?;
        Ok(Self {
            name: evaluator.name().to_owned(),
            revision: evaluator.revision().to_owned(),
            evaluators: Mutex::default(),
            first: Mutex::new(evaluator),
            allowed: Mutex::default(),
        })
    }

    /// Its name, such as `cpu`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its revision.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether this request may be answered. The rules see its shape and its first step, never its text.
    pub fn allow(&self, model: &str, request: &DecisionRequest, first: &Step) -> Result<(), ServiceError> {
        let (tokens, sequences) = match first {
            Step::Run(plan) => (plan.input_tokens(), plan.sequences.len() as u64),
            Step::Done(_) => (0, 0),
        };
        let facts = RequestFacts {
            caller: ANONYMOUS,
            model,
            questions: request.questions.len() as u64,
            kinds: kinds(request),
            tokens,
            sequences: Some(sequences),
        };
        let shape = Shape {
            model: facts.model.into(),
            questions: facts.questions,
            kinds: facts.kinds,
            tokens: facts.tokens,
            sequences: facts.sequences,
        };
        // The age is of the evaluation's begin, so that a slow one does not prolong itself.
        let now = Instant::now();
        if self.allowed_lately(&shape, now) {
            return Ok(());
        }
        let kept = self.evaluators.lock().pop();
        let mut evaluator = kept.unwrap_or_else(|| self.first.lock().clone());
        let decision = evaluator.request(&facts);
        let mut evaluators = self.evaluators.lock();
        if evaluators.len() < KEPT_EVALUATORS {
            evaluators.push(evaluator);
        }
        drop(evaluators);
        if decision.allow {
            self.remember(shape, now);
            return Ok(());
        }
        let reasons = decision.reasons.join("; ");
        Err(ServiceError::permission_denied(
            "POLICY_DENIED",
            format!("policy does not allow this request: {reasons}"),
        )
        .with("bundle_revision", self.revision.clone()))
    }

    fn allowed_lately(&self, shape: &Shape, now: Instant) -> bool {
        let allowed = self.allowed.lock();
        allowed
            .get(shape)
            .is_some_and(|at| now.saturating_duration_since(*at) < ALLOWED_FOR)
    }

    fn remember(&self, shape: Shape, now: Instant) {
        let mut allowed = self.allowed.lock();
        if allowed.len() >= MOST_ALLOWED {
            allowed.retain(|_, at| now.saturating_duration_since(*at) < ALLOWED_FOR);
        }
        if allowed.len() < MOST_ALLOWED {
            allowed.insert(shape, now);
        }
    }
}

fn kinds(request: &DecisionRequest) -> KindCounts {
    request
        .questions
        .iter()
        .fold(KindCounts::default(), |mut counts, question| {
            match question.criteria {
                Criteria::Choice(_) => counts.choice += 1,
                Criteria::Score(_) => counts.score += 1,
                Criteria::Noul { .. } => counts.noul += 1,
            }
            counts
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use deltagate_decider::{Answers, Plan, PlannedSequence, Projection, Question, RowSelection, Usage};
    use deltagate_policy::BundleSource;

    use super::*;

    fn shipped() -> ActiveBundle {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/policies/cpu");
        let bundle = deltagate_policy::Bundle::load(&BundleSource::Folder(folder)).unwrap();
        ActiveBundle::compile(bundle.wire()).unwrap()
    }

    fn questions(count: usize) -> DecisionRequest {
        let question = |number: usize| Question {
            id: number.to_string(),
            instructions: None,
            criteria: Criteria::Noul {
                when_true: None,
                when_false: None,
            },
        };
        DecisionRequest {
            state: None,
            questions: (0..count).map(question).collect(),
            truncate_state: false,
        }
    }

    fn first_step(tokens: usize) -> Step {
        Step::Run(Plan {
            prefix: Vec::new(),
            sequences: vec![PlannedSequence {
                token_ids: vec![0; tokens],
                read: RowSelection::Last,
                projection: Projection::Hidden,
            }],
            noncausal_full_attention: false,
        })
    }

    fn nothing() -> Answers {
        Answers {
            answers: Vec::new(),
            usage: Usage::default(),
        }
    }

    #[test]
    fn an_allowed_shape_is_remembered_briefly_and_a_refused_one_never() {
        let bundle = shipped();
        let ask = |questions_: usize, tokens| bundle.allow("m", &questions(questions_), &first_step(tokens));
        let remembered = || bundle.allowed.lock().len();
        ask(1, 7).unwrap();
        ask(1, 7).unwrap();
        assert_eq!(remembered(), 1);
        // Every fact that the rules see is part of the shape.
        ask(2, 7).unwrap();
        ask(1, 8).unwrap();
        bundle.allow("n", &questions(1), &first_step(7)).unwrap();
        bundle.allow("m", &questions(1), &Step::Done(nothing())).unwrap();
        assert_eq!(remembered(), 5);
        for _ in 0..2 {
            ask(65, 7).unwrap_err();
        }
        assert_eq!(remembered(), 5);

        let now = Instant::now();
        let known = |shape: &Shape, at| bundle.allowed_lately(shape, at);
        let shape = Shape {
            model: "m".into(),
            questions: 1,
            kinds: kinds(&questions(1)),
            tokens: 7,
            sequences: Some(1),
        };
        assert!(known(&shape, now));
        assert!(!known(&shape, now + ALLOWED_FOR));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let bundle = shipped();
        let shape = |tokens| Shape {
            model: "m".into(),
            questions: 1,
            kinds: KindCounts::default(),
            tokens,
            sequences: None,
        };
        let now = Instant::now();
        for tokens in 0..2 * MOST_ALLOWED as u64 {
            bundle.remember(shape(tokens), now);
        }
        assert_eq!(bundle.allowed.lock().len(), MOST_ALLOWED);
        // Old ones make room.
        bundle.remember(shape(u64::MAX), now + ALLOWED_FOR);
        assert_eq!(bundle.allowed.lock().len(), 1);
    }
}
