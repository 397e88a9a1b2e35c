//! Intern: a tokenizer with a token for a decision, and all questions in one pass.

use deltagate_tests::{cluster::Cluster, requests::ticket_body, tree::qwen35_tokenizer};
use serde_json::{Value, json};

use super::*;

const TEMPERATURE: f64 = 2.25;

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_intern_prompt_of_the_specification_byte_for_byte() {
    let dir = process::folder().unwrap();
    // The published tokenizers have one token more than the base models.
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(qwen35_tokenizer().unwrap()).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut marker = added.last().unwrap().clone();
    (marker["id"], marker["content"]) = (json!(248_077), json!("<decision>"));
    added.push(marker);
    let tokenizer = process::write(dir.path(), "tokenizer.json", &tokenizer.to_string()).unwrap();
    let explained = explained(
        dir.path(),
        &["--family", "intern", "--tokenizer", &tokenizer],
        &ticket_body(),
    )
    .await;
    assert_eq!(mark(&explained[0]), (322, "e8fc80106e9b4dc4".to_owned()));
    assert_eq!(explained[0]["read"], json!([299, 307, 315]));
    for at in [299, 307, 315] {
        assert_eq!(ids(&explained[0])[at..at + 2], [json!(328), json!(248_077)]);
    }
    assert_eq!(
        tokens(&qwen35_tokenizer().unwrap(), &["A", "Z", "a", "z", "0", "9"]),
        [32, 57, 64, 89, 15, 24]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_decision_token_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let (dir, model) = (cluster.path(""), cluster.path("intern"));
    backbone(&model);
    let file = model.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    // The vocabulary has no place for one more, and no prompt needs this one.
    let end = tokenizer["added_tokens"].as_array_mut().unwrap().iter_mut();
    let end = end
        .into_iter()
        .find(|token| token["content"] == "<|endoftext|>")
        .unwrap();
    end["content"] = json!("<decision>");
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let symbols = tokens(&file, &["A", "B", "C"]);
    let folder = model.display().to_string();
    let check = run(&["check", &folder, "--json"]).await;
    assert_ne!(check.code, Some(0));
    let findings = check.json().unwrap()["findings"].clone();
    assert_eq!(findings[0]["file"], "intern_decision.json", "{findings}");
    std::fs::write(
        model.join("intern_decision.json"),
        json!({"temperature": TEMPERATURE}).to_string(),
    )
    .unwrap();
    let card = checked(&folder).await;
    assert_eq!(
        (&card["family"], &card["family_config"]),
        (&json!("intern"), &json!({"temperature": TEMPERATURE}))
    );

    let explained = explained(&dir, &["--model", &folder], &ticket_body()).await;
    assert_eq!(explained.len(), 1, "one pass for all questions");
    let mut p = Vec::new();
    for (at, options) in explained[0]["read"].as_array().unwrap().iter().zip([3, 3, 2]) {
        let until = at.as_u64().unwrap() as usize + 1;
        let logits = logits(&dir, &folder, &ids(&explained[0])[..until]).await;
        let own: Vec<f64> = symbols.iter().take(options).map(|id| logits[*id]).collect();
        p.push(softmax(&own, TEMPERATURE));
    }
    let [team, severity, urgent] = &p[..] else {
        panic!()
    };

    let mut up = serve(&cluster, &folder).await;
    let answer = ask(&cluster, &ticket_body()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answers = &answer.body["answers"];
    for (name, p) in ["shipping", "billing", "other"].iter().zip(team) {
        near(&answers["team"]["probabilities"][name], *p);
    }
    near(
        &answers["team"]["x_confidence"],
        team.iter().copied().fold(0.0, f64::max),
    );
    near(&answers["severity"]["score"], severity[1] + 2.0 * severity[2]);
    near(&answers["urgent"]["noul"], urgent[1]);
    assert_eq!(
        answer.body["usage"]["input_tokens"],
        json!(ids(&explained[0]).len())
    );
    assert!(team.iter().any(|p| (p - team[0]).abs() > 1e-3), "{team:?}");

    let mut marked = ticket_body();
    marked["state"] = json!("a <decision> of one's own");
    let refused = ask(&cluster, &marked).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(
        refused.body["error"]
            .as_str()
            .unwrap()
            .contains("state: the text holds the reserved")
    );
    up.kill().await.unwrap();
}
