//! Probabilities of rows -> answers, and their form in the family's own body.

use serde_json::{Map, Value, json};

use super::prompt::shown;
use crate::probability::{entropy_confidence, round_decimal, softmax};
use crate::systemone::by_level;
use crate::{Answer, Criteria};

/// Of the options of a row. Logits are divided by the temperature in f32, as in the family's own program.
pub(super) fn probabilities(logits: &[f32], temperature: f32) -> Vec<f64> {
    let scaled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
    // A small temperature may make infinities of large logits; their order is all that is left of them then.
    let scaled: Vec<f32> = scaled
        .iter()
        .map(|logit| logit.clamp(f32::MIN, f32::MAX))
        .collect();
    softmax(&scaled, 1.0)
}

/// The answer, given the probabilities of each row of the question.
pub(super) fn answer(criteria: &Criteria, rows: &[Vec<f64>]) -> Answer {
    let Criteria::Score(levels) = criteria else {
        let p = rows.first().cloned().unwrap_or_default();
        // The prompt shows no first.
        return Answer::unrounded(criteria, p, 1);
    };
    let fit: Vec<f64> = rows
        .iter()
        .map(|p| p.get(1).copied().unwrap_or_default())
        .collect();
    let mass: f64 = fit.iter().sum();
    let share = |fit: &f64| {
        if mass > 0.0 {
            fit / mass
        } else {
            1.0 / levels.len() as f64
        }
    };
    let p = fit.iter().map(share).collect();
    let mut answer = Answer::unrounded(criteria, p, 0);
    if let Answer::Score { level_fit, .. } = &mut answer {
        *level_fit = Some(fit);
    }
    answer
}

/// As the family's own server writes it: rounded, with its extra fields.
pub(super) fn own(answer: &Answer) -> Value {
    let round = |x: f64| json!(round_decimal(x, 4));
    let top = |p: &[f64]| round(p.iter().copied().fold(0.0, f64::max));
    match answer {
        Answer::Choice {
            choice,
            confidence,
            probabilities,
            ..
        } => {
            let p: Vec<f64> = probabilities.iter().map(|(_, p)| *p).collect();
            let named = probabilities.iter().map(|(name, p)| (name.clone(), round(*p)));
            json!({
                "type": "choice", "choice": choice, "confidence": round(*confidence), "x_p_max": top(&p),
                "certainty": round(entropy_confidence(&p)), "probabilities": named.collect::<Map<_, _>>(),
            })
        }
        Answer::Score {
            score,
            confidence,
            probabilities: p,
            level_fit,
            legend,
            ..
        } => {
            let mut out = json!({
                "type": "score", "score": round_decimal(*score, 2), "confidence": round(*confidence), "x_p_max": top(p),
                "certainty": round(entropy_confidence(p)), "legend": by_level(legend.iter().map(|level| shown(level).into())),
                "probabilities": by_level(p.iter().map(|p| round(*p))),
            });
            if let Some(fit) = level_fit {
                out["level_fit"] = by_level(fit.iter().map(|fit| round(*fit))).into();
                // As the sum that probabilities are divided by, which is never 0.
                let mass: f64 = fit.iter().sum();
                out["fit_mass"] = round(if mass > 0.0 { mass } else { 1e-9 });
            }
            out
        }
        Answer::Noul { noul } => json!({"type": "noul", "noul": round(*noul)}),
    }
}
