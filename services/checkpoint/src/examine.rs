//! Looks at a whole folder and collects everything that is wrong with it.

use std::{fs, path::Path};

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    Asset, AttentionMode, Checkpoint, CheckpointError, Finding, ModelCard, ModelConfig, Problem, adapter,
    checkpoint::Opened,
    digest::FolderDigest,
    family::{self, Family},
    files, index, joint_head,
    layout::{self, Head},
    reader,
    side::Side,
    vocabulary,
};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
/// Files that are handed out. The first one belongs to the digest as well.
const ASSETS: [&str; 2] = [TOKENIZER, "tokenizer_config.json"];

/// What a folder is, and whether it would load.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// Whether [`Checkpoint::open`] and [`Checkpoint::check_values`] succeed, as they must to load it.
    pub would_load: bool,
    /// Card of the model, if the folder would load.
    pub card: Option<ModelCard>,
    /// Everything that stands in the way.
    pub findings: Vec<Finding>,
}

/// Looks at a folder, every weight included, without keeping it.
pub fn inspect(dir: &Path) -> Inspection {
    let examined = examine(dir).and_then(|checkpoint| match checkpoint.check_values() {
        Err(CheckpointError::Refused { findings, .. }) => Err(findings),
        _ => Ok(checkpoint),
    });
    match examined {
        Ok(checkpoint) => Inspection {
            would_load: true,
            card: Some(checkpoint.card().clone()),
            findings: Vec::new(),
        },
        Err(findings) => Inspection {
            would_load: false,
            card: None,
            findings,
        },
    }
}

/// The folder as a checkpoint, or at least one finding.
pub(crate) fn examine(dir: &Path) -> Result<Checkpoint, Vec<Finding>> {
    let is_dir = fs::metadata(dir)
        .map_err(|error| vec![Finding::file(".", Problem::Io(error))])?
        .is_dir();
    if !is_dir {
        let reason = "is not a folder".to_owned();
        return Err(vec![Finding::file(".", Problem::Key { reason })]);
    }
    let mut findings = Vec::new();
    let config = config(dir, &mut findings);
    let model = config.as_ref().map(|config| &config.model);
    let family = family::recognise(dir, config.as_ref(), &mut findings);
    let shards = index::open(dir, &mut findings);
    let head = family.as_ref().and_then(|family| family.decision_head);
    let own_file = family
        .as_ref()
        .and_then(|family| family.side.as_ref().map(|side| (side, family.name)));
    let side = own_file.and_then(|(side, name)| Side::open(dir, side, name, &mut findings));
    if let Some(side) = side
        .as_ref()
        .filter(|_| family.as_ref().is_some_and(|family| family.joint_head.is_some()))
    {
        joint_head::check_dtypes(side, &mut findings);
    }
    let beside = head.filter(|_| own_file.is_none()).zip(model);
    let beside = beside.map(|((name, rows), model)| (name, [rows, model.hidden_size]));
    let layout = layout::find(&shards, model, beside, &mut findings);
    let assets = assets(dir, family.as_ref(), config.as_ref(), &mut findings);
    if let (Some(family), Some(layout)) = (&family, &layout)
        && family.needs_output_embedding
        && layout.head == Head::Bare
        && !layout::is_lost(&shards, "lm_head.weight")
    {
        let file = shards.files.first().map_or(CONFIG, |(name, _)| name.as_str());
        findings.push(Finding::of(file, "lm_head.weight", Problem::MissingTensor));
    }
    let found = family.as_ref().and_then(|family| family.adapter.as_ref());
    let adapter = found.and_then(|found| adapter::open(dir, found, model, &mut findings));
    match (config, layout) {
        (Some(config), Some(layout)) if findings.is_empty() => {
            let opened = Opened {
                shards,
                layout,
                side,
                decision_head: head.map(|(name, _)| name),
                adapter,
                joint_head: family.as_ref().and_then(|family| family.joint_head),
            };
            let card = card(dir, config, family, &opened, assets);
            Ok(Checkpoint::new(dir, card, opened))
        }
        _ => Err(findings),
    }
}

/// `config.json`, when nothing is wrong with it.
pub(crate) struct Config {
    pub(crate) bytes: Vec<u8>,
    pub(crate) value: Value,
    pub(crate) model: ModelConfig,
}

fn config(dir: &Path, findings: &mut Vec<Finding>) -> Option<Config> {
    let (bytes, value) = match files::json(dir, CONFIG) {
        Ok(read) => read,
        Err(finding) => {
            findings.push(finding);
            return None;
        }
    };
    let (model, errors) = reader::read(&value);
    let complete = errors.is_empty();
    findings.extend(errors.into_iter().map(Finding::from));
    // Sizes of a refused config would only lead to findings about tensors that are as they should be.
    model
        .filter(|_| complete)
        .map(|model| Config { bytes, value, model })
}

fn assets(
    dir: &Path,
    family: Option<&Family>,
    config: Option<&Config>,
    findings: &mut Vec<Finding>,
) -> Vec<Asset> {
    let mut assets = Vec::new();
    for name in ASSETS {
        if !files::exists(dir, name) {
            if let Some(family) = family.filter(|family| family.needs_tokenizer && name == TOKENIZER) {
                findings.push(Finding::file(
                    name,
                    Problem::MissingFile {
                        needed_by: Some(family.name),
                    },
                ));
            }
            continue;
        }
        let bytes = match files::read(dir, name, files::MAX_ASSET_BYTES) {
            Ok(bytes) => bytes,
            Err(finding) => {
                findings.push(finding);
                continue;
            }
        };
        if let (Some(family), Some(config)) =
            (family.filter(|f| f.needs_tokenizer && name == TOKENIZER), config)
        {
            let expected = vocabulary::Expected {
                vocab_size: config.model.vocab_size,
                config: &config.value,
                tokens: &family.tokens,
            };
            vocabulary::check(name, &bytes, &expected, findings);
        }
        assets.push(Asset {
            name: name.to_owned(),
            sha256: hex::encode(Sha256::digest(&bytes)),
            size_bytes: bytes.len() as u64,
        });
    }
    assets
}

fn card(
    dir: &Path,
    config: Config,
    family: Option<Family>,
    opened: &Opened,
    assets: Vec<Asset>,
) -> ModelCard {
    let Opened {
        shards,
        layout,
        side,
        adapter,
        ..
    } = opened;
    let Config {
        bytes: config_bytes,
        model: config,
        ..
    } = config;
    let mut digest = FolderDigest::new();
    digest.part(CONFIG, &config_bytes);
    for (name, bytes) in family.iter().flat_map(|family| &family.files) {
        digest.part(name, bytes);
    }
    for asset in assets.iter().filter(|asset| asset.name == TOKENIZER) {
        digest.part(TOKENIZER, asset.sha256.as_bytes());
    }
    for (name, file) in &shards.files {
        digest.weights(name, file);
    }
    let (mut parameters, mut weight_bytes) = (layout.parameters, layout.weight_bytes);
    if let Some(side) = side {
        digest.weights(side.name, &side.file);
        for view in side.tensors() {
            parameters += view.elements() as u64;
            weight_bytes += view.bytes.len() as u64;
        }
    }
    if let Some(adapter) = adapter {
        digest.part(adapter.file(), adapter.bytes());
    }
    ModelCard {
        name: name(dir),
        digest: digest.finish(),
        max_tokens: u32::try_from(config.max_position_embeddings)
            .unwrap_or(u32::MAX)
            .min(
                family
                    .as_ref()
                    .and_then(|family| family.max_tokens)
                    .unwrap_or(u32::MAX),
            ),
        config,
        parameters,
        weight_bytes,
        attention: family
            .as_ref()
            .map_or(AttentionMode::Causal, |family| family.attention),
        joint_questions: family.as_ref().is_some_and(|family| family.joint_questions),
        release_date: family.as_ref().and_then(|family| family.release_date.clone()),
        family: family.as_ref().map(|family| family.name.to_owned()),
        family_config: family.map_or(serde_json::Value::Null, |family| family.config),
        assets,
    }
}

/// Name of the folder itself, also for `.` and for links.
fn name(dir: &Path) -> String {
    let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    named(dir)
        .or_else(|| dir.canonicalize().ok().and_then(|dir| named(&dir)))
        .unwrap_or_else(|| "model".to_owned())
}
