//! `demo`: everything on free ports, three decisions, and where the time went.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::ExitCode,
    time::Instant,
};

use deltagate_proto::v1::classifier_service_client::ClassifierServiceClient;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    answers::{self, ResponseDocument},
    args::DemoArgs,
    body, caps,
    classify::refused,
    config::{self, Sources},
    output::{Failure, Output},
    up,
};

/// `demo --json`.
#[derive(Serialize)]
struct DemoDocument {
    ready_after_ms: f64,
    decisions: Vec<DecisionDocument>,
    capabilities: caps::View,
}

#[derive(Serialize)]
struct DecisionDocument {
    title: &'static str,
    request: Value,
    response: ResponseDocument,
}

/// What is asked: one request of each kind.
fn requests() -> [(&'static str, Value); 3] {
    let ticket = json!({
        "ticket": "I was charged twice for order #4411.", "amount": 12.5, "tags": ["billing", "app"],
    });
    [
        (
            "Which team?",
            json!({"state": ticket, "questions": {"team": {
                "type": "choice", "instructions": "Which team should handle this ticket?",
                "criteria": {"shipping": "Delivery and tracking", "billing": "Payments, refunds and invoices", "other": null},
            }}}),
        ),
        (
            "How severe?",
            json!({"state": "The app crashes every time I open it, and nobody in our company can work.", "questions": {"severity": {
                "type": "score", "instructions": "How severe is the impact?",
                "criteria": ["cosmetic", "annoying", "blocks the customer"],
            }}}),
        ),
        (
            "Yes or no?",
            json!({"state": "Please cancel my subscription and send my money back.", "questions": {"refund": {
                "type": "noul", "instructions": "Does the customer ask for a refund?",
            }}}),
        ),
    ]
}

pub(crate) async fn run(args: DemoArgs, sources: &Sources, output: Output) -> Result<ExitCode, Failure> {
    let mut sources = sources.clone();
    sources.set.extend(on_free_ports()?);
    // The demo's own services say only what goes wrong; a `--set telemetry.log_level=…` of the user still wins.
    if !sources.set.iter().any(|s| s.starts_with("telemetry.log_level")) {
        sources.set.push("telemetry.log_level=error".to_owned());
    }
    sources
        .set
        .extend(["policy.bundle=cpu".to_owned(), "up.models=[]".to_owned()]);
    if let Some(model) = &args.model {
        sources
            .set
            .push(format!("executor.model={}", json!(model.display().to_string())));
    }
    let config = sources.load(&[])?.value;
    config::validate(&config)?;

    output.note(
        "starting capability, policy, executor and gateway, one process each, on free ports of 127.0.0.1 …",
    );
    let (start, shutdown) = (Instant::now(), CancellationToken::new());
    let mesh = up::start(&sources, &config, false, shutdown.clone())?;
    let result = tokio::select! {
        result = decide(&config, &args, start, output) => result,
        () = mesh.failed.cancelled() => Err(Failure::failed("a service ended")),
    };
    shutdown.cancel();
    let ended = mesh.ended().await;
    let document = result?;
    ended?;
    output.print(&document, text)?;
    Ok(ExitCode::SUCCESS)
}

async fn decide(
    config: &config::Config,
    args: &DemoArgs,
    start: Instant,
    output: Output,
) -> Result<DemoDocument, Failure> {
    up::wait_ready(config, args.ready_within).await?;
    let ready_after_ms = start.elapsed().as_secs_f64() * 1e3;
    output.note(format!("ready after {ready_after_ms:.0} ms"));
    let mut client =
        ClassifierServiceClient::new(config::channel(&config::local_url(config.gateway.grpc_listen))?);
    let mut decisions = Vec::new();
    for (title, request) in requests() {
        let parsed = body::parse(request.to_string().as_bytes())?;
        let mut call = tonic::Request::new(body::to_proto(parsed.model, parsed.request));
        call.set_timeout(std::time::Duration::from_secs(30));
        let response = client.classify(call).await.map_err(refused)?.into_inner().into();
        decisions.push(DecisionDocument {
            title,
            request,
            response,
        });
    }
    let capabilities = caps::view(&config::local_url(config.capability.listen)).await?;
    Ok(DemoDocument {
        ready_after_ms,
        decisions,
        capabilities,
    })
}

/// Ports that were free a moment ago.
fn on_free_ports() -> Result<Vec<String>, Failure> {
    let local = || TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // All are held until the last is found, so that they differ.
    let listeners = (0..5)
        .map(|_| local())
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::failed)?;
    let addresses = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::failed)?;
    let [grpc, http, capability, policy, executor] = addresses[..] else {
        return Err(Failure::failed("too few free ports"));
    };
    let set = |key: &str, value: String| format!("{key}={value}");
    Ok(vec![
        set("gateway.grpc_listen", grpc.to_string()),
        set("gateway.http_listen", http.to_string()),
        set("gateway.capability", config::local_url(capability)),
        set("gateway.policy", config::local_url(policy)),
        set("capability.listen", capability.to_string()),
        set("policy.listen", policy.to_string()),
        set("policy.capability", config::local_url(capability)),
        set("executor.listen", executor.to_string()),
        set("executor.capability", config::local_url(capability)),
        set("executor.policy", config::local_url(policy)),
    ])
}

fn text(document: &DemoDocument) -> String {
    let mut out = String::new();
    for decision in &document.decisions {
        let state = &decision.request["state"];
        let state = state.as_str().map_or_else(|| state.to_string(), str::to_owned);
        out += &format!(
            "\n{}  {state}\n{}\n",
            decision.title,
            answers::text(&decision.response)
        );
    }
    if let Some(last) = document.decisions.last() {
        out += &format!(
            "\nWhere the time of the last forward pass went:\n{}\n",
            answers::kernels(&last.response)
        );
    }
    out += &format!(
        "\nWhat is bound, and what it was chosen over:\n{}",
        caps::text(&document.capabilities)
    );
    out
}
