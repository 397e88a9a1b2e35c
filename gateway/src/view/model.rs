//! Learns a model from its executor: the card from `Describe`, the tokenizer from `GetArtifact` by digest.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use deltagate_decider::{Family, FamilyContext, FamilyError};
use deltagate_proto::v1::{
    DescribeRequest, GetArtifactRequest, executor_service_client::ExecutorServiceClient,
};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tonic::{Status, transport::Channel};

use crate::tokenizer::{HfTokenizer, TokenizerError};

/// A model as the gateway needs it.
pub struct Model {
    /// Its served name.
    pub name: String,
    /// Digest of the whole model, as in the capability snapshot.
    pub digest: String,
    /// Its decider family.
    pub family: Arc<dyn Family>,
    /// Its tokenizer, whose digest was checked.
    pub tokenizer: Arc<HfTokenizer>,
    /// Longest sequence in tokens.
    pub max_tokens: usize,
}

/// The part of a model card that the gateway reads. Other keys belong to other readers.
#[derive(Deserialize)]
struct Card {
    family: Option<String>,
    max_tokens: usize,
    #[serde(default)]
    family_config: serde_json::Value,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModelError {
    #[error("executor could not be asked: {:?}", .0.code())]
    Call(#[from] Box<Status>),
    #[error("executor describes no model")]
    NoModel,
    #[error("executor describes another model than the registry")]
    OtherModel,
    #[error("model card cannot be read")]
    Card(#[source] serde_json::Error),
    #[error("model names no decider family")]
    NoFamily,
    #[error("decider family is not usable: {0}")]
    Family(#[from] FamilyError),
    #[error("model has no tokenizer.json")]
    NoTokenizer,
    #[error("asset is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("asset does not have the digest it was asked by")]
    DigestMismatch,
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("loading was interrupted")]
    Interrupted,
    #[error("executor does not answer in time")]
    Late,
}

impl From<Status> for ModelError {
    fn from(status: Status) -> Self {
        Self::Call(Box::new(status))
    }
}

/// Bounds one step of loading: an executor that hangs here is asked again.
async fn in_time<F: Future>(step: F) -> Result<F::Output, ModelError> {
    tokio::time::timeout(Duration::from_secs(5), step)
        .await
        .map_err(|_| ModelError::Late)
}

/// Loads the model with this digest.
pub(super) async fn load_model(
    channel: Channel,
    digest: &str,
    assets: &AssetCache,
) -> Result<Model, ModelError> {
    let mut client = ExecutorServiceClient::new(channel);
    let described = in_time(client.describe(DescribeRequest {})).await??.into_inner();
    let info = described
        .snapshot
        .and_then(|snapshot| snapshot.model)
        .ok_or(ModelError::NoModel)?;
    if info.digest != digest {
        return Err(ModelError::OtherModel);
    }
    let card: Card = serde_json::from_str(&described.model_card_json).map_err(ModelError::Card)?;
    let family_id = card.family.ok_or(ModelError::NoFamily)?;
    let family = deltagate_decider::family(&family_id, &card.family_config)?;
    let artifact = described
        .artifacts
        .into_iter()
        .find(|artifact| artifact.name == "tokenizer.json")
        .ok_or(ModelError::NoTokenizer)?;
    let tokenizer = assets.tokenizer(&mut client, &artifact.sha256).await?;
    let cx = FamilyContext {
        tokenizer: Arc::<HfTokenizer>::clone(&tokenizer),
        max_tokens: card.max_tokens,
    };
    family.check(&cx)?;
    Ok(Model {
        name: info.name,
        digest: info.digest,
        family,
        tokenizer,
        max_tokens: card.max_tokens,
    })
}

/// Tokenizers by digest. A few are kept, so that a restarted executor costs no second download.
pub(super) struct AssetCache {
    max_bytes: u64,
    kept: Mutex<VecDeque<(String, Arc<HfTokenizer>)>>,
}

const KEPT_TOKENIZERS: usize = 4;

impl AssetCache {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            kept: Mutex::default(),
        }
    }

    async fn tokenizer(
        &self,
        client: &mut ExecutorServiceClient<Channel>,
        sha256: &str,
    ) -> Result<Arc<HfTokenizer>, ModelError> {
        if let Some((_, tokenizer)) = self.kept.lock().iter().find(|(digest, _)| digest == sha256) {
            return Ok(Arc::clone(tokenizer));
        }
        let bytes = self.fetch(client, sha256).await?;
        let parsed = tokio::task::spawn_blocking(move || HfTokenizer::from_bytes(&bytes))
            .await
            .map_err(|_| ModelError::Interrupted)??;
        let tokenizer = Arc::new(parsed);
        let mut kept = self.kept.lock();
        kept.push_back((sha256.to_owned(), Arc::clone(&tokenizer)));
        if kept.len() > KEPT_TOKENIZERS {
            kept.pop_front();
        }
        Ok(tokenizer)
    }

    async fn fetch(
        &self,
        client: &mut ExecutorServiceClient<Channel>,
        sha256: &str,
    ) -> Result<Vec<u8>, ModelError> {
        let request = GetArtifactRequest {
            sha256: sha256.to_owned(),
        };
        let mut stream = in_time(client.get_artifact(request)).await??.into_inner();
        let mut bytes = Vec::new();
        let mut hash = Sha256::new();
        while let Some(piece) = in_time(stream.message()).await?? {
            if (bytes.len() + piece.chunk.len()) as u64 > self.max_bytes {
                return Err(ModelError::TooLarge {
                    limit: self.max_bytes,
                });
            }
            hash.update(&piece.chunk);
            bytes.extend_from_slice(&piece.chunk);
        }
        // A short read shows here too: its digest is another.
        if hex::encode(hash.finalize()) != sha256.to_ascii_lowercase() {
            return Err(ModelError::DigestMismatch);
        }
        Ok(bytes)
    }
}
