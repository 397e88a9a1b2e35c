//! The server layer that ends calls early: at their deadline, at the end of a drain, or when a handler panics.
//!
//! Each call is either with its handler, or streaming its body, or ended. Whatever ends it early sends a proper
//! gRPC status and drops the handler's future or stream at once, which is what frees its place in a queue.

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use crate::{
    ServiceError,
    deadline::{self, Deadline},
};

/// When calls are cut short by the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    /// Ends subscriptions (`Watch` methods and reflection), which would otherwise hold a drain up for ever.
    pub(crate) subscriptions: CancellationToken,
    /// Ends everything that is left.
    pub(crate) everything: CancellationToken,
}

impl Cuts {
    fn of(&self, path: &str) -> &CancellationToken {
        if path.ends_with("/Watch") || path.starts_with("/grpc.reflection.") {
            &self.subscriptions
        } else {
            &self.everything
        }
    }
}

/// Wraps a gRPC server.
#[derive(Clone, Debug)]
pub(crate) struct InterruptLayer {
    pub(crate) cuts: Cuts,
}

impl<S> Layer<S> for InterruptLayer {
    type Service = Interrupt<S>;

    fn layer(&self, inner: S) -> Interrupt<S> {
        Interrupt {
            inner,
            cuts: self.cuts.clone(),
        }
    }
}

/// See [`InterruptLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Interrupt<S> {
    inner: S,
    cuts: Cuts,
}

impl<S> Service<Request<Body>> for Interrupt<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let deadline = match request.headers().get(deadline::GRPC_TIMEOUT) {
            None => None,
            Some(value) => match deadline::parse(value.as_bytes()) {
                Ok(timeout) => Deadline::after(timeout),
                Err(error) => {
                    let refusal = ServiceError::invalid_argument("BAD_TIMEOUT", error.to_string());
                    return Box::pin(std::future::ready(Ok(Status::from(refusal).into_http())));
                }
            },
        };
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        let cut = self.cuts.of(request.uri().path()).clone();
        let mut ends = Ends {
            expiry: deadline.map(Expiry::new),
            cut: Box::pin(cut.cancelled_owned()),
        };
        // The handler's future is made inside, so that a panic while making it is caught as well.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let handled = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind();
            tokio::pin!(handled);
            let outcome = std::future::poll_fn(|cx| {
                if let Poll::Ready(done) = handled.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                ends.poll(cx, "run").map(Err)
            })
            .await;
            Ok(match outcome {
                Ok(Ok(Ok(response))) => response.map(|body| wrap(body, ends)),
                Ok(Err(_panic)) => {
                    Status::from(ServiceError::internal("PANICKED", "the handler panicked")).into_http()
                }
                Err(error) => Status::from(error).into_http(),
            })
        })
    }
}

fn wrap(body: Body, ends: Ends) -> Body {
    // An empty body belongs to a response whose status is in its headers already.
    if body.is_end_stream() {
        body
    } else {
        Body::new(InterruptBody {
            inner: Some(body),
            ends,
        })
    }
}

/// What ends a call early.
struct Ends {
    expiry: Option<Expiry>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Ends {
    fn poll(&mut self, cx: &mut Context<'_>, stage: &'static str) -> Poll<ServiceError> {
        if let Some(expiry) = &mut self.expiry
            && expiry.poll(cx).is_ready()
        {
            return Poll::Ready(deadline::exceeded(stage));
        }
        self.cut.as_mut().poll(cx).map(|()| {
            ServiceError::unavailable("DRAINING", "the server is shutting down")
                .retry_after(Duration::from_millis(500))
        })
    }
}

/// Becomes ready at an instant.
struct Expiry {
    at: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Expiry {
    fn new(deadline: Deadline) -> Self {
        Self {
            at: deadline.0,
            sleep: Box::pin(tokio::time::sleep_until(deadline.0.into())),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // tonic has a later timer of its own for the same header and polls this future before it looks at it. The
        // clock, unlike the timer wheel, is then sure to be past our instant: tonic never gets to say CANCELLED.
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        self.sleep.as_mut().poll(cx)
    }
}

/// A response body that may end early, with a status in its trailers.
struct InterruptBody {
    inner: Option<Body>,
    ends: Ends,
}

impl HttpBody for InterruptBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) {
            if frame.is_none() {
                self.inner = None;
            }
            return Poll::Ready(frame);
        }
        let Poll::Ready(error) = self.ends.poll(cx, "stream") else {
            return Poll::Pending;
        };
        self.inner = None;
        let mut trailers = HeaderMap::new();
        match Status::from(error).add_header(&mut trailers) {
            Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Err(status) => Poll::Ready(Some(Err(status))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}
