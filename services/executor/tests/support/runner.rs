//! A runner that plays a script.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_executor::{
    engine::{
        DeviceIdentity, EngineError, ForwardObserver, ForwardOutput, ForwardPlan, KernelSpan, LoadProgress,
        OutputRow, SegmentDone,
    },
    runner::{AssetFile, LoadError, LoadedModel, Loader, ModelLimits, Runner, ServedModel},
};
use deltagate_kernels_api::{
    BindingReport, BindingState, FamilyBinding, KernelFamily, Preference, Preferences,
};
use deltagate_proto::v1;
use parking_lot::{Condvar, Mutex};

/// What one forward pass does at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    Answers,
    GivesNan,
    GivesShortRow,
    FailsInKernel,
    Panics,
}

/// What the runner does, changeable while it runs.
pub struct Script {
    pub ending: Mutex<Ending>,
    pub segments: AtomicUsize,
    pub segment_time: Mutex<Duration>,
    pub load_fails: Mutex<bool>,
    /// Families that do not bind at load.
    pub unbound: Mutex<Vec<KernelFamily>>,
    pub assets: Mutex<Vec<AssetFile>>,
    /// Passes that were started.
    pub started: AtomicUsize,
    /// Segments that were finished, over all passes.
    pub finished_segments: AtomicUsize,
    /// Fingerprint in force and first token of each pass that ran to its end, in order.
    pub ran: Mutex<Vec<(String, u32)>>,
    gates: Gates,
}

/// Holds the device before loading, or before each segment.
#[derive(Default)]
struct Gates {
    closed: Mutex<(bool, bool)>,
    opened: Condvar,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            ending: Mutex::default(),
            segments: AtomicUsize::new(2),
            segment_time: Mutex::default(),
            load_fails: Mutex::default(),
            unbound: Mutex::default(),
            assets: Mutex::default(),
            started: AtomicUsize::default(),
            finished_segments: AtomicUsize::default(),
            ran: Mutex::default(),
            gates: Gates::default(),
        }
    }
}

impl Script {
    pub fn hold_loading(&self) {
        self.gates.closed.lock().0 = true;
    }

    pub fn hold_device(&self) {
        self.gates.closed.lock().1 = true;
    }

    pub fn let_go(&self) {
        *self.gates.closed.lock() = (false, false);
        self.gates.opened.notify_all();
    }

    fn wait(&self, held: fn(&(bool, bool)) -> bool) {
        let mut closed = self.gates.closed.lock();
        while held(&closed) {
            self.gates.opened.wait(&mut closed);
        }
    }

    pub fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    pub fn ran_tokens(&self) -> Vec<u32> {
        self.ran.lock().iter().map(|(_, token)| *token).collect()
    }
}

pub const LIMITS: ModelLimits = ModelLimits {
    max_tokens: 600,
    vocab_size: 1_000,
    hidden_size: 2,
    output_embedding: true,
    decision_head_rows: 0,
    joint_head: false,
};

pub fn loader(script: Arc<Script>) -> Loader {
    Box::new(move |progress| {
        progress(LoadProgress {
            done_bytes: 1,
            total_bytes: 2,
        });
        script.wait(|held| held.0);
        if *script.load_fails.lock() {
            return Err(LoadError::NoFamily);
        }
        let info = v1::ModelInfo {
            name: "scripted".to_owned(),
            max_tokens: 600,
            ..Default::default()
        };
        let assets = script.assets.lock().clone();
        let served = ServedModel {
            info,
            card_json: "{\"name\":\"scripted\"}".to_owned(),
            assets,
            limits: LIMITS,
        };
        let unbound = script.unbound.lock().clone();
        let runner = ScriptedRunner {
            report: report("first", &unbound),
            name: "first".to_owned(),
            script,
        };
        Ok(LoadedModel {
            runner: Box::new(runner),
            served,
        })
    })
}

fn report(backend: &str, unbound: &[KernelFamily]) -> BindingReport {
    let bindings = KernelFamily::ALL.into_iter().map(|family| {
        let bound = !unbound.contains(&family);
        FamilyBinding {
            family,
            state: if bound {
                BindingState::Bound
            } else {
                BindingState::Missing
            },
            backend: if bound { backend.to_owned() } else { String::new() },
            version: "1".to_owned(),
            source_digest: "d".to_owned(),
            preference: Preference::Auto,
            candidates: Vec::new(),
        }
    });
    BindingReport {
        bindings: bindings.collect(),
    }
}

struct ScriptedRunner {
    script: Arc<Script>,
    report: BindingReport,
    /// Of the bound delta-rule backend.
    name: String,
}

impl Runner for ScriptedRunner {
    fn device(&self) -> DeviceIdentity {
        DeviceIdentity {
            kind: "cpu".to_owned(),
            name: "scripted".to_owned(),
            compute_capability: String::new(),
            id: "host".to_owned(),
        }
    }

    fn report(&self) -> &BindingReport {
        &self.report
    }

    fn is_bound(&self) -> Result<(), Vec<String>> {
        let unbound: Vec<String> = self
            .report
            .bindings
            .iter()
            .filter(|binding| binding.state != BindingState::Bound)
            .map(|binding| format!("{} has no candidate", binding.family))
            .collect();
        if unbound.is_empty() { Ok(()) } else { Err(unbound) }
    }

    fn fingerprint(&self) -> String {
        format!("fingerprint-{}", self.name)
    }

    /// The backend named `broken` does not bind.
    fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError> {
        std::thread::sleep(Duration::from_millis(20));
        let wanted = preferences
            .get(KernelFamily::DeltaRule)
            .names()
            .first()
            .cloned()
            .unwrap_or_default();
        if wanted == "broken" {
            return Err(EngineError::NotBound {
                reasons: vec!["delta_rule: broken failed its probe".to_owned()],
            });
        }
        self.report = report(&wanted, &[]);
        self.name = wanted;
        Ok(())
    }

    fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError> {
        let begin = Instant::now();
        self.script.started.fetch_add(1, Ordering::SeqCst);
        let segments = self.script.segments.load(Ordering::Relaxed);
        for segment in 0..segments {
            let start = Instant::now();
            self.script.wait(|held| held.1);
            std::thread::sleep(*self.script.segment_time.lock());
            let end = Instant::now();
            let done = SegmentDone {
                sequence: 0,
                segment,
                segments,
                layers: segment * 4..segment * 4 + 4,
                start,
                end,
                kernels: vec![self.kernel(start, end)],
            };
            self.script.finished_segments.fetch_add(1, Ordering::Relaxed);
            if observer.segment(&done) == ControlFlow::Break(()) {
                return Err(EngineError::Cancelled);
            }
        }
        let value = match *self.script.ending.lock() {
            Ending::FailsInKernel => {
                return Err(EngineError::Kernel {
                    family: KernelFamily::Conv1d,
                    backend: "scripted".into(),
                    reason: "told to".into(),
                });
            }
            Ending::Panics => panic!("told to"),
            Ending::GivesNan => vec![1.0, f32::NAN],
            Ending::GivesShortRow => vec![1.0],
            Ending::Answers => vec![1.0, 2.0],
        };
        let sequences = plan.sequences.iter().map(|sequence| {
            let position = u32::try_from(sequence.token_ids.len() - 1).unwrap();
            vec![OutputRow {
                position,
                values: value.clone(),
            }]
        });
        let first_token = plan.sequences[0].token_ids[0];
        self.script.ran.lock().push((self.fingerprint(), first_token));
        let end = Instant::now();
        let kernels = vec![self.kernel(begin, end)];
        Ok(ForwardOutput {
            sequences: sequences.collect(),
            kernels,
            start: begin,
            end,
        })
    }
}

impl ScriptedRunner {
    fn kernel(&self, first_start: Instant, last_end: Instant) -> KernelSpan {
        KernelSpan {
            family: KernelFamily::DeltaRule,
            backend: self.name.as_str().into(),
            first_start,
            last_end,
            busy: Duration::from_micros(3),
            launches: 7,
        }
    }
}
