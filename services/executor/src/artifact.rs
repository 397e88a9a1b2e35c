//! `GetArtifact`: a file of the model folder, by the digest of its bytes.

use std::pin::Pin;

use deltagate_mesh::error::ServiceError;
use deltagate_proto::v1;
use futures::Stream;
use tokio::{fs::File, io::AsyncReadExt};
use tonic::Status;

use crate::{
    reason::Reason,
    runner::{AssetFile, ServedModel},
};

/// Size of a chunk: 1 MiB.
pub(crate) const CHUNK: usize = 1 << 20;

/// The stream of chunks.
pub(crate) type Chunks = Pin<Box<dyn Stream<Item = Result<v1::GetArtifactResponse, Status>> + Send>>;

/// Opens the asset with this digest.
pub(crate) async fn open(served: Option<&ServedModel>, sha256: &str) -> Result<Chunks, ServiceError> {
    let served = served.ok_or_else(|| Reason::bare("LOADING").refusal())?;
    let asset = served
        .assets
        .iter()
        .find(|asset| asset.sha256 == sha256)
        .ok_or_else(|| {
            ServiceError::not_found("ARTIFACT_NOT_FOUND", "no asset of the model has this digest")
        })?;
    let file = File::open(&asset.path).await.map_err(|_| unreadable(asset))?;
    Ok(chunks(asset.clone(), file))
}

fn chunks(asset: AssetFile, file: File) -> Chunks {
    let left = asset.size_bytes;
    Box::pin(futures::stream::try_unfold(
        (asset, file, left),
        |(asset, mut file, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
            let mut chunk = vec![0; size];
            // The file was measured when the model was opened; a shorter one now is another file.
            file.read_exact(&mut chunk)
                .await
                .map_err(|_| unreadable(&asset))?;
            let left = left - u64::try_from(size).unwrap_or(left);
            Ok(Some((
                v1::GetArtifactResponse { chunk: chunk.into() },
                (asset, file, left),
            )))
        },
    ))
}

fn unreadable(asset: &AssetFile) -> ServiceError {
    ServiceError::internal(
        "ARTIFACT_UNREADABLE",
        format!("asset {} cannot be read as it was loaded", asset.name),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::{StreamExt, TryStreamExt};
    use tonic::Code;

    use super::*;
    use crate::runner::ModelLimits;

    fn served(path: std::path::PathBuf, size_bytes: u64) -> ServedModel {
        let asset = AssetFile {
            name: "tokenizer.json".to_owned(),
            sha256: "a".repeat(64),
            size_bytes,
            path,
        };
        let limits = ModelLimits {
            max_tokens: 1,
            vocab_size: 1,
            hidden_size: 1,
            output_embedding: false,
            decision_head_rows: 0,
            joint_head: false,
        };
        ServedModel {
            info: v1::ModelInfo::default(),
            card_json: String::new(),
            assets: vec![asset],
            limits,
        }
    }

    #[tokio::test]
    async fn gives_the_bytes_in_chunks_of_at_most_one_mebibyte() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..CHUNK * 2 + 7).map(|i| (i % 251) as u8).collect();
        std::fs::write(dir.path().join("t"), &bytes).unwrap();
        let served = served(dir.path().join("t"), bytes.len() as u64);
        let chunks: Vec<_> = open(Some(&served), &"a".repeat(64))
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert_eq!(
            chunks.iter().map(|c| c.chunk.len()).collect::<Vec<_>>(),
            [CHUNK, CHUNK, 7]
        );
        assert_eq!(
            chunks.iter().flat_map(|c| c.chunk.to_vec()).collect::<Vec<_>>(),
            bytes
        );
    }

    #[tokio::test]
    async fn a_file_that_shrank_is_an_error_and_not_a_short_answer() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t"), b"123").unwrap();
        let mut chunks = open(Some(&served(dir.path().join("t"), 4)), &"a".repeat(64))
            .await
            .unwrap();
        assert_eq!(chunks.next().await.unwrap().unwrap_err().code(), Code::Internal);
    }

    #[tokio::test]
    async fn refusals_have_their_codes() {
        let served = served("/nonexistent".into(), 1);
        for (model, digest, code) in [
            (Some(&served), "A".repeat(64), Code::NotFound),
            (Some(&served), "../../etc/passwd".to_owned(), Code::NotFound),
            (Some(&served), String::new(), Code::NotFound),
            (None, "a".repeat(64), Code::Unavailable),
            (Some(&served), "b".repeat(64), Code::NotFound),
            (Some(&served), "a".repeat(64), Code::Internal),
        ] {
            assert_eq!(open(model, &digest).await.err().unwrap().code, code, "{digest}");
        }
    }
}
