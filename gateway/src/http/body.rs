//! Reads a request body: bounded as it comes, decoded from gzip or zstd, and bounded again.

use axum::{body::Body, extract::Request};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tower::{ServiceExt, service_fn};
use tower_http::decompression::RequestDecompression;

/// Why a body cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    /// Not `application/json`.
    #[error("the content type must be application/json")]
    ContentType,
    /// A media request: this server reads text only.
    #[error("media requests are not supported, this server reads text only")]
    Multipart,
    /// Not gzip, zstd or identity.
    #[error("the content encoding must be zstd, gzip or identity")]
    Encoding,
    /// More bytes than allowed, as sent or when decoded.
    #[error("the body is larger than allowed")]
    TooLarge,
    /// It ends early, or is not in the encoding that it claims.
    #[error("the body cannot be read")]
    Unreadable,
}

/// The bytes of a JSON body, at most `max` on the wire and at most `max` decoded.
pub(super) async fn read(mut request: Request, max: usize) -> Result<Bytes, BodyError> {
    check_content_type(request.headers())?;
    lower_encoding(request.headers_mut());
    let collect = service_fn(move |request: http::Request<_>| async move {
        let collected = Limited::new(request.into_body(), max)
            .collect()
            .await
            .map_err(|error| explain(&*error))?;
        Ok::<_, BodyError>(Response::new(Full::new(collected.to_bytes())))
    });
    let bounded = request.map(|body: Body| Limited::new(body, max));
    let response = RequestDecompression::new(collect).oneshot(bounded).await?;
    if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return Err(BodyError::Encoding);
    }
    let collected = response
        .into_body()
        .collect()
        .await
        .map_err(|_| BodyError::Unreadable)?;
    Ok(collected.to_bytes())
}

fn check_content_type(headers: &HeaderMap) -> Result<(), BodyError> {
    let mut all = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (all.next().and_then(|value| value.to_str().ok()), all.next()) else {
        return Err(BodyError::ContentType);
    };
    let mut parts = value.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default().to_ascii_lowercase();
    match media.as_str() {
        "application/json" => {}
        "multipart/form-data" => return Err(BodyError::Multipart),
        _ => return Err(BodyError::ContentType),
    }
    for parameter in parts {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name.eq_ignore_ascii_case("charset") && !value.trim_matches('"').eq_ignore_ascii_case("utf-8") {
            return Err(BodyError::ContentType);
        }
    }
    Ok(())
}

/// Content codings are case-insensitive; the decoder compares bytes.
fn lower_encoding(headers: &mut HeaderMap) {
    if let Some(value) = headers.get_mut(header::CONTENT_ENCODING)
        && let Ok(lower) = HeaderValue::from_bytes(&value.as_bytes().to_ascii_lowercase())
    {
        *value = lower;
    }
}

fn explain(error: &(dyn std::error::Error + 'static)) -> BodyError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return BodyError::TooLarge;
        }
        // io::Error hides what it wraps from `source`.
        let inside = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        cause = match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    BodyError::Unreadable
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    async fn try_read(
        encoding: Option<&str>,
        content_type: &str,
        body: Vec<u8>,
        max: usize,
    ) -> Result<Bytes, BodyError> {
        let mut request = Request::builder().header("content-type", content_type);
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        read(request.body(Body::from(body)).unwrap(), max).await
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn encodings_are_decoded() {
        let zstd = zstd::encode_all(&b"{}"[..], 3).unwrap();
        for (encoding, body) in [
            (None, b"{}".to_vec()),
            (Some("zstd"), zstd.clone()),
            (Some("ZSTD"), zstd),
            (Some("gzip"), gzip(b"{}")),
            (Some("identity"), b"{}".to_vec()),
        ] {
            assert_eq!(
                try_read(encoding, "application/json", body, 100).await.unwrap(),
                "{}",
                "{encoding:?}"
            );
        }
        assert_eq!(
            try_read(Some("br"), "application/json", b"{}".to_vec(), 100).await,
            Err(BodyError::Encoding)
        );
    }

    #[tokio::test]
    async fn a_bomb_is_stopped_by_its_decoded_size() {
        let bomb = vec![b' '; 50_000_000];
        let small = zstd::encode_all(&bomb[..], 3).unwrap();
        assert!(small.len() < 10_000);
        assert_eq!(
            try_read(Some("zstd"), "application/json", small, 10_000).await,
            Err(BodyError::TooLarge)
        );
        assert_eq!(
            try_read(Some("gzip"), "application/json", gzip(&bomb), 100_000).await,
            Err(BodyError::TooLarge)
        );
    }

    #[tokio::test]
    async fn the_size_on_the_wire_is_bounded_too() {
        let noise: Vec<u8> = (0..4000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let body = zstd::encode_all(&noise[..], 3).unwrap();
        assert!(body.len() > 1000);
        assert_eq!(
            try_read(Some("zstd"), "application/json", body, 1000).await,
            Err(BodyError::TooLarge)
        );
        assert_eq!(
            try_read(None, "application/json", noise, 1000).await,
            Err(BodyError::TooLarge)
        );
    }

    #[tokio::test]
    async fn what_is_cut_or_not_in_its_encoding_is_unreadable() {
        let mut cut = zstd::encode_all(&b"some text that is long enough to be cut"[..], 3).unwrap();
        cut.truncate(cut.len() - 3);
        assert_eq!(
            try_read(Some("zstd"), "application/json", cut, 1000).await,
            Err(BodyError::Unreadable)
        );
        assert_eq!(
            try_read(Some("gzip"), "application/json", b"{}".to_vec(), 1000).await,
            Err(BodyError::Unreadable)
        );
    }

    #[tokio::test]
    async fn content_types() {
        for ok in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
        ] {
            assert!(try_read(None, ok, b"{}".to_vec(), 100).await.is_ok(), "{ok}");
        }
        for bad in [
            "text/plain",
            "application/json; charset=latin-1",
            "application/x-www-form-urlencoded",
            "",
        ] {
            assert_eq!(
                try_read(None, bad, b"{}".to_vec(), 100).await,
                Err(BodyError::ContentType),
                "{bad}"
            );
        }
        let multipart = try_read(None, "multipart/form-data; boundary=x", Vec::new(), 100).await;
        assert_eq!(multipart, Err(BodyError::Multipart));
    }
}
