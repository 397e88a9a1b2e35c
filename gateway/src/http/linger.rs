//! Takes what a refusal left unread of its request, so that the refusal arrives: closing a connection with unread bytes
//! resets it, and the client sees a broken pipe instead of the answer.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::Request,
    middleware::Next,
    response::Response,
};
use futures::{Stream, StreamExt};
use http::header;
use tokio::sync::oneshot;

/// No more than this is taken, and for no longer.
const MOST_BYTES: usize = 32 * 1024 * 1024;
const LONGEST: Duration = Duration::from_secs(2);

pub(super) async fn drain(request: Request, next: Next) -> Response {
    // Who waits for a `100 Continue` has sent nothing yet.
    let waits = request.headers().contains_key(header::EXPECT);
    let (back, left) = oneshot::channel();
    let request = request.map(|body| {
        Body::from_stream(Held {
            rest: Some(body.into_data_stream()),
            begun: false,
            back: Some(back),
        })
    });
    let response = next.run(request).await;
    let mut left = left;
    if let Ok((rest, begun)) = left.try_recv()
        && (begun || !waits)
    {
        // What cannot be taken costs the client the answer, and nobody else anything.
        let _ = tokio::time::timeout(LONGEST, discard(rest)).await;
    }
    response
}

async fn discard(mut rest: BodyDataStream) {
    let mut taken = 0usize;
    while let Some(Ok(data)) = rest.next().await {
        taken = taken.saturating_add(data.len());
        if taken > MOST_BYTES {
            return;
        }
    }
}

/// A body that is given back when it is dropped before its end.
struct Held {
    rest: Option<BodyDataStream>,
    begun: bool,
    back: Option<oneshot::Sender<(BodyDataStream, bool)>>,
}

impl Stream for Held {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.begun = true;
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let polled = rest.poll_next_unpin(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.rest = None;
        }
        polled
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(rest), Some(back)) = (self.rest.take(), self.back.take()) {
            // Nobody waits when the connection is gone.
            let _ = back.send((rest, self.begun));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{Router, middleware, routing::post};
    use tower::ServiceExt;

    use super::*;

    /// How many of ten chunks are taken of a request that is refused unread, or after one chunk.
    async fn taken(read_one: bool, expect: bool) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let chunks = futures::stream::iter(0..10).map(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(Bytes::from_static(b"chunk"))
        });
        let refuse = move |request: Request| async move {
            let mut body = request.into_body().into_data_stream();
            if read_one {
                let _ = body.next().await;
            }
            http::StatusCode::PAYLOAD_TOO_LARGE
        };
        let app = Router::new()
            .route("/", post(refuse))
            .layer(middleware::from_fn(drain));
        let mut request = Request::post("/");
        if expect {
            request = request.header("expect", "100-continue");
        }
        let request = request.body(Body::from_stream(chunks)).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 413);
        count.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_taken_unless_it_was_not_sent_yet() {
        assert_eq!(taken(false, false).await, 10);
        assert_eq!(taken(true, false).await, 10);
        assert_eq!(taken(true, true).await, 10);
        assert_eq!(taken(false, true).await, 0);
    }
}
