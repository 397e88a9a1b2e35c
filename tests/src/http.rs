//! A plain HTTP client, as an existing System-One client would be.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use ureq::http::{HeaderMap, Method, Request};

/// An HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The JSON body; a string when it is none.
    pub body: Value,
}

impl Answer {
    /// A header, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// GET.
pub async fn get(url: &str) -> anyhow::Result<Answer> {
    send(Method::GET, url, &[], Vec::new()).await
}

/// POST of a JSON document.
pub async fn post(url: &str, body: &Value) -> anyhow::Result<Answer> {
    send(
        Method::POST,
        url,
        &[("content-type", "application/json")],
        body.to_string().into_bytes(),
    )
    .await
}

/// Any request, on a thread of its own, on a connection of its own.
pub async fn send(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> anyhow::Result<Answer> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body)?;
    let work = move || {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(2)))
            .timeout_global(Some(Duration::from_secs(40)))
            .build();
        let agent: ureq::Agent = config.into();
        let mut response = agent.run(request)?;
        let text = response.body_mut().read_to_string().context("body")?;
        anyhow::Ok(Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        })
    };
    tokio::task::spawn_blocking(work).await?
}
