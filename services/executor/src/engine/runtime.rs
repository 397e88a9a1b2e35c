//! The engine of one memory space.

use std::{ops::ControlFlow, time::Instant};

use deltagate_checkpoint::ModelConfig;
use deltagate_kernels_api::{BindingReport, KernelFamily, OpError, Preferences};

use super::{
    DeviceIdentity, EngineError, EngineSettings, ForwardObserver, ForwardOutput, ForwardPlan, LayerPlan,
    LoadProgress, OutputRow, Runtime, Segment, SegmentDone, SequencePlan, TensorSource,
    binding::Bound,
    clock::Clock,
    device::Device,
    plan::{Tables, validate},
    probing::{Probed, note_refused, refusals},
    segment::{Calls, Pass, Sizes},
    weights::{self, ModelWeights},
};

pub(super) struct ModelRuntime<D: Device> {
    device: D,
    config: ModelConfig,
    settings: EngineSettings,
    weights: ModelWeights<D::Space>,
    tables: Tables,
    plan: LayerPlan,
    sizes: Sizes,
    probed: Probed,
    /// What is preferred now; the binding follows from it.
    preferences: Preferences,
    report: BindingReport,
    bound: Option<Bound<D::Space>>,
}

impl<D: Device> ModelRuntime<D> {
    pub(super) fn load(
        device: D,
        source: &dyn TensorSource,
        settings: &EngineSettings,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let config = source.config().clone();
        let weights = weights::load(&device, source, progress)?;
        let head = source.decision_head().map_err(|reason| EngineError::Tensor {
            name: "decision head".to_owned(),
            reason,
        })?;
        let tables = Tables {
            output_embedding: weights.output_embedding.as_ref().map_or(0, |_| config.vocab_size),
            decision_head: head.and_then(|head| head.shape.first().copied()).unwrap_or(0),
            joint_head: weights.joint_head.is_some(),
        };
        let mut probed = Probed::default();
        probed.probe(KernelFamily::ALL, device.candidates(), settings.probe_timeout);
        let report = probed.negotiate(&settings.preferences);
        let bound = Bound::new(&report, device.candidates());
        Ok(Self {
            plan: LayerPlan::new(&config),
            sizes: Sizes::new(&config),
            preferences: settings.preferences.clone(),
            settings: settings.clone(),
            device,
            config,
            weights,
            tables,
            probed,
            report,
            bound,
        })
    }

    /// Runs one segment and tells the observer.
    fn segment(
        &self,
        bound: &Bound<D::Space>,
        pass: &mut Pass<'_, D::Space>,
        segment: &Segment,
    ) -> Result<(Clock, Instant, Instant), EngineError>
    where
        D: Sync,
    {
        let calls = &self.plan.calls()[segment.calls.clone()];
        let start = Instant::now();
        let mut run = Calls {
            calls,
            pass,
            bound,
            weights: &self.weights,
            sizes: self.sizes,
            clock: Clock::default(),
            ran: 0,
            failed: None,
        };
        let launched = self.device.enter(|| bound.launch.launch(&mut run));
        let end = Instant::now();
        let launched = launched.and_then(|()| {
            if run.ran == calls.len() {
                return Ok(());
            }
            Err(OpError::Device(format!(
                "{} of {} calls were launched",
                run.ran,
                calls.len()
            )))
        });
        launched.map_err(|error| match error {
            OpError::DeviceLost(reason) => EngineError::Poisoned { reason },
            error => {
                let family = run.failed.unwrap_or(KernelFamily::Launch);
                EngineError::Kernel {
                    family,
                    backend: bound.name(family).to_string(),
                    reason: error.to_string(),
                }
            }
        })?;
        let mut clock = run.clock;
        let own = (end - start).saturating_sub(clock.busy());
        clock.add(KernelFamily::Launch, start, end, own, 1);
        Ok((clock, start, end))
    }

    /// Runs one sequence.
    fn sequence(
        &self,
        index: usize,
        sequence: &SequencePlan,
        causal: bool,
        totals: &mut Clock,
        observer: &mut dyn ForwardObserver,
    ) -> Result<Vec<OutputRow>, EngineError>
    where
        D: Sync,
    {
        let bound = self.bound.as_ref().ok_or_else(|| EngineError::NotBound {
            reasons: refusals(&self.report),
        })?;
        let EngineSettings {
            segment_tokens,
            max_segments,
            ..
        } = self.settings;
        let segments = self
            .plan
            .segments(sequence.token_ids.len(), segment_tokens, max_segments);
        let mut pass = Pass::new(sequence, causal);
        for (number, segment) in segments.iter().enumerate() {
            let (clock, start, end) = self.segment(bound, &mut pass, segment)?;
            totals.merge(&clock);
            let event = SegmentDone {
                sequence: index,
                segment: number,
                segments: segments.len(),
                layers: segment.layers.clone(),
                start,
                end,
                kernels: clock.spans(|family| bound.name(family)),
            };
            if observer.segment(&event) == ControlFlow::Break(()) {
                return Err(EngineError::Cancelled);
            }
        }
        self.screened(index, sequence, pass, bound)
    }

    /// The rows of a readout: as many as asked for, every value finite.
    fn screened(
        &self,
        index: usize,
        sequence: &SequencePlan,
        pass: Pass<'_, D::Space>,
        bound: &Bound<D::Space>,
    ) -> Result<Vec<OutputRow>, EngineError> {
        let positions = sequence.answered();
        let width = sequence.projection.width(self.config.hidden_size);
        let rows = pass.into_rows().unwrap_or_default();
        if rows.len() != positions.len() || rows.iter().any(|row| row.len() != width) {
            let family = KernelFamily::Readout;
            let reason = "the readout has another shape than asked for".to_owned();
            return Err(EngineError::Kernel {
                family,
                backend: bound.name(family).to_string(),
                reason,
            });
        }
        let rows = positions.into_iter().zip(rows).map(|(position, values)| {
            if values.iter().all(|value| value.is_finite()) {
                Ok(OutputRow { position, values })
            } else {
                Err(EngineError::NotFinite {
                    sequence: index,
                    position,
                })
            }
        });
        rows.collect()
    }
}

impl<D: Device + Sync> Runtime for ModelRuntime<D> {
    fn device(&self) -> DeviceIdentity {
        self.device.identity()
    }

    fn report(&self) -> &BindingReport {
        &self.report
    }

    fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError> {
        let changed = |family: &KernelFamily| self.preferences.get(*family) != preferences.get(*family);
        let mut probed = self.probed.clone();
        let families = KernelFamily::ALL.into_iter().filter(changed);
        probed.probe(families, self.device.candidates(), self.settings.probe_timeout);
        let report = probed.negotiate(preferences);
        let Some(bound) = Bound::new(&report, self.device.candidates()) else {
            note_refused(&mut self.report, &report);
            return Err(EngineError::NotBound {
                reasons: refusals(&report),
            });
        };
        self.bound = Some(bound);
        self.report = report;
        self.probed = probed;
        self.preferences = preferences.clone();
        Ok(())
    }

    fn is_bound(&self) -> Result<(), Vec<String>> {
        match self.bound {
            Some(_) => Ok(()),
            None => Err(refusals(&self.report)),
        }
    }

    fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError> {
        self.is_bound()
            .map_err(|reasons| EngineError::NotBound { reasons })?;
        validate(plan, &self.config, self.tables)?;
        let start = Instant::now();
        let mut totals = Clock::default();
        let causal = !plan.noncausal_full_attention;
        let mut sequences = Vec::with_capacity(plan.sequences.len());
        for (index, sequence) in plan.sequences.iter().enumerate() {
            sequences.push(self.sequence(index, sequence, causal, &mut totals, observer)?);
        }
        let end = Instant::now();
        let kernels = match &self.bound {
            Some(bound) => totals.spans(|family| bound.name(family)),
            None => Vec::new(),
        };
        Ok(ForwardOutput {
            sequences,
            kernels,
            start,
            end,
        })
    }
}
