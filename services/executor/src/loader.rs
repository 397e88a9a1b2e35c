//! The loader of a real model: opens the folder, refuses what nobody could ask, and puts the engine on its device.

use std::path::Path;

use deltagate_checkpoint::{Checkpoint, ModelCard};
use deltagate_proto::v1;

use crate::{
    config::{EMBEDDED, ExecutorConfig},
    engine::{Dtype, Engine, EngineError, EngineSettings, LoadProgress},
    runner::{self, AssetFile, LoadError, LoadedModel, Loader, ModelLimits, ServedModel},
};

/// Loads what the configuration names.
pub(crate) fn of(config: &ExecutorConfig) -> Loader {
    let settings = config.engine();
    let model = config.model.clone();
    let name = config.model_name.clone();
    Box::new(move |progress| load(&model, name, &settings, progress))
}

fn load(
    model: &str,
    name: Option<String>,
    settings: &EngineSettings,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadedModel, LoadError> {
    let opened = if model == EMBEDDED {
        Checkpoint::embedded()
    } else {
        Checkpoint::open(Path::new(model))
    };
    let checkpoint = opened.map_err(|error| LoadError::Checkpoint(error.to_string()))?;
    let mut card = checkpoint.card().clone();
    if card.family.is_none() {
        return Err(LoadError::NoFamily);
    }
    card.name = name.unwrap_or(card.name);
    let served = served(&checkpoint, &card, settings.dtype)?;
    let engine =
        Engine::load(&checkpoint, settings, progress).map_err(|error| refusal(&checkpoint, &error))?;
    let runner = runner::of_engine(engine, settings.dtype, card.digest);
    Ok(LoadedModel { runner, served })
}

/// A weight that is no number is told as `check` tells it: every such tensor, by its name in its file.
fn refusal(checkpoint: &Checkpoint, error: &EngineError) -> LoadError {
    match (error, checkpoint.check_values()) {
        (EngineError::Tensor { .. }, Err(refused)) => LoadError::Checkpoint(refused.to_string()),
        _ => LoadError::Engine(error.to_string()),
    }
}

fn served(checkpoint: &Checkpoint, card: &ModelCard, dtype: Dtype) -> Result<ServedModel, LoadError> {
    let output_embedding = checkpoint
        .output_embedding()
        .map_err(|error| LoadError::Checkpoint(error.to_string()))?;
    let decision_head = checkpoint
        .decision_head()
        .map_err(|error| LoadError::Checkpoint(error.to_string()))?;
    let limits = ModelLimits {
        max_tokens: usize::try_from(card.max_tokens).unwrap_or(usize::MAX),
        vocab_size: card.config.vocab_size,
        hidden_size: card.config.hidden_size,
        output_embedding: output_embedding.is_some(),
        decision_head_rows: decision_head
            .and_then(|head| head.shape.first().copied())
            .unwrap_or(0),
        joint_head: checkpoint.joint_head().is_some(),
    };
    let assets = card.assets.iter().map(|asset| {
        let path = checkpoint
            .asset_path(&asset.sha256)
            .unwrap_or_else(|| checkpoint.dir().join(&asset.name));
        AssetFile {
            name: asset.name.clone(),
            sha256: asset.sha256.clone(),
            size_bytes: asset.size_bytes,
            path,
        }
    });
    let info = v1::ModelInfo {
        name: card.name.clone(),
        family: card.family.clone().unwrap_or_default(),
        digest: card.digest.clone(),
        max_tokens: card.max_tokens,
        parameters: card.parameters,
        dtype: dtype.as_str().to_owned(),
        release_date: card.release_date.clone().unwrap_or_default(),
    };
    let card_json = serde_json::to_string(card).map_err(|error| LoadError::Card(error.to_string()))?;
    Ok(ServedModel {
        info,
        card_json,
        assets: assets.collect(),
        limits,
    })
}
