//! What the device thread drives: the engine, seen through the few calls the service needs. Tests of the queue and
//! the life cycle drive a scripted one.

use std::path::PathBuf;

use deltagate_kernels_api::{BindingReport, Preferences};
use deltagate_proto::v1;

use crate::engine::{
    self, DeviceIdentity, Dtype, Engine, EngineError, ForwardObserver, ForwardOutput, ForwardPlan,
    LoadProgress,
};

/// A loaded model on a device. Owned and called by the device thread only.
pub trait Runner: Send {
    /// The device it runs on.
    fn device(&self) -> DeviceIdentity;
    /// What every kernel family is bound to, and every candidate's probe.
    fn report(&self) -> &BindingReport;
    /// Ok when every family of the layer plan is bound; else the reasons.
    fn is_bound(&self) -> Result<(), Vec<String>>;
    /// Hash of device kind, bindings, dtype and model digest, lower-case hex.
    fn fingerprint(&self) -> String;
    /// Probes other preferences aside and switches to them if every family binds; else the old binding stays.
    fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError>;
    /// Runs a plan; the observer is told after each segment and may stop it there.
    fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError>;
}

/// What a loader gives to the device thread.
pub struct LoadedModel {
    /// The model on its device.
    pub runner: Box<dyn Runner>,
    /// What others are told about it.
    pub served: ServedModel,
}

/// What others are told about the loaded model.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// As in the capability snapshot.
    pub info: v1::ModelInfo,
    /// The model card, as JSON.
    pub card_json: String,
    /// Files that `GetArtifact` serves.
    pub assets: Vec<AssetFile>,
    /// What a plan may ask of it.
    pub limits: ModelLimits,
}

/// A file of the model folder that callers may fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetFile {
    /// Its name, such as `tokenizer.json`.
    pub name: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// What a plan may ask of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Longest sequence, in tokens.
    pub max_tokens: usize,
    /// Token ids are less than this.
    pub vocab_size: usize,
    /// Values of a hidden row.
    pub hidden_size: usize,
    /// Whether there is an output embedding to project on.
    pub output_embedding: bool,
    /// Rows of the decision head; 0 if there is none.
    pub decision_head_rows: usize,
    /// Whether there is a joint head.
    pub joint_head: bool,
}

/// Loads the model on the device thread, telling its progress.
pub type Loader = Box<dyn FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<LoadedModel, LoadError> + Send>;

/// The model could not be loaded. It stays so until a restart.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The folder is refused.
    #[error("{0}")]
    Checkpoint(String),
    /// The folder holds a bare backbone: nothing says how to ask it.
    #[error("model folder declares no decider family")]
    NoFamily,
    /// The device or its kernels refused.
    #[error("engine did not load: {0}")]
    Engine(String),
    /// The card could not be written as JSON.
    #[error("model card cannot be encoded: {0}")]
    Card(String),
}

/// An engine as a runner, for the model with this digest.
pub fn of_engine(engine: Engine, dtype: Dtype, model_digest: String) -> Box<dyn Runner> {
    Box::new(EngineRunner {
        engine,
        dtype,
        model_digest,
    })
}

struct EngineRunner {
    engine: Engine,
    dtype: Dtype,
    model_digest: String,
}

impl Runner for EngineRunner {
    fn device(&self) -> DeviceIdentity {
        self.engine.device()
    }

    fn report(&self) -> &BindingReport {
        self.engine.report()
    }

    fn is_bound(&self) -> Result<(), Vec<String>> {
        self.engine.is_bound()
    }

    fn fingerprint(&self) -> String {
        engine::fingerprint(
            self.engine.report(),
            &self.engine.device(),
            self.dtype,
            &self.model_digest,
        )
    }

    fn rebind(&mut self, preferences: &Preferences) -> Result<(), EngineError> {
        self.engine.rebind(preferences)
    }

    fn forward(
        &mut self,
        plan: &ForwardPlan,
        observer: &mut dyn ForwardObserver,
    ) -> Result<ForwardOutput, EngineError> {
        self.engine.forward(plan, observer)
    }
}
