//! The active policy bundle, whose request rules are evaluated in this process.

use deltagate_decider::{Criteria, DecisionRequest, Step};
use deltagate_mesh::error::ServiceError;
use deltagate_policy::{BundleEvaluator, KindCounts, RequestFacts};
use deltagate_proto::v1::Bundle;
use parking_lot::Mutex;

/// Callers do not say who they are: the gateway knows no credentials.
const ANONYMOUS: &str = "anonymous";

/// Evaluators that are kept for the next requests.
const KEPT_EVALUATORS: usize = 16;

/// A bundle whose content is that of its revision and whose rules compile.
pub struct ActiveBundle {
    name: String,
    revision: String,
    /// An evaluation needs an evaluator for itself. One that waits here has its caches warm.
    evaluators: Mutex<Vec<BundleEvaluator>>,
    first: Mutex<BundleEvaluator>,
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
        let kept = self.evaluators.lock().pop();
        let mut evaluator = kept.unwrap_or_else(|| self.first.lock().clone());
        let decision = evaluator.request(&facts);
        let mut evaluators = self.evaluators.lock();
        if evaluators.len() < KEPT_EVALUATORS {
            evaluators.push(evaluator);
        }
        drop(evaluators);
        if decision.allow {
            return Ok(());
        }
        let reasons = decision.reasons.join("; ");
        Err(ServiceError::permission_denied(
            "POLICY_DENIED",
            format!("policy does not allow this request: {reasons}"),
        )
        .with("bundle_revision", self.revision.clone()))
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
