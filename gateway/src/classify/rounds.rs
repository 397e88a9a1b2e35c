//! The decider loop: step, run the plan, step with its outputs, until there are answers.
//!
//! All answers of a request come from one binding. When it changes between two runs, the request starts anew with
//! the new one; when only the permit ran out, the run is repeated with a fresh permit. Both within `swap_wait`.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use deltagate_decider::{
    Answers, Criteria, Decider, DeciderError, DecisionRequest, FamilyContext, Plan, SequenceOutput, Step,
};
use deltagate_mesh::{deadline::exceeded, error::ServiceError};
use opentelemetry::trace::TraceContextExt;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{
    call::{Call, Classified, Decode, Event, Events, Timings},
    classifier::Classifier,
    forward::Failure,
    progress::Stage,
    refusal::Refusal,
    resolve::resolve,
    special::Special,
};
use crate::{
    tokenizer::{BrakedTokenizer, RaiseOnDrop},
    view::{Avoid, Lease, Model, Obstacle, Wanted},
};

/// Up to this much text is rendered and tokenised on the reactor: about 1 ms.
const LIGHT_TEXT_BYTES: usize = 8 * 1024;

/// A binding that keeps changing is not chased for ever.
const MAX_BINDINGS: usize = 4;

/// One call on its way.
pub(super) struct Rounds<'a> {
    pub(super) classifier: &'a Classifier,
    pub(super) stage: &'a Stage,
    pub(super) request_id: String,
    pub(super) deadline: Instant,
    pub(super) events: Option<Events>,
    pub(super) timings: Timings,
    pub(super) accepted: bool,
    pub(super) avoid: Avoid,
    /// Why the last run failed, for the error when waiting is over.
    pub(super) last_failure: Option<ServiceError>,
    asked_model: Option<String>,
    decode: Option<Decode>,
    text_bytes: usize,
    arrived: Instant,
    patience: Duration,
    special: Special,
    gone: Arc<AtomicBool>,
    _raise: RaiseOnDrop,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(
        classifier: &'a Classifier,
        stage: &'a Stage,
        call: Call,
        events: Option<Events>,
    ) -> Self {
        let gone = Arc::new(AtomicBool::new(false));
        Self {
            classifier,
            stage,
            request_id: call.request_id,
            deadline: call.deadline,
            events,
            timings: Timings::default(),
            accepted: false,
            avoid: Avoid::default(),
            last_failure: None,
            asked_model: call.model,
            decode: Some(call.decode),
            text_bytes: call.text_bytes,
            arrived: call.arrived,
            patience: classifier.config.swap_wait,
            special: Special::new(classifier.config.special_tokens, &classifier.metrics),
            _raise: RaiseOnDrop(Arc::clone(&gone)),
            gone,
        }
    }

    pub(super) async fn classify(mut self) -> Result<Classified, Refusal> {
        let assessment = self.classifier.view.assess();
        let model = resolve(self.asked_model.as_deref(), &assessment, &self.classifier.config)?;
        drop(assessment);
        let loaded = self.model(Wanted::any(&model)).await?;
        let request = Arc::new(self.decode(&loaded).await?);
        let family = Arc::clone(&loaded.family);
        let (answers, fingerprint) = self.answer(&model, loaded, &request).await?;
        self.timings.total = self.arrived.elapsed();
        Ok(Classified {
            request_id: self.request_id,
            model,
            family,
            request,
            answers,
            fingerprint,
            timings: self.timings,
        })
    }

    async fn decode(&mut self, model: &Model) -> Result<DecisionRequest, Refusal> {
        let Some(decode) = self.decode.take() else {
            return Err(ServiceError::internal("INTERNAL", "the request was decoded twice").into());
        };
        let family = Arc::clone(&model.family);
        let request = self.off_reactor(move || decode(family.as_ref())).await??;
        // Every question, and every group of options, shows the state again.
        let shows: usize = request
            .questions
            .iter()
            .map(|question| match &question.criteria {
                Criteria::Choice(options) => 1 + options.len() / 26,
                Criteria::Score(_) | Criteria::Noul { .. } => 1,
            })
            .sum();
        self.text_bytes = self.text_bytes.saturating_mul(shows.max(1));
        Ok(request)
    }

    /// The request rules of the active bundle, in this process.
    fn ask_policy(&mut self, model: &str, request: &DecisionRequest, first: &Step) -> Result<(), Refusal> {
        self.stage.set("policy");
        let span = tracing::info_span!("policy", deltagate.policy.revision = tracing::field::Empty);
        let _entered = span.enter();
        let begun = Instant::now();
        let assessment = self.classifier.view.assess();
        let retry_after = self.classifier.config.limits.retry_after;
        let bundle = assessment.bundle.as_deref().ok_or_else(|| {
            let gone = Obstacle::away("POLICY_UNREACHABLE", "policy service was not heard of lately");
            assessment.mesh.first().unwrap_or(&gone).to_error(retry_after)
        })?;
        span.record("deltagate.policy.revision", bundle.revision());
        let verdict = bundle.allow(model, request, first);
        self.timings.policy += begun.elapsed();
        Ok(verdict?)
    }

    async fn answer(
        &mut self,
        model: &str,
        mut loaded: Arc<Model>,
        request: &Arc<DecisionRequest>,
    ) -> Result<(Answers, String), Refusal> {
        let family = loaded.family.id();
        for _ in 0..MAX_BINDINGS {
            self.timings.forget_forward();
            if let Some(answered) = self.answer_with(model, request, &loaded).await? {
                return Ok(answered);
            }
            tracing::info!("the binding changed during a request, which starts anew");
            loaded = self.model(Wanted::of(model, &loaded)).await?;
            // The request was read by the rules of one family and is not answered by another.
            if loaded.family.id() != family {
                break;
            }
        }
        let retry_after = self.classifier.config.limits.retry_after;
        Err(
            ServiceError::unavailable("FINGERPRINT_MISMATCH", "the binding keeps changing")
                .retry_after(retry_after)
                .into(),
        )
    }

    /// The model of an executor that can be used now. None is held: what runs the request is chosen run by run.
    async fn model(&mut self, wanted: Wanted<'_>) -> Result<Arc<Model>, Refusal> {
        Ok(self.acquire(wanted).await?.model)
    }

    /// `None`: the binding changed after something had been computed with the former one.
    async fn answer_with(
        &mut self,
        model: &str,
        request: &Arc<DecisionRequest>,
        loaded: &Arc<Model>,
    ) -> Result<Option<(Answers, String)>, Refusal> {
        // The binding whose outputs were used so far.
        let mut pinned: Option<String> = None;
        let mut number = 0;
        let wanted = Wanted::of(model, loaded);
        let (mut decider, mut step) = self.start(request, loaded).await?;
        self.ask_policy(model, request, &step)?;
        loop {
            let plan = match step {
                Step::Run(plan) => plan,
                Step::Done(answers) => {
                    self.tell_accepted(0, 0);
                    return self.done(answers, pinned, wanted).await.map(Some);
                }
            };
            self.check_size(&plan)?;
            let mut outputs = Vec::with_capacity(plan.sequences.len());
            while outputs.len() < plan.sequences.len() {
                let fingerprint = pinned.as_deref();
                let lease = self
                    .acquire(Wanted {
                        fingerprint,
                        ..wanted
                    })
                    .await?;
                let same = pinned.as_ref().is_none_or(|pinned| *pinned == lease.fingerprint);
                if !same || lease.model.digest != loaded.digest {
                    return Ok(None);
                }
                match self.run(&lease, &plan, number, outputs.len()).await {
                    Ok(more) => {
                        outputs.extend(more);
                        pinned = Some(lease.fingerprint);
                    }
                    Err(Failure::Final(refusal)) => return Err(*refusal),
                    Err(Failure::FreshPermit(error)) => {
                        self.avoid.permit(&lease);
                        self.last_failure = Some(*error);
                    }
                    Err(Failure::OtherExecutor(reason, error)) => {
                        self.avoid.executor(&lease, reason);
                        self.last_failure = Some(*error);
                    }
                }
            }
            (decider, step) = self.step(decider, outputs).await?;
            number += 1;
        }
    }

    /// Answers that needed no run (a choice with one option) name the binding that would have run.
    async fn done(
        &mut self,
        answers: Answers,
        pinned: Option<String>,
        wanted: Wanted<'_>,
    ) -> Result<(Answers, String), Refusal> {
        let fingerprint = match pinned {
            Some(fingerprint) => fingerprint,
            None => self.acquire(wanted).await?.fingerprint,
        };
        Ok((answers, fingerprint))
    }

    fn check_size(&self, plan: &Plan) -> Result<(), Refusal> {
        let (tokens, most) = (plan.input_tokens(), self.classifier.config.limits.max_step_tokens);
        if tokens > most {
            let message = format!("the prompts have {tokens} tokens together, at most {most} are allowed");
            return Err(Refusal::prompt_too_long(message));
        }
        Ok(())
    }

    /// What the next run needs. Waits for a binding or permit that is being replaced.
    async fn acquire(&mut self, wanted: Wanted<'_>) -> Result<Lease, Refusal> {
        let view = &self.classifier.view;
        let mut changes = view.changes();
        loop {
            changes.borrow_and_update();
            let obstacle = match view.assess().lease_for(wanted, &self.avoid) {
                Ok(lease) => return Ok(lease),
                Err(obstacle) => obstacle,
            };
            if !obstacle.is_passing() || self.patience.is_zero() {
                let retry_after = self.classifier.config.limits.retry_after;
                let error = self
                    .last_failure
                    .take()
                    .unwrap_or_else(|| obstacle.to_error(retry_after));
                return Err(error.into());
            }
            self.stage.set("binding");
            let begun = Instant::now();
            // Time alone changes the judgement too, so that it is made again even if nothing is heard.
            let tick = self.patience.min(Duration::from_millis(50));
            let _ = tokio::time::timeout(tick, changes.changed()).await;
            self.patience = self.patience.saturating_sub(begun.elapsed());
        }
    }

    async fn start(
        &mut self,
        request: &Arc<DecisionRequest>,
        model: &Arc<Model>,
    ) -> Result<(Box<dyn Decider>, Step), Refusal> {
        let tokenizer = BrakedTokenizer::new(
            Arc::clone(&model.tokenizer),
            self.deadline,
            Arc::clone(&self.gone),
        );
        let cx = FamilyContext {
            tokenizer: Arc::new(tokenizer),
            max_tokens: model.max_tokens,
        };
        let (family, request) = (Arc::clone(&model.family), Arc::clone(request));
        let special = self.special.clone();
        self.decide(move || {
            let mut decider = special.start(family.as_ref(), &request, &cx)?;
            let step = decider.step(None)?;
            Ok((decider, step))
        })
        .await
    }

    async fn step(
        &mut self,
        mut decider: Box<dyn Decider>,
        outputs: Vec<SequenceOutput>,
    ) -> Result<(Box<dyn Decider>, Step), Refusal> {
        self.decide(move || {
            let step = decider.step(Some(&outputs))?;
            Ok((decider, step))
        })
        .await
    }

    /// Runs a step of the decider: one that makes a plan tokenises, the last one answers.
    async fn decide(
        &mut self,
        work: impl FnOnce() -> Result<(Box<dyn Decider>, Step), DeciderError> + Send + 'static,
    ) -> Result<(Box<dyn Decider>, Step), Refusal> {
        self.stage.set("tokenize");
        let span = tracing::info_span!("tokenize");
        let begun = Instant::now();
        let inside = span.clone();
        let result = self.off_reactor(move || inside.in_scope(work)).await?;
        if matches!(result, Ok((_, Step::Done(_)))) {
            span.context().span().update_name("answer");
        } else {
            self.timings.tokenize += begun.elapsed();
        }
        result.map_err(|error| match error {
            DeciderError::Tokenize(_) if Instant::now() >= self.deadline => exceeded("tokenize").into(),
            error => error.into(),
        })
    }

    /// Runs work on text: on a blocking thread when there is much of it, a bounded number at a time.
    async fn off_reactor<R: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        if self.text_bytes <= LIGHT_TEXT_BYTES {
            return Ok(work());
        }
        let _turn = self.classifier.tokenizers.acquire().await;
        let joined = tokio::task::spawn_blocking(work).await;
        joined.map_err(|_| ServiceError::internal("PANICKED", "the request could not be answered").into())
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // A reader that left ends the call by dropping it; there is nobody to tell.
            let _ = events.send(event);
        }
    }
}
