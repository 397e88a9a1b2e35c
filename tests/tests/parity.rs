//! `explain` and `forward`: what goes into a model and what comes out of it, against the numbers of others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use deltagate_tests::{
    model_folder,
    process::{self, Run},
    requests::ticket_body,
    tree::qwen35_tokenizer,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const BINARY: &str = env!("CARGO_BIN_EXE_deltagate-under-test");

async fn run(arguments: &[&str]) -> Run {
    process::run(BINARY, arguments, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_prompts_of_the_specification_byte_for_byte() {
    let dir = process::folder().unwrap();
    let request = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    let explain = [
        "explain",
        "--family",
        "startlux",
        "--tokenizer",
        &tokenizer,
        "--request",
        &request,
    ];
    let explained = run(&[&explain[..], &["--json"]].concat()).await;
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let document = explained.json().unwrap();
    assert_eq!(document["family"], "startlux");
    let sequences: Vec<_> = document["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            let ids = s["ids"].as_array().unwrap();
            let digest = hex::encode(Sha256::digest(s["text"].as_str().unwrap()));
            assert_eq!(s["read"], json!([ids.len() - 1]), "the last token is read");
            let end: Vec<_> = ids[ids.len() - 6..].iter().map(|i| i.as_u64().unwrap()).collect();
            assert_eq!(end, [74455, 198, 248_068, 271, 248_069, 271]);
            (
                s["question"].as_str().unwrap().to_owned(),
                ids.len(),
                digest[..16].to_owned(),
            )
        })
        .collect();
    let expected = [
        ("team", 108, "674258b26a8541fb"),
        ("severity", 108, "0839895fb1f07199"),
        ("urgent", 94, "589636c756dad410"),
    ];
    assert_eq!(
        sequences,
        expected.map(|(q, n, h)| (q.to_owned(), n, h.to_owned()))
    );

    let text = run(&explain).await;
    assert!(
        text.out.contains("B) billing: Payments, refunds and invoices"),
        "{}",
        text.out
    );
    let short = run(&[&explain[..], &["--max-length", "100"]].concat()).await;
    assert_eq!(short.code, Some(2), "too long is refused, never cut: {short:?}");
    let unknown = run(&[
        "explain",
        "--family",
        "oracle",
        "--tokenizer",
        &tokenizer,
        "--request",
        &request,
    ])
    .await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    let alone = run(&["explain", "--family", "startlux", "--request", &request]).await;
    assert_eq!(alone.code, Some(2), "{alone:?}");
}

/// The printed numbers of the golden backbone: leading values of rows 69 and 5, the sum, the sum of absolutes.
struct Golden {
    flags: &'static [&'static str],
    row_69: [f64; 6],
    row_5: [f64; 6],
    sum: f64,
    abs_sum: f64,
}

const GOLDEN: [Golden; 2] = [
    Golden {
        flags: &[],
        row_69: [-0.25280, 1.17029, 2.01659, 1.65739, 0.62664, -0.26899],
        row_5: [-0.71055, 1.22538, 1.79146, 0.77805, -0.50533, -1.04241],
        sum: 72.480,
        abs_sum: 3840.75,
    },
    Golden {
        flags: &["--noncausal"],
        row_69: [-0.25262, 1.17014, 2.01613, 1.65695, 0.62648, -0.26882],
        row_5: [-0.61142, 1.15928, 1.61309, 0.67369, -0.42451, -0.79817],
        sum: 74.122,
        abs_sum: 3840.02,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn forward_reproduces_the_golden_backbone() {
    let dir = process::folder().unwrap();
    let ids: Vec<u32> = (0..70).map(|i| (7 * i + 3) % 97).collect();
    let ids = process::write(dir.path(), "ids.json", &json!(ids).to_string()).unwrap();
    for prefix in ["", "model.", "language_model.", "model.language_model."] {
        let model = dir.path().join(format!("golden-{prefix}"));
        model_folder::write_golden(&model, prefix).unwrap();
        let model = model.display().to_string();
        let check = run(&["check", &model, "--json"]).await;
        assert_eq!(
            (check.code, check.json().unwrap()["card"]["family"].clone()),
            (Some(0), Value::Null),
            "`{prefix}`: {check:?}"
        );
        // One prefix with both masks; the arithmetic does not depend on the prefix.
        let cases = if prefix == "model." {
            &GOLDEN[..]
        } else {
            &GOLDEN[..1]
        };
        for golden in cases {
            let flags = [
                &[
                    "forward", "--model", &model, "--ids", &ids, "--rows", "all", "--json",
                ],
                golden.flags,
            ]
            .concat();
            let forward = run(&flags).await;
            assert_eq!(forward.code, Some(0), "{forward:?}");
            let document = forward.json().unwrap();
            assert_eq!(
                (&document["tokens"], document["rows"].as_array().map(Vec::len)),
                (&json!(70), Some(70))
            );
            let near = |got: f64, want: f64, tolerance: f64, what: &str| {
                assert!(
                    (got - want).abs() <= tolerance,
                    "{:?} {what}: {got} is not {want}",
                    golden.flags
                );
            };
            for (row, expected) in [(69, golden.row_69), (5, golden.row_5)] {
                let row = &document["rows"][row];
                for (i, want) in expected.into_iter().enumerate() {
                    near(
                        row["values"][i].as_f64().unwrap(),
                        want,
                        2e-4,
                        &format!("row {} [{i}]", row["index"]),
                    );
                }
            }
            near(document["sum"].as_f64().unwrap(), golden.sum, 2e-2, "sum");
            near(
                document["abs_sum"].as_f64().unwrap(),
                golden.abs_sum,
                5e-2,
                "abs sum",
            );
            assert_eq!(
                document["logits"].as_array().map(Vec::len),
                Some(97),
                "the embedding is tied"
            );
        }
    }

    let model = dir.path().join("golden-").display().to_string();
    let last = run(&["forward", "--model", &model, "--ids", &ids]).await;
    assert!(
        last.out.contains("70 tokens") && last.out.contains("row 69:"),
        "{}",
        last.out
    );
    let beyond = process::write(dir.path(), "beyond.json", "[1, 97]").unwrap();
    assert_eq!(
        run(&["forward", "--model", &model, "--ids", &beyond]).await.code,
        Some(1)
    );
    let words = process::write(dir.path(), "words.json", "[\"one\"]").unwrap();
    assert_eq!(
        run(&["forward", "--model", &model, "--ids", &words]).await.code,
        Some(2)
    );
    // A backbone without a decider is nothing to serve or to explain.
    let request = process::write(dir.path(), "request.json", &ticket_body().to_string()).unwrap();
    let explain = run(&["explain", "--model", &model, "--request", &request]).await;
    assert_eq!(explain.code, Some(2), "{explain:?}");
}
