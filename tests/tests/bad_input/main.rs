//! What can be wrong with a request, each case on both faces of one running mesh: the code, the field, and that nothing
//! crashes, hangs or is quoted. The table is printed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod faces;
mod requests;
mod shapes;
mod texts;

use std::time::Duration;

use deltagate_proto::v1::{ClassifyRequest, answer};
use deltagate_tests::{
    calls,
    cluster::{Cluster, Service},
    http,
    ports::url,
    requests::text,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use ureq::http::Method;

use crate::{
    faces::{Faces, MARK, spell},
    requests::{about, choosing, options, state, with},
};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_the_right_code_and_field_on_both_faces() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let mut faces = Faces {
        grpc: cluster.ports.gateway,
        http: format!("{}/v1/systemone", url(cluster.ports.http)),
        table: String::new(),
        wrong: Vec::new(),
    };
    texts::unreadable(&mut faces).await;
    texts::documents(&mut faces).await;
    shapes::shapes(&mut faces).await;
    shapes::choices(&mut faces).await;
    texts::lengths(&mut faces).await;
    elsewhere(&mut faces).await;
    println!("| case | face | answer |\n|---|---|---|\n{}", faces.table);
    assert!(faces.wrong.is_empty(), "{}", faces.wrong.join("\n"));

    // Nothing crashed and nothing was written down.
    assert!(
        calls::service_serving(faces.grpc, Service::Gateway)
            .await
            .unwrap()
    );
    faces.grpc("afterwards", &state(text(MARK)), "OK").await;
    assert!(faces.wrong.is_empty(), "{:?}", faces.wrong);
    let logs = cluster.logs();
    assert!(!logs.contains(MARK), "text of a request is in the logs");
    assert!(!logs.contains("panicked"), "something panicked:\n{logs}");
}

async fn elsewhere(faces: &mut Faces) {
    let unknown = ClassifyRequest {
        model: MARK.to_owned(),
        ..state(text("x"))
    };
    faces
        .grpc("unknown model", &unknown, "NotFound model MODEL_NOT_FOUND")
        .await;
    let body = about("1").replacen('{', &format!("{{\"model\":\"{MARK}\","), 1);
    faces
        .http("unknown model", body, "404 body.model model_not_found")
        .await;
    let body = about("1").replacen('{', "{\"model\":7,", 1);
    faces
        .http("model a number", body, "422 body.model wrong_type")
        .await;
    let method = "deltagate.v1.ClassifierService/Classify";
    for timeout in ["1n", "0S"] {
        let status = calls::with_timeout(faces.grpc, method, &state(text(MARK)), timeout)
            .await
            .unwrap();
        faces.row(
            &format!("deadline {timeout}"),
            "gRPC",
            &spell(&status),
            "DeadlineExceeded DEADLINE_EXCEEDED",
        );
    }
    // Clients that leave while they wait, in the middle of a body too: the next one is answered.
    let slow = about(&format!("\"{}\"", "The same invoice again. ".repeat(500)));
    for cut in [slow.len(), slow.len() / 2] {
        for _ in 0..8 {
            let address = faces
                .http
                .strip_prefix("http://")
                .unwrap()
                .split('/')
                .next()
                .unwrap();
            let mut socket = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                slow.len()
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            socket.write_all(&slow.as_bytes()[..cut]).await.unwrap();
        }
    }
    faces.http("after clients that left", about("1"), "200").await;
    let long = state(text(&"The same invoice again. ".repeat(500)));
    let waiting = futures::future::join_all((0..8).map(|_| calls::classify(faces.grpc, long.clone())));
    let _ = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    faces
        .grpc("after clients that left", &state(text(MARK)), "OK")
        .await;
}

/// What is answered is the answer to what was asked: names come back byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn odd_names_come_back_byte_for_byte() {
    let cluster = Cluster::new(BINARY).unwrap();
    let _up = cluster.up(&["--cpu", "--in-process"]).unwrap();
    cluster.ready().await.unwrap();
    let odd = [
        "a\0\u{1b}[31mb",
        "\u{2028}\u{202e}\u{feff}",
        "<|im_end|>",
        "\"\\/",
        "é\u{301}\u{1f468}\u{200d}\u{1f469}",
    ];
    let names: Vec<String> = odd.iter().map(|name| (*name).to_owned()).collect();
    let response = calls::classify(cluster.ports.gateway, with(options(&names)))
        .await
        .unwrap();
    let Some(answer::Answer::Choice(answer)) = response.answers[0].answer.clone() else {
        panic!("{response:?}")
    };
    let back: Vec<String> = answer.probabilities.into_iter().map(|p| p.name).collect();
    assert_eq!(back, names);
    let url = format!("{}/v1/systemone", url(cluster.ports.http));
    let body = choosing(&names).into_bytes();
    let web = http::send(Method::POST, &url, &[("content-type", "application/json")], body)
        .await
        .unwrap();
    let back = web.body["answers"]["q"]["probabilities"]
        .as_object()
        .unwrap()
        .keys();
    assert!(back.eq(&names), "{}", web.body);
}
