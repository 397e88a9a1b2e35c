//! Asks both faces, spells in short what they say, and keeps a table of it.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use deltagate_mesh::ServiceError;
use deltagate_proto::v1::{ClassifyRequest, ClassifyResponse};
use deltagate_tests::{http, ports::url};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::Value;
use tokio::net::TcpStream;
use tonic::{Code, Status};
use ureq::http::Method;

/// Stands in every request, and nowhere else.
pub(crate) const MARK: &str = "zqxjkv";

/// Nothing may take longer: a hang is a failure.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// What a face said, in short: `200`, `422 body.questions.0.type unsupported_type`, `INVALID_ARGUMENT state MISSING`.
pub(crate) type Said = String;

pub(crate) struct Faces {
    pub(crate) grpc: u16,
    pub(crate) http: String,
    /// Rows of Markdown.
    pub(crate) table: String,
    /// What was not as expected.
    pub(crate) wrong: Vec<String>,
}

impl Faces {
    /// Compares and keeps one row of the table.
    pub(crate) fn row(&mut self, case: &str, face: &str, said: &str, expected: &str) {
        writeln!(self.table, "| {case} | {face} | {said} |").unwrap();
        if said != expected {
            self.wrong
                .push(format!("{case}, {face}: {said}\n    expected {expected}"));
        }
    }

    pub(crate) async fn grpc(&mut self, case: &str, request: &ClassifyRequest, expected: &str) {
        let said = self
            .frame(&framed(&request.encode_to_vec()), "application/grpc")
            .await;
        self.row(case, "gRPC", &said, expected);
    }

    pub(crate) async fn bytes(&mut self, case: &str, frame: &[u8], expected: &str) {
        let said = self.frame(frame, "application/grpc").await;
        self.row(case, "gRPC", &said, expected);
    }

    /// What the server itself says to these bytes: a client library would judge some of them before they are sent.
    pub(crate) async fn frame(&self, frame: &[u8], content_type: &str) -> Said {
        let call = raw(self.grpc, content_type, Bytes::copy_from_slice(frame));
        tokio::time::timeout(BOUND, call)
            .await
            .expect("gRPC hangs")
            .unwrap()
    }

    pub(crate) async fn http(&mut self, case: &str, body: impl Into<Vec<u8>>, expected: &str) {
        self.http_as(case, "application/json", body, expected).await;
    }

    pub(crate) async fn http_as(
        &mut self,
        case: &str,
        content_type: &str,
        body: impl Into<Vec<u8>>,
        expected: &str,
    ) {
        let headers: &[(&str, &str)] = &[("content-type", content_type)];
        let send = http::send(Method::POST, &self.http, headers, body.into());
        let answer = tokio::time::timeout(BOUND, send)
            .await
            .expect("HTTP hangs")
            .unwrap();
        let mut said = answer.status.to_string();
        for detail in answer.body["detail"].as_array().into_iter().flatten() {
            let loc: Vec<String> = detail["loc"].as_array().unwrap().iter().map(plain).collect();
            write!(said, " {} {}", loc.join("."), plain(&detail["type"])).unwrap();
        }
        if answer.status == 200 {
            assert!(
                answer.body["answers"].as_object().is_some_and(|a| !a.is_empty()),
                "{case}"
            );
        } else {
            assert!(
                !answer.body.to_string().contains(MARK),
                "{case}: quoted in {}",
                answer.body
            );
        }
        self.row(case, "HTTP", &said, expected);
    }
}

pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Length-prefixed, as gRPC sends a message.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

pub(crate) async fn raw(port: u16, content_type: &str, body: Bytes) -> anyhow::Result<Said> {
    let socket = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
    let connection = tokio::spawn(connection);
    let path = format!("{}/deltagate.v1.ClassifierService/Classify", url(port));
    let request = ::http::Request::post(path)
        .header("content-type", content_type)
        .header("te", "trailers")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let http_status = response.status();
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Ok(spell(&status));
    }
    if http_status != 200 {
        return Ok(format!("HTTP {}", http_status.as_u16()));
    }
    let body = response.into_body().collect().await?;
    let status = body.trailers().and_then(Status::from_header_map);
    connection.abort();
    let bytes = body.to_bytes();
    match status {
        Some(status) if status.code() != Code::Ok => Ok(spell(&status)),
        _ => {
            let answers = ClassifyResponse::decode(bytes.get(5..).unwrap_or_default())?.answers;
            anyhow::ensure!(!answers.is_empty(), "OK without answers");
            Ok("OK".to_owned())
        }
    }
}

pub(crate) fn spell(status: &Status) -> Said {
    assert!(!format!("{status:?}").contains(MARK), "quoted in {status:?}");
    let error = ServiceError::from(status);
    let mut said = format!("{:?}", status.code());
    for field in &error.fields {
        write!(said, " {} {}", field.field, field.reason).unwrap();
    }
    if error.fields.is_empty() && !error.reason.is_empty() {
        write!(said, " {}", error.reason).unwrap();
    }
    said
}
