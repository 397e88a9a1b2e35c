//! gRPC clients that know nothing of the mesh but what reflection tells them: grpcurl, and buf held to one version of
//! reflection at a time. Each lists, describes and calls every service.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use deltagate_tests::{
    cluster::{Cluster, Service},
    http,
    ports::url,
    process::Run,
    requests::{largest_difference, ticket_body},
    tools,
};
use serde_json::{Map, Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

/// A client that learns the contract by reflection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Grpcurl,
    /// buf, with this version of reflection and no other.
    Buf(&'static str),
}

const CLIENTS: [Client; 3] = [
    Client::Grpcurl,
    Client::Buf("grpc-v1"),
    Client::Buf("grpc-v1alpha"),
];

impl Client {
    async fn run(self, port: u16, what: &[&str], path: &str) -> Run {
        let address = format!("127.0.0.1:{port}");
        let (grpcurl, buf) = (
            ["-plaintext"],
            ["curl", "--http2-prior-knowledge", "--protocol", "grpc"],
        );
        match self {
            Self::Grpcurl => {
                let arguments = [&grpcurl[..], what, &[&address, path]].concat();
                tools::run("bin/grpcurl", &arguments).await.unwrap()
            }
            Self::Buf(version) => {
                let target = format!("http://{address}/{path}");
                let target = target.trim_end_matches('/');
                let arguments = [&buf[..], &["--reflect-protocol", version], what, &[target]].concat();
                tools::run("bin/buf", &arguments).await.unwrap()
            }
        }
    }

    /// Names of all methods, as `service/Method`.
    async fn methods(self, port: u16) -> BTreeSet<String> {
        let lines = |run: Run| -> Vec<String> {
            assert_eq!(run.code, Some(0), "{self:?}: {run:?}");
            run.out.lines().map(|line| line.trim().to_owned()).collect()
        };
        if matches!(self, Self::Buf(_)) {
            return lines(self.run(port, &["--list-methods"], "").await)
                .into_iter()
                .collect();
        }
        let mut methods = BTreeSet::new();
        for service in lines(self.run(port, &[], "list").await) {
            let target = format!("127.0.0.1:{port}");
            let all = tools::run("bin/grpcurl", &["-plaintext", &target, "list", &service])
                .await
                .unwrap();
            methods.extend(lines(all).iter().map(|method| {
                let (service, method) = method.rsplit_once('.').unwrap();
                format!("{service}/{method}")
            }));
        }
        methods
    }

    async fn try_call(self, port: u16, method: &str, message: &Value) -> Run {
        self.run(port, &["-d", &message.to_string()], method).await
    }

    /// Every message of the answer.
    async fn call(self, port: u16, method: &str, message: &Value) -> Vec<Value> {
        let run = self.try_call(port, method, message).await;
        assert_eq!(run.code, Some(0), "{self:?} {method}: {run:?}");
        messages(&run)
    }

    /// The only message of the answer.
    async fn ask(self, port: u16, method: &str, message: &Value) -> Value {
        let mut all = self.call(port, method, message).await;
        assert_eq!(all.len(), 1, "{self:?} {method}: {all:?}");
        all.remove(0)
    }

    /// A call that is refused, with this code in the client's own words.
    async fn refused(self, port: u16, method: &str, message: &Value, code: [&str; 2]) {
        let run = self.try_call(port, method, message).await;
        assert_ne!(run.code, Some(0), "{self:?} {method}: {run:?}");
        assert!(
            code.iter().any(|code| run.err.contains(code)),
            "{self:?} {method}: {run:?}"
        );
    }
}

fn messages(run: &Run) -> Vec<Value> {
    let all = serde_json::Deserializer::from_str(&run.out).into_iter::<Value>();
    all.collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("{e}: {run:?}"))
}

/// The ticket of [`ticket_body`], as the JSON form of `ClassifyRequest`.
fn ticket() -> Value {
    let body = ticket_body();
    json!({
        "state": {"json": body["state"].to_string()},
        "questions": [
            {
                "id": "team",
                "instructions": {"text": "Which team should handle this ticket?"},
                "choice": {"options": [
                    {"name": "shipping", "description": {"text": "Delivery and tracking"}},
                    {"name": "billing", "description": {"text": "Payments, refunds and invoices"}},
                    {"name": "other"},
                ]},
            },
            {
                "id": "severity",
                "instructions": {"text": "How severe is the impact?"},
                "score": {"levels": [{"text": "cosmetic"}, {"text": "annoying"}, {"text": "blocks the customer"}]},
            },
            {"id": "urgent", "instructions": {"text": "Should this ticket be answered today?"}, "noul": {}},
        ],
    })
}

/// Answers in the JSON form of `ClassifyResponse`, in the shape of the HTTP face. What is zero is left out there.
fn as_systemone(response: &Value) -> Value {
    let number = |value: &Value| if value.is_null() { json!(0) } else { value.clone() };
    let one = |answer: &Value| {
        let mut shown = Map::new();
        for (kind, keys) in [
            ("choice", &["choice", "confidence"][..]),
            ("score", &["score", "confidence"]),
            ("noul", &["noul"]),
        ] {
            let Some(given) = answer.get(kind) else { continue };
            shown.insert("type".to_owned(), json!(kind));
            shown.extend(keys.iter().map(|key| ((*key).to_owned(), number(&given[*key]))));
            if kind == "noul" {
                continue;
            }
            let mut probabilities = Map::new();
            let mut legend = Map::new();
            for entry in given["probabilities"].as_array().unwrap() {
                let name = entry["name"]
                    .as_str()
                    .map_or_else(|| number(&entry["level"]).to_string(), str::to_owned);
                probabilities.insert(name.clone(), number(&entry["probability"]));
                legend.insert(name, entry["legend"]["text"].clone());
            }
            if kind == "score" {
                shown.insert("legend".to_owned(), Value::Object(legend));
            }
            shown.insert("probabilities".to_owned(), Value::Object(probabilities));
        }
        (
            answer["questionId"].as_str().unwrap().to_owned(),
            Value::Object(shown),
        )
    };
    Value::Object(response["answers"].as_array().unwrap().iter().map(one).collect())
}

async fn mesh() -> (Cluster, deltagate_tests::process::Process) {
    let cluster = Cluster::new(BINARY).unwrap();
    let up = cluster.up(&["--cpu"]).unwrap();
    cluster.ready().await.unwrap();
    (cluster, up)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_either_reflection_get_the_answers_of_http() {
    let (cluster, _up) = mesh().await;
    let web = http::post(
        &format!("{}/v1/systemone", url(cluster.ports.http)),
        &ticket_body(),
    )
    .await
    .unwrap();
    assert_eq!(web.status, 200, "{}", web.body);
    let gateway = cluster.ports.gateway;
    for client in CLIENTS {
        let response = client
            .ask(gateway, "deltagate.v1.ClassifierService/Classify", &ticket())
            .await;
        let difference = largest_difference(&as_systemone(&response), &web.body["answers"]);
        assert_eq!(difference, Ok(0.0), "{client:?}: {response}");
        assert_eq!(response["model"], web.body["model"]);
        // 64-bit numbers are texts in the JSON form.
        assert_eq!(
            response["usage"]["inputTokens"],
            web.body["usage"]["input_tokens"].to_string()
        );

        let request = json!({"request": ticket()});
        let events = client
            .call(gateway, "deltagate.v1.ClassifierService/ClassifyStream", &request)
            .await;
        let (first, last) = (events.first().unwrap(), events.last().unwrap());
        assert_eq!(first["accepted"]["sequences"], 3, "{client:?}: {events:?}");
        assert_eq!(
            largest_difference(&as_systemone(&last["answers"]), &web.body["answers"]),
            Ok(0.0)
        );
        assert!(
            events.len() >= 5 && events[1]["segment"].is_object(),
            "{client:?}: {events:?}"
        );

        let unknown = json!({"model": "gpt-19", "state": {"text": "x"}, "questions": ticket()["questions"]});
        let classify = "deltagate.v1.ClassifierService/Classify";
        client
            .refused(gateway, classify, &unknown, ["NotFound", "not_found"])
            .await;
        client
            .refused(
                gateway,
                classify,
                &json!({}),
                ["InvalidArgument", "invalid_argument"],
            )
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_is_listed_described_and_called_through_reflection() {
    let (cluster, _up) = mesh().await;
    let ports = &cluster.ports;
    let own = |service: Service| -> &[&str] {
        match service {
            Service::Capability => &["Get", "Report", "Watch"],
            Service::Policy => &["DecideReadiness", "IssuePermit", "Watch"],
            Service::Executor => &["Describe", "Forward", "GetArtifact"],
            Service::Gateway => &["Classify", "ClassifyStream"],
        }
    };
    for client in CLIENTS {
        for service in Service::ALL {
            let (port, name) = (service.port(ports), service.entry());
            let methods = client.methods(port).await;
            for method in own(service)
                .iter()
                .map(|method| format!("{name}/{method}"))
                .chain(["grpc.health.v1.Health/Check".to_owned()])
            {
                assert!(
                    methods.contains(&method),
                    "{client:?}: {} has no {method}: {methods:?}",
                    service.name()
                );
            }
            let health = client
                .ask(port, "grpc.health.v1.Health/Check", &json!({"service": name}))
                .await;
            assert_eq!(health["status"], "SERVING", "{client:?}: {name}");
        }
        calls(client, &cluster).await;
    }
    // buf has no command for it.
    for service in Service::ALL {
        let target = format!("127.0.0.1:{}", service.port(ports));
        let described = tools::run(
            "bin/grpcurl",
            &["-plaintext", &target, "describe", service.entry()],
        )
        .await
        .unwrap();
        assert_eq!(described.code, Some(0), "{described:?}");
        for method in own(service) {
            assert!(
                described.out.contains(&format!("rpc {method} (")),
                "{}",
                described.out
            );
        }
    }
}

/// One call of each method that the gateway does not serve.
async fn calls(client: Client, cluster: &Cluster) {
    let ports = &cluster.ports;
    let (capability, policy, executor) = (ports.capability, ports.policy, ports.executor);
    let view = client
        .ask(capability, "deltagate.v1.CapabilityService/Get", &json!({}))
        .await;
    let snapshot = &view["executors"][0]["snapshot"];
    assert_eq!(snapshot["phase"], "EXECUTOR_PHASE_READY", "{client:?}: {view}");
    let report = "deltagate.v1.CapabilityService/Report";
    client
        .refused(
            capability,
            report,
            &json!({}),
            ["InvalidArgument", "invalid_argument"],
        )
        .await;

    let described = client
        .ask(executor, "deltagate.v1.ExecutorService/Describe", &json!({}))
        .await;
    assert_eq!(
        described["snapshot"]["fingerprint"], snapshot["fingerprint"],
        "{client:?}"
    );
    let artifacts = described["artifacts"].as_array().unwrap();
    let artifact = artifacts.iter().find(|a| a["name"] == "tokenizer.json").unwrap();
    let fetch = json!({"sha256": artifact["sha256"]});
    let chunks = client
        .call(executor, "deltagate.v1.ExecutorService/GetArtifact", &fetch)
        .await;
    let size: usize = chunks
        .iter()
        .map(|chunk| decoded_length(chunk["chunk"].as_str().unwrap()))
        .sum();
    assert_eq!(
        size.to_string(),
        artifact["sizeBytes"].as_str().unwrap(),
        "{client:?}"
    );
    let forward = "deltagate.v1.ExecutorService/Forward";
    client
        .refused(
            executor,
            forward,
            &json!({}),
            ["PermissionDenied", "permission_denied"],
        )
        .await;

    let asked = json!({
        "instanceId": snapshot["instanceId"], "capabilityFingerprint": snapshot["fingerprint"],
    });
    let decision = client
        .ask(policy, "deltagate.v1.PolicyService/DecideReadiness", &asked)
        .await;
    assert_eq!(decision["allowed"], true, "{client:?}: {decision}");
    let mut asked = asked;
    asked["gatewayId"] = json!("test");
    let issued = client
        .ask(policy, "deltagate.v1.PolicyService/IssuePermit", &asked)
        .await;
    assert!(
        issued["permit"]["signature"]
            .as_str()
            .is_some_and(|s| s.len() > 40),
        "{client:?}: {issued}"
    );

    // A watch goes on until its deadline; grpcurl can set one.
    if client == Client::Grpcurl {
        for (port, method, message) in [
            (capability, "deltagate.v1.CapabilityService/Watch", json!({})),
            (
                policy,
                "deltagate.v1.PolicyService/Watch",
                json!({"gatewayId": "test"}),
            ),
            (ports.gateway, "grpc.health.v1.Health/Watch", json!({})),
        ] {
            let message = message.to_string();
            let run = client
                .run(port, &["-max-time", "2", "-d", &message], method)
                .await;
            assert!(run.err.contains("DeadlineExceeded"), "{method}: {run:?}");
            assert!(!messages(&run).is_empty(), "{method}: {run:?}");
        }
    }
}

/// Bytes of a base64 text.
fn decoded_length(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    text.len() / 4 * 3 - padding
}
