//! `Forward` without the gateway: calling an executor directly gains nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, SystemTime};

use deltagate_proto::v1::{
    ExecutorPhase, ForwardRequest, ForwardResult, GetArtifactRequest, HiddenRow, LastRow,
    OutputEmbeddingRows, PermitClaims, Readout, RowPositions, Sequence, SignedPermit,
    executor_service_client::ExecutorServiceClient, forward_response::Event, readout,
};
use deltagate_tests::{
    calls::{self, reason},
    cluster::{Cluster, READY_WITHIN},
};
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::{Code, Status};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

fn plan(permit: Option<SignedPermit>, fingerprint: &str) -> ForwardRequest {
    ForwardRequest {
        permit,
        capability_fingerprint: fingerprint.to_owned(),
        sequences: vec![Sequence {
            token_ids: vec![32, 33, 34, 35],
            readout: Some(Readout {
                rows: Some(readout::Rows::Last(LastRow {})),
                projection: Some(readout::Projection::OutputEmbedding(OutputEmbeddingRows {
                    token_ids: vec![32, 33, 34],
                })),
            }),
        }],
        noncausal_full_attention: false,
        segment_events: true,
        result_only: false,
        prefix_token_ids: Vec::new(),
    }
}

/// Runs a plan to its end, and gives the number of segment events and the result.
async fn forward(executor: u16, request: ForwardRequest) -> Result<(usize, ForwardResult), Status> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(Duration::from_secs(20));
    let mut events = ExecutorServiceClient::new(calls::channel(executor)?)
        .forward(request)
        .await?
        .into_inner();
    let mut segments = 0;
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Segment(_)) => segments += 1,
            Some(Event::Result(result)) => return Ok((segments, result)),
            _ => {}
        }
    }
    Err(Status::internal("test: no result"))
}

async fn refused(executor: u16, request: ForwardRequest, code: Code, reasons: &[&str]) -> Status {
    let status = forward(executor, request).await.expect_err("it was let through");
    assert_eq!(status.code(), code, "{status:?}");
    assert!(
        reasons.contains(&reason(&status).as_str()),
        "{} is none of {reasons:?}: {status:?}",
        reason(&status)
    );
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_runs_nothing_without_a_valid_permit_for_its_binding() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let (executor, policy) = (cluster.ports.executor, cluster.ports.policy);
    let snapshot = cluster.ready_executor(READY_WITHIN).await.unwrap();
    let fresh = || async {
        calls::permit(policy, &snapshot.instance_id, &snapshot.fingerprint)
            .await
            .unwrap()
    };
    let print = snapshot.fingerprint.as_str();
    let denied = Code::PermissionDenied;

    // What a permit says.
    let good = fresh().await;
    let claims = PermitClaims::decode(good.claims.clone()).unwrap();
    assert_eq!(
        (claims.gateway_id.as_str(), claims.instance_id.as_str()),
        ("test", snapshot.instance_id.as_str())
    );
    assert_eq!(claims.capability_fingerprint, print);
    assert!(
        !claims.bundle_revision.is_empty() && claims.max_plan_tokens > 0 && claims.max_plan_sequences > 0
    );
    let left = SystemTime::try_from(claims.expires_at.unwrap())
        .unwrap()
        .duration_since(SystemTime::now())
        .unwrap();
    assert!(left <= Duration::from_secs(2), "a permit lives for {left:?}");

    // With it, it works, and is complete, finite, and the same again.
    let (segments, first) = forward(executor, plan(Some(good.clone()), print)).await.unwrap();
    assert_eq!(segments, 1);
    assert_eq!(first.capability_fingerprint, print);
    assert_eq!(first.outputs.len(), 1);
    assert_eq!(
        (first.outputs[0].rows.len(), first.outputs[0].rows[0].position),
        (1, 3)
    );
    assert_eq!(first.outputs[0].rows[0].values.len(), 3);
    assert!(first.outputs[0].rows[0].values.iter().all(|v| v.is_finite()));
    let (_, again) = forward(executor, plan(Some(fresh().await), print)).await.unwrap();
    assert_eq!(again.outputs, first.outputs);

    // Without, or with garbage.
    refused(executor, plan(None, print), denied, &["PERMIT_MISSING"]).await;
    let garbage = SignedPermit {
        claims: vec![7; 40].into(),
        signature: vec![7; 64].into(),
        key_id: "k".to_owned(),
    };
    refused(executor, plan(Some(garbage), print), denied, &["PERMIT_INVALID"]).await;
    refused(
        executor,
        plan(Some(SignedPermit::default()), print),
        denied,
        &["PERMIT_INVALID", "PERMIT_MISSING"],
    )
    .await;

    // Claims changed under a good signature: more tokens, another binding.
    let mut greedy = claims.clone();
    greedy.max_plan_tokens *= 2;
    let forged = SignedPermit {
        claims: greedy.encode_to_vec().into(),
        ..fresh().await
    };
    refused(executor, plan(Some(forged), print), denied, &["PERMIT_INVALID"]).await;
    let mut signature = fresh().await.signature.to_vec();
    signature[10] ^= 1;
    let forged = SignedPermit {
        signature: signature.into(),
        ..fresh().await
    };
    refused(executor, plan(Some(forged), print), denied, &["PERMIT_INVALID"]).await;

    // For another binding than the one in force: the caller must look again.
    let status = forward(executor, plan(Some(fresh().await), &"0".repeat(64)))
        .await
        .unwrap_err();
    assert!(
        matches!(status.code(), Code::PermissionDenied | Code::Unavailable),
        "{status:?}"
    );
    assert_eq!(reason(&status), "FINGERPRINT_MISMATCH", "{status:?}");
    refused(executor, plan(None, ""), denied, &["PERMIT_MISSING"]).await;

    // Plans that are not plans.
    let mut empty = plan(Some(fresh().await), print);
    empty.sequences[0].token_ids.clear();
    refused(executor, empty, Code::InvalidArgument, &["INVALID_REQUEST"]).await;
    let mut beyond = plan(Some(fresh().await), print);
    beyond.sequences[0].token_ids = vec![u32::MAX];
    refused(executor, beyond, Code::InvalidArgument, &["INVALID_REQUEST"]).await;
    let mut outside = plan(Some(fresh().await), print);
    outside.sequences[0].readout = Some(Readout {
        rows: Some(readout::Rows::Positions(RowPositions { positions: vec![4] })),
        projection: Some(readout::Projection::Hidden(HiddenRow {})),
    });
    let status = refused(executor, outside, Code::InvalidArgument, &["INVALID_REQUEST"]).await;
    let fields = deltagate_mesh::ServiceError::from(&status).fields;
    assert!(
        fields.iter().any(|f| f.field.starts_with("sequences[0].readout")),
        "{fields:?}"
    );
    let mut nothing = plan(Some(fresh().await), print);
    nothing.sequences.clear();
    refused(executor, nothing, Code::InvalidArgument, &["INVALID_REQUEST"]).await;

    // And an old one: it ran out.
    tokio::time::sleep(left + Duration::from_millis(300)).await;
    refused(executor, plan(Some(good), print), denied, &["PERMIT_EXPIRED"]).await;

    // None of this has hurt it.
    let (_, last) = forward(executor, plan(Some(fresh().await), print)).await.unwrap();
    assert_eq!(last.outputs, first.outputs);
    assert_eq!(
        cluster
            .ready_executor(Duration::from_secs(1))
            .await
            .unwrap()
            .phase(),
        ExecutorPhase::Ready
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_what_their_digests_say() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let description = calls::describe(cluster.ports.executor).await.unwrap();
    let card: serde_json::Value = serde_json::from_str(&description.model_card_json).unwrap();
    assert_eq!(card["family"], "startlux");
    assert_eq!(
        card["digest"].as_str(),
        description
            .snapshot
            .and_then(|s| s.model)
            .map(|m| m.digest)
            .as_deref()
    );
    let tokenizer = description
        .artifacts
        .iter()
        .find(|a| a.name == "tokenizer.json")
        .expect("no tokenizer");

    let mut client = ExecutorServiceClient::new(calls::channel(cluster.ports.executor).unwrap());
    let request = GetArtifactRequest {
        sha256: tokenizer.sha256.clone(),
    };
    let mut chunks = client.get_artifact(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert!(chunk.chunk.len() <= 1 << 20);
        bytes.extend_from_slice(&chunk.chunk);
    }
    assert_eq!(bytes.len() as u64, tokenizer.size_bytes);
    assert_eq!(hex::encode(Sha256::digest(&bytes)), tokenizer.sha256);

    for unknown in ["0".repeat(64), "../../etc/passwd".to_owned(), String::new()] {
        let request = GetArtifactRequest {
            sha256: unknown.clone(),
        };
        let status = match client.get_artifact(request).await {
            Err(status) => status,
            Ok(stream) => stream
                .into_inner()
                .message()
                .await
                .expect_err("it gave something"),
        };
        assert_eq!(status.code(), Code::NotFound, "{unknown}: {status:?}");
    }
}
