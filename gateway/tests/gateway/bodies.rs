//! Encoded bodies as real clients send them, and bombs.

use std::io::Write;

use crate::support::{
    mesh::{ready, ready_with},
    requests::{ALL_TYPES_BODY, SMALL_BODY},
};

const JSON: (&str, &str) = ("content-type", "application/json");

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn zstd_and_gzip_bodies_are_read() {
    let mesh = ready().await;
    let plain = mesh.post(ALL_TYPES_BODY).await.json();
    let zstd = zstd::encode_all(ALL_TYPES_BODY.as_bytes(), 3).unwrap();
    for (encoding, body) in [("zstd", zstd), ("gzip", gzip(ALL_TYPES_BODY.as_bytes()))] {
        let response = mesh
            .post_with(&[JSON, ("content-encoding", encoding)], &body)
            .await;
        assert_eq!(response.status, 200, "{encoding}: {}", response.body);
        assert_eq!(response.json()["answers"], plain["answers"]);
    }
}

#[tokio::test]
async fn bombs_are_413_and_garbage_is_400() {
    let mesh = ready_with(|config| config.limits.max_body_bytes = 100_000).await;
    let bomb = format!("{}{SMALL_BODY}", " ".repeat(80_000_000));
    let zstd = zstd::encode_all(bomb.as_bytes(), 3).unwrap();
    assert!(zstd.len() < 20_000);
    for (encoding, body) in [("zstd", zstd), ("gzip", gzip(bomb.as_bytes()))] {
        let response = mesh
            .post_with(&[JSON, ("content-encoding", encoding)], &body)
            .await;
        assert_eq!(response.status, 413, "{encoding}");
        assert_eq!(response.json()["detail"][0]["type"], "body_too_large");
        let garbage = mesh
            .post_with(&[JSON, ("content-encoding", encoding)], SMALL_BODY.as_bytes())
            .await;
        assert_eq!(garbage.status, 400, "{encoding}");
    }
    let large = mesh.post(&" ".repeat(100_001)).await;
    assert_eq!(large.status, 413);
}

#[tokio::test]
async fn other_types_and_encodings_are_refused() {
    let mesh = ready().await;
    let body = SMALL_BODY.as_bytes();
    let brotli = mesh.post_with(&[JSON, ("content-encoding", "br")], body).await;
    assert_eq!(
        (brotli.status, brotli.header("accept-encoding")),
        (415, Some("zstd, gzip, identity"))
    );
    assert_eq!(
        mesh.post_with(&[("content-type", "text/plain")], body)
            .await
            .status,
        415
    );
    assert_eq!(mesh.post_with(&[], body).await.status, 415);
    let media = mesh
        .post_with(&[("content-type", "multipart/form-data; boundary=b")], b"--b--")
        .await;
    assert_eq!(
        (media.status, media.json()["detail"][0]["type"].as_str()),
        (422, Some("unsupported_media"))
    );
    assert_eq!(mesh.post_with(&[JSON], b"{\"state\":\"\xff\"}").await.status, 400);
}
