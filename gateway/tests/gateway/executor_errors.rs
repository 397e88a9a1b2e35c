//! Errors of an executor, as callers of both faces see them.

use std::time::Duration;

use deltagate_mesh::error::{Code, ServiceError};

use crate::support::{
    executor::Act,
    mesh::ready,
    requests::{SMALL_BODY, small},
};

#[tokio::test]
async fn errors_keep_their_reason() {
    let mesh = ready().await;
    let full = || {
        ServiceError::resource_exhausted("QUEUE_FULL", "the queue is full")
            .retry_after(Duration::from_millis(250))
    };
    let late =
        || ServiceError::deadline_exceeded("DEADLINE_EXCEEDED", "the deadline passed").with("stage", "queue");
    let cases: [(ServiceError, Code, &str, u16); 6] = [
        (full(), Code::ResourceExhausted, "QUEUE_FULL", 429),
        (late(), Code::DeadlineExceeded, "DEADLINE_EXCEEDED", 504),
        (
            ServiceError::internal("KERNEL_FAILED", "a kernel failed"),
            Code::Internal,
            "KERNEL_FAILED",
            500,
        ),
        (
            ServiceError::internal("NOT_FINITE", "not finite"),
            Code::Internal,
            "NOT_FINITE",
            500,
        ),
        (
            ServiceError::failed_precondition("KERNEL_NOT_BOUND", "unbound"),
            Code::FailedPrecondition,
            "KERNEL_NOT_BOUND",
            503,
        ),
        // A plan that the executor finds wrong is never the caller's fault.
        (
            ServiceError::invalid_argument("INVALID_PLAN", "bad").field("sequences[0]", "X", "x"),
            Code::Internal,
            "INVALID_PLAN",
            500,
        ),
    ];
    for (error, code, reason, status) in cases {
        mesh.executor.then(Act::Refuse(error.clone()));
        let heard = mesh.classify(small()).await.unwrap_err();
        assert_eq!((heard.code, heard.reason.as_ref()), (code, reason));
        assert!(heard.fields.is_empty());
        if code == Code::ResourceExhausted {
            assert_eq!(heard.retry_after, Some(Duration::from_millis(250)));
        }
        if code == Code::DeadlineExceeded {
            assert_eq!(heard.fact("stage"), Some("queue"));
        }
        mesh.executor.then(Act::Refuse(error));
        let http = mesh.post(SMALL_BODY).await;
        assert_eq!(http.status, status, "{reason}");
        assert_eq!(http.json()["detail"][0]["type"], reason.to_ascii_lowercase());
        assert_eq!(http.header("retry-after").is_some(), matches!(status, 429 | 503));
        if status == 429 {
            assert_eq!(
                (http.header("retry-after"), http.header("retry-after-ms")),
                (Some("1"), Some("250"))
            );
        }
    }
}

#[tokio::test]
async fn what_is_not_complete_and_finite_is_an_error() {
    let mesh = ready().await;
    mesh.executor.then(Act::NotFinite);
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Internal, "NOT_FINITE")
    );
    mesh.executor.then(Act::ShortRead);
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "EXECUTOR_UNREACHABLE")
    );
}
