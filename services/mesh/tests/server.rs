//! The server's promises, over real connections: health closed at first, deadlines, drain, panics, reflection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_mesh::{
    ServiceError,
    client::{ChannelOptions, channel},
    deadline::Deadline,
    health::Health,
    server::{ServeOptions, ServerHandle, listen, serve},
};
use deltagate_proto::v1::{
    CapabilityServiceGetRequest, CapabilityServiceGetResponse, CapabilityServiceWatchRequest,
    CapabilityServiceWatchResponse, ReportRequest, ReportResponse,
    capability_service_client::CapabilityServiceClient,
    capability_service_server::{CapabilityService, CapabilityServiceServer},
};
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// `Get` sleeps, `Watch` never ends, `Report` panics.
#[derive(Default)]
struct Probe {
    dropped: Arc<AtomicBool>,
    deadline_seen: Arc<AtomicBool>,
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl CapabilityService for Probe {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<CapabilityServiceWatchResponse, Status>> + Send>>;

    async fn get(
        &self,
        request: Request<CapabilityServiceGetRequest>,
    ) -> Result<Response<CapabilityServiceGetResponse>, Status> {
        self.deadline_seen
            .store(Deadline::from_request(&request).is_some(), Ordering::SeqCst);
        let _guard = SetOnDrop(Arc::clone(&self.dropped));
        tokio::time::sleep(Duration::from_millis(700)).await;
        Ok(Response::new(CapabilityServiceGetResponse::default()))
    }

    async fn watch(
        &self,
        _: Request<CapabilityServiceWatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let guard = SetOnDrop(Arc::clone(&self.dropped));
        let first = futures::stream::once(async { Ok(CapabilityServiceWatchResponse::default()) });
        let never = futures::stream::poll_fn(move |_| {
            let _held = &guard;
            std::task::Poll::Pending
        });
        Ok(Response::new(Box::pin(first.chain(never))))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        panic!("a bug");
    }
}

struct Fixture {
    handle: ServerHandle,
    health: Health,
    dropped: Arc<AtomicBool>,
    deadline_seen: Arc<AtomicBool>,
}

impl Fixture {
    async fn start(options: ServeOptions) -> Self {
        let probe = Probe::default();
        let (dropped, deadline_seen) = (Arc::clone(&probe.dropped), Arc::clone(&probe.deadline_seen));
        let health = Health::new(["deltagate.v1.CapabilityService"]).await;
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let handle = serve(
            listener,
            health.clone(),
            CancellationToken::new(),
            options,
            |routes| {
                routes.add_service(CapabilityServiceServer::new(probe));
            },
        )
        .await
        .unwrap();
        Self {
            handle,
            health,
            dropped,
            deadline_seen,
        }
    }

    fn channel(&self) -> tonic::transport::Channel {
        channel(&self.handle.endpoint(), ChannelOptions::default()).unwrap()
    }

    fn client(&self) -> CapabilityServiceClient<tonic::transport::Channel> {
        CapabilityServiceClient::new(self.channel())
    }

    async fn health_of(&self, name: &str) -> Result<i32, Code> {
        HealthClient::new(self.channel())
            .check(HealthCheckRequest {
                service: name.to_owned(),
            })
            .await
            .map(|r| r.into_inner().status)
            .map_err(|s| s.code())
    }
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

#[tokio::test]
async fn every_health_entry_starts_closed_and_a_drain_closes_them_for_good() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    for name in ["", "deltagate.v1.CapabilityService"] {
        assert_eq!(fixture.health_of(name).await, Ok(NOT_SERVING), "{name}");
    }
    assert_eq!(fixture.health_of("unknown").await, Err(Code::NotFound));
    fixture.health.set_all(true).await;
    fixture.health.set("kernel/delta_rule", true).await;
    for name in ["", "deltagate.v1.CapabilityService", "kernel/delta_rule"] {
        assert_eq!(fixture.health_of(name).await, Ok(SERVING), "{name}");
    }
    fixture.health.drain().await;
    fixture.health.set_all(true).await;
    fixture.health.set("", true).await;
    for name in ["", "deltagate.v1.CapabilityService", "kernel/delta_rule"] {
        assert_eq!(fixture.health_of(name).await, Ok(NOT_SERVING), "{name}");
    }
}

/// A raw header, so that the client's own timer does not answer first.
fn with_timeout<T>(message: T, value: &str) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("grpc-timeout", value.parse().unwrap());
    request
}

#[tokio::test]
async fn a_passed_deadline_is_deadline_exceeded_and_frees_the_handler() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let mut client = fixture.client();
    for _ in 0..20 {
        fixture.dropped.store(false, Ordering::SeqCst);
        let status = client
            .get(with_timeout(CapabilityServiceGetRequest {}, "30m"))
            .await
            .unwrap_err();
        let error = ServiceError::from(&status);
        assert_eq!(error.code, Code::DeadlineExceeded, "{status:?}");
        assert!(fixture.deadline_seen.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(fixture.dropped.load(Ordering::SeqCst));
    }
}

/// tonic's client has a timer for the same header, so a bare HTTP/2 client shows what the server itself sends.
#[tokio::test]
async fn the_server_itself_says_deadline_exceeded() {
    use http_body_util::BodyExt;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let socket = tokio::net::TcpStream::connect(fixture.handle.addr())
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    tokio::spawn(connection);
    for path in ["Get", "Watch"] {
        for timeout in 1..40 {
            let request = http::Request::builder()
                .method("POST")
                .uri(format!(
                    "{}/deltagate.v1.CapabilityService/{path}",
                    fixture.handle.endpoint()
                ))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("grpc-timeout", format!("{timeout}m"))
                .body(http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5])))
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = match response.headers().get("grpc-status") {
                Some(status) => status.clone(),
                None => {
                    let body = response.into_body().collect().await.unwrap();
                    body.trailers().unwrap().get("grpc-status").unwrap().clone()
                }
            };
            assert_eq!(status, "4", "{path} with {timeout} ms");
        }
    }
}

#[tokio::test]
async fn a_malformed_timeout_is_refused() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let status = fixture
        .client()
        .get(with_timeout(CapabilityServiceGetRequest {}, "soon"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn the_longest_timeout_that_can_be_written_is_taken() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    fixture
        .client()
        .get(with_timeout(CapabilityServiceGetRequest {}, "99999999H"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_health_watch_follows_its_entry_from_unknown_to_the_drain() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let mut client = HealthClient::new(fixture.channel());
    let request = HealthCheckRequest {
        service: "kernel/mlp".to_owned(),
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let mut next = async || watch.message().await.unwrap().unwrap().status;
    assert_eq!(next().await, SERVICE_UNKNOWN);
    fixture.health.set("kernel/mlp", true).await;
    assert_eq!(next().await, SERVING);
    fixture.health.set("another", true).await;
    fixture.handle.shutdown();
    assert_eq!(next().await, NOT_SERVING);
}

#[tokio::test]
async fn a_deadline_ends_a_stream_in_the_middle() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let request = with_timeout(CapabilityServiceWatchRequest {}, "100m");
    let mut stream = fixture.client().watch(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let status = stream.message().await.unwrap_err();
    let error = ServiceError::from(&status);
    assert_eq!(
        (error.code, error.fact("stage")),
        (Code::DeadlineExceeded, Some("stream"))
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(fixture.dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_panicking_handler_is_an_internal_error_and_the_server_lives_on() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let mut client = fixture.client();
    for _ in 0..2 {
        let status = client.report(ReportRequest::default()).await.unwrap_err();
        assert_eq!(ServiceError::from(&status).reason, "PANICKED");
        assert!(!status.message().contains("a bug"));
    }
}

#[tokio::test]
async fn a_drain_ends_subscriptions_and_lets_calls_finish() {
    let fixture = Fixture::start(ServeOptions::new("probe")).await;
    let mut stream = fixture
        .client()
        .watch(CapabilityServiceWatchRequest {})
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap().unwrap();
    let mut client = fixture.client();
    let call = tokio::spawn(async move { client.get(CapabilityServiceGetRequest {}).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    fixture.handle.shutdown();
    let error = ServiceError::from(&stream.message().await.unwrap_err());
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "DRAINING")
    );
    assert!(begun.elapsed() < Duration::from_millis(400));
    call.await.unwrap().unwrap();
    fixture.handle.wait().await.unwrap();
}

#[tokio::test]
async fn a_drain_is_bounded_and_what_is_left_is_told() {
    let mut options = ServeOptions::new("probe");
    options.drain = Duration::from_millis(100);
    let fixture = Fixture::start(options).await;
    let mut client = fixture.client();
    let call = tokio::spawn(async move { client.get(CapabilityServiceGetRequest {}).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.handle.shutdown();
    let error = ServiceError::from(&call.await.unwrap().unwrap_err());
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "DRAINING")
    );
    let begun = Instant::now();
    fixture.handle.wait().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn both_reflection_versions_list_every_service() {
    use tonic_reflection::pb::{v1, v1alpha};
    let fixture = Fixture::start(ServeOptions::new("probe")).await;

    let ask = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut answers = v1::server_reflection_client::ServerReflectionClient::new(fixture.channel())
        .server_reflection_info(futures::stream::iter([ask]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) =
        answer.message_response
    else {
        panic!("no list")
    };
    let names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
    for name in [
        "deltagate.v1.ClassifierService",
        "deltagate.v1.ExecutorService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }

    for symbol in [
        "google.rpc.ErrorInfo",
        "grpc.health.v1.Health",
        "deltagate.v1.ForwardRequest",
    ] {
        let ask = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.to_owned()),
            ),
        };
        let mut answers = v1alpha::server_reflection_client::ServerReflectionClient::new(fixture.channel())
            .server_reflection_info(futures::stream::iter([ask]))
            .await
            .unwrap()
            .into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        assert!(
            matches!(
                answer.message_response,
                Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
            ),
            "{symbol}: {answer:?}"
        );
    }
}
