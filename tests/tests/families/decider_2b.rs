//! Decider-2B: rows behind a shared context, and scores level by level.

use std::collections::BTreeSet;

use deltagate_decider::families::decider_2b::labels::LABELS;
use deltagate_tests::{cluster::Cluster, requests::ticket_body, tree::qwen35_tokenizer};
use serde_json::{Value, json};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_the_decider_rows_of_the_specification() {
    let dir = process::folder().unwrap();
    let tokenizer = qwen35_tokenizer().unwrap().display().to_string();
    let of = ["--family", "decider_2b", "--tokenizer", &tokenizer];
    let rows = explained(dir.path(), &of, &ticket_body()).await;
    let lengths: Vec<usize> = rows.iter().map(|row| ids(row).len()).collect();
    assert_eq!(
        (lengths.len(), lengths[0], lengths[1], lengths[4]),
        (5, 76, 74, 62)
    );
    assert!(
        rows[0]["text"]
            .as_str()
            .unwrap()
            .ends_with("\n(C) other\nAnswer: (")
    );

    let options: serde_json::Map<_, _> = (0..11).map(|i| (format!("o{i}"), Value::Null)).collect();
    let wide = json!({"state": "s", "questions": {"q": {"instructions": "Pick", "criteria": options}}});
    let rows = explained(dir.path(), &of, &wide).await;
    let ids: Vec<u64> = ids(&rows[0]).iter().map(|id| id.as_u64().unwrap()).collect();
    let begin = [
        1905, 25, 198, 82, 271, 14162, 25, 19123, 198, 3670, 25, 198, 7, 32, 8, 296, 15, 198, 7, 33,
    ];
    let end = [198, 7, 42, 8, 296, 16, 15, 198, 15666, 25, 318];
    assert_eq!((ids.len(), &ids[..begin.len()]), (82, &begin[..]));
    assert!(ids.ends_with(&end), "{ids:?}");
}

/// Makes room for every label that is not one token: the last merges of a vocabulary are part of no other.
fn with_labels(file: &Path) {
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let model = &mut tokenizer["model"];
    let vocabulary = model["vocab"].as_object_mut().unwrap();
    let missing: Vec<&str> = LABELS
        .into_iter()
        .filter(|label| !vocabulary.contains_key(*label))
        .collect();
    let mut by_id: Vec<(u64, String)> = vocabulary
        .iter()
        .filter(|(token, _)| !LABELS.contains(&token.as_str()))
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
        .collect();
    by_id.sort_unstable();
    let mut removed = BTreeSet::new();
    let mut merges = Vec::new();
    for (label, (id, token)) in missing.iter().zip(by_id.into_iter().rev()) {
        vocabulary.shift_remove(&token);
        vocabulary.insert((*label).to_owned(), json!(id));
        merges.push(json!([label[..1], label[1..]]));
        removed.insert(token);
    }
    let old = model["merges"].as_array_mut().unwrap();
    let result = |merge: &Value| match merge {
        Value::String(merge) => merge.replace(' ', ""),
        parts => format!("{}{}", parts[0].as_str().unwrap(), parts[1].as_str().unwrap()),
    };
    if old[0].is_string() {
        merges.iter_mut().for_each(|merge| {
            *merge = json!(format!(
                "{} {}",
                merge[0].as_str().unwrap(),
                merge[1].as_str().unwrap()
            ))
        });
    }
    old.retain(|merge| !removed.contains(&result(merge)));
    old.extend(merges);
    std::fs::write(file, tokenizer.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_decider_config_is_served() {
    let cluster = Cluster::new(BINARY).unwrap();
    let (dir, model) = (cluster.path(""), cluster.path("decider"));
    backbone(&model);
    let file = model.join("tokenizer.json");
    with_labels(&file);
    let config = json!({
        "version": "2b-v11", "layout": "plain", "neutralize_none": false, "isolated_levels": true, "max_options": 255,
        "max_state_tokens": 400, "temperature": 1.145, "temperature_by_type": {"choice": 1.164, "noul": 1.624}
    });
    std::fs::write(model.join("decider_config.json"), config.to_string()).unwrap();
    let labels = tokens(&file, &LABELS[..12]);
    let model = model.display().to_string();
    assert_eq!(checked(&model).await["family"], "decider_2b");

    let mut body = ticket_body();
    let options: serde_json::Map<_, _> = (0..12).map(|i| (format!("o{i}"), Value::Null)).collect();
    body["questions"]["wide"] = json!({"instructions": "Pick", "criteria": options});
    let rows = explained(&dir, &["--model", &model], &body).await;
    assert_eq!(rows.len(), 6, "team, three levels, urgent, wide");
    let mut p = Vec::new();
    for (row, (options, temperature)) in rows.iter().zip([
        (3, 1.164),
        (2, 1.145),
        (2, 1.145),
        (2, 1.145),
        (2, 1.624),
        (12, 1.164),
    ]) {
        let logits = logits(&dir, &model, ids(row)).await;
        let own: Vec<f64> = labels.iter().take(options).map(|id| logits[*id]).collect();
        p.push(softmax(&own, f64::from(temperature as f32)));
    }
    let fit: Vec<f64> = p[1..4].iter().map(|p| p[1]).collect();
    let mass: f64 = fit.iter().sum();

    let mut up = serve(&cluster, &model).await;
    let answer = ask(&cluster, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answers = &answer.body["answers"];
    for (name, p) in ["shipping", "billing", "other"].iter().zip(&p[0]) {
        near(&answers["team"]["probabilities"][name], *p);
    }
    near(&answers["severity"]["score"], (fit[1] + 2.0 * fit[2]) / mass);
    for (level, fit) in fit.iter().enumerate() {
        near(
            &answers["severity"]["probabilities"][level.to_string()],
            fit / mass,
        );
        near(&answers["severity"]["x_level_fit"][level.to_string()], *fit);
    }
    near(&answers["urgent"]["noul"], p[4][1]);
    for (option, p) in p[5].iter().enumerate() {
        near(&answers["wide"]["probabilities"][format!("o{option}")], *p);
    }
    assert!(p[0].iter().any(|other| (other - p[0][0]).abs() > 1e-3), "{p:?}");
    // The tokens that all rows begin with count once.
    let common = (0..)
        .take_while(|at| {
            rows.iter()
                .all(|row| ids(row).get(*at).is_some_and(|id| *id == ids(&rows[0])[*at]))
        })
        .count();
    let own: usize = rows.iter().map(|row| ids(row).len() - common).sum();
    assert_eq!(answer.body["usage"]["input_tokens"], json!(common + own));
    assert!(common > 40, "the context is shared");

    body["state"] = json!("word ".repeat(410));
    let refused = ask(&cluster, &body).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(
        refused.body["error"].as_str().unwrap().contains("the limit is"),
        "{}",
        refused.body
    );
    body["x_truncate_state"] = json!(true);
    let cut = ask(&cluster, &body).await;
    assert_eq!(cut.status, 200, "{}", cut.body);
    assert!(cut.body["usage"]["truncated_tokens"].as_u64().unwrap() > 0);
    up.kill().await.unwrap();

    // The same answers in the body of the publisher's server: rounded, with its own fields.
    let round = |value: &Value, digits: f64| {
        (value.as_f64().unwrap() * 10f64.powf(digits)).round() / 10f64.powf(digits)
    };
    let own = r#"gateway.own_responses=["decider"]"#;
    let mut up = cluster
        .up(&["--cpu", "--in-process", "--model", &model, "--set", own])
        .unwrap();
    cluster.ready().await.unwrap();
    body["state"] = ticket_body()["state"].clone();
    let theirs = ask(&cluster, &body).await.body;
    assert_eq!(theirs["model"], "decider-2b-v11");
    let (team, severity) = (&theirs["answers"]["team"], &theirs["answers"]["severity"]);
    near(
        &team["probabilities"]["other"],
        round(&answers["team"]["probabilities"]["other"], 4.0),
    );
    let top = json!(p[0].iter().copied().fold(0.0, f64::max));
    assert_eq!(team["x_p_max"], json!(round(&top, 4.0)));
    assert!(
        team["certainty"].is_number() && team.get("x_confidence").is_none(),
        "{team}"
    );
    assert_eq!(
        severity["score"],
        json!(round(&answers["severity"]["score"], 2.0))
    );
    assert_eq!(
        severity["level_fit"]["1"],
        json!(round(&answers["severity"]["x_level_fit"]["1"], 4.0))
    );
    assert!(theirs.get("capability_fingerprint").is_none(), "{theirs}");
    up.kill().await.unwrap();
}
