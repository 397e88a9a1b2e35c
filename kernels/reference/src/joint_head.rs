//! A head that decides all questions of a sequence together: it reads every final-norm row and gives one logit per option.
//!
//! Each option is a query that looks up evidence in the rows (evidence layers), each question is a token of a small decoder that sees
//! the other questions and the rows (decoder layers), and an option is scored against its question twice: by the cosine of what its
//! tokens mean in the output embedding (prior), and by cosine and residual of the two learned vectors.

use std::{collections::HashMap, ops::Range};

use crate::{gelu, layer_norm, linear, sigmoid};

/// Sizes of a joint head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointHeadShape {
    /// H, columns of the rows.
    pub hidden: usize,
    /// W, columns inside of the head.
    pub width: usize,
    /// Layers in which options look up evidence.
    pub routing_layers: usize,
    /// Layers of the decoder over questions.
    pub layers: usize,
    /// Heads of every attention; they share W evenly.
    pub heads: usize,
    /// F, columns inside of the feed-forward layers.
    pub feedforward: usize,
}

/// A question, by where its text and its options stand in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointQuestion {
    /// Row of the type embedding, below [`QUESTION_TYPES`].
    pub kind: usize,
    /// Tokens of the question, not empty.
    pub span: Range<usize>,
    /// Tokens of each option, none empty.
    pub options: Vec<Range<usize>>,
}

/// Rows of the type embedding.
pub const QUESTION_TYPES: usize = 3;

/// What the head computes, with what a step-by-step comparison needs. Options are numbered over all questions.
#[derive(Clone, Debug)]
pub struct JointHeadOutput {
    /// Mean normed row of each question, `[Q, H]`.
    pub questions: Vec<f64>,
    /// Options after the evidence layers, `[O, W]`.
    pub options: Vec<f64>,
    /// Scaled cosine in the space of the rows, `[O]`.
    pub prior: Vec<f64>,
    /// Cosine of option and question, `[O]`.
    pub cosine: Vec<f64>,
    /// What the scorer adds, `[O]`.
    pub residual: Vec<f64>,
    /// The logits, `[O]`.
    pub logits: Vec<f64>,
}

/// Every tensor of a head with its shape.
pub fn joint_head_tensors(shape: &JointHeadShape) -> Vec<(String, Vec<usize>)> {
    let JointHeadShape {
        hidden: h,
        width: w,
        feedforward: f,
        ..
    } = *shape;
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, dims: &[usize]| all.push((name, dims.to_vec()));
    for part in ["weight", "bias"] {
        add(format!("hidden_norm.{part}"), &[h]);
        for norm in ["option_summary_norm", "field_norm", "option_norm"] {
            add(format!("{norm}.{part}"), &[w]);
        }
    }
    for name in [
        "memory_projection",
        "question_projection",
        "option_question_projection",
        "global_projection",
        "option_context_projection",
        "option_lexical_projection",
    ] {
        add(format!("{name}.weight"), &[w, h]);
    }
    add("type_embedding.weight".to_owned(), &[QUESTION_TYPES, w]);
    let mut block = |at: String, norms: [&str; 3], attentions: &[&str], inner: &str, outer: &str| {
        for norm in norms {
            for part in ["weight", "bias"] {
                add(format!("{at}.{norm}.{part}"), &[w]);
            }
        }
        for attention in attentions {
            add(format!("{at}.{attention}.in_proj_weight"), &[3 * w, w]);
            add(format!("{at}.{attention}.in_proj_bias"), &[3 * w]);
            add(format!("{at}.{attention}.out_proj.weight"), &[w, w]);
            add(format!("{at}.{attention}.out_proj.bias"), &[w]);
        }
        add(format!("{at}.{inner}.weight"), &[f, w]);
        add(format!("{at}.{inner}.bias"), &[f]);
        add(format!("{at}.{outer}.weight"), &[w, f]);
        add(format!("{at}.{outer}.bias"), &[w]);
    };
    for i in 0..shape.routing_layers {
        block(
            format!("evidence_layers.{i}"),
            ["query_norm", "memory_norm", "feedforward_norm"],
            &["attention"],
            "feedforward.0",
            "feedforward.3",
        );
    }
    for i in 0..shape.layers {
        block(
            format!("layers.{i}"),
            ["norm1", "norm2", "norm3"],
            &["self_attn", "multihead_attn"],
            "linear1",
            "linear2",
        );
    }
    add("residual_scorer.0.weight".to_owned(), &[w, 4 * w]);
    add("residual_scorer.0.bias".to_owned(), &[w]);
    add("residual_scorer.3.weight".to_owned(), &[1, w]);
    add("residual_scorer.3.bias".to_owned(), &[1]);
    for name in ["prior_logit_scale", "joint_logit_scale", "residual_gate"] {
        add(name.to_owned(), &[]);
    }
    all
}

/// The head over the rows of one sequence: rows `[T, H]`, output embedding `[V, H]`, ids `[T]` -> a logit per option, in the order of
/// the questions and of their options. There is no mask, no position and no temperature anywhere.
///
/// # Panics
/// If a tensor is missing or of another size, a span is empty or outside of the sequence, or an id is not below `V`.
pub fn joint_head(
    shape: &JointHeadShape,
    tensors: &HashMap<String, Vec<f64>>,
    rows: &[f64],
    output_embedding: &[f64],
    ids: &[u32],
    questions: &[JointQuestion],
) -> JointHeadOutput {
    let (h, w) = (shape.hidden, shape.width);
    let head = Head { shape, tensors };
    assert_eq!(rows.len(), ids.len() * h, "rows");
    for (name, dims) in joint_head_tensors(shape) {
        assert_eq!(head.tensor(&name).len(), dims.iter().product(), "{name}");
    }

    // 1. The normed rows, the memory that everything attends to, and the last row as a summary of the whole.
    let x = head.norm("hidden_norm", rows);
    let memory = linear(&x, head.tensor("memory_projection.weight"), h);
    let last = &x[(ids.len() - 1) * h..];

    // 2. Means over spans: of questions and options in the rows, of the options' tokens in the output embedding.
    let v: Vec<f64> = questions.iter().flat_map(|q| mean(&x, &q.span, h)).collect();
    let own: Vec<usize> = questions
        .iter()
        .enumerate()
        .flat_map(|(at, q)| q.options.iter().map(move |_| at))
        .collect();
    let spans = || questions.iter().flat_map(|q| &q.options);
    let context: Vec<f64> = spans().flat_map(|span| mean(&x, span, h)).collect();
    let lexical: Vec<f64> = spans()
        .flat_map(|span| {
            let rows = crate::embed(&ids[span.clone()], output_embedding, h);
            mean(&rows, &(0..span.len()), h)
        })
        .collect();
    let of_own: Vec<f64> = own.iter().flat_map(|&q| v[q * h..(q + 1) * h].to_vec()).collect();

    // 3. An option is what it says, what its tokens mean alone, and which question it belongs to.
    let mut r = linear(&context, head.tensor("option_context_projection.weight"), h);
    add(
        &mut r,
        &linear(&lexical, head.tensor("option_lexical_projection.weight"), h),
    );
    add(
        &mut r,
        &linear(&of_own, head.tensor("option_question_projection.weight"), h),
    );

    // 4. Evidence: all options of all questions look into the memory.
    for i in 0..shape.routing_layers {
        let at = |part: &str| format!("evidence_layers.{i}.{part}");
        let (query, keys) = (
            head.norm(&at("query_norm"), &r),
            head.norm(&at("memory_norm"), &memory),
        );
        add(&mut r, &head.attention(&at("attention"), &query, &keys));
        let normed = head.norm(&at("feedforward_norm"), &r);
        add(
            &mut r,
            &head.feedforward(&at("feedforward.0"), &at("feedforward.3"), &normed),
        );
    }

    // 5. A question sees its own options, weighted by how well they fit it.
    let b = linear(&v, head.tensor("question_projection.weight"), h);
    let mut summaries = Vec::new();
    for (q, b) in b.chunks_exact(w).enumerate() {
        let options: Vec<&[f64]> = r
            .chunks_exact(w)
            .zip(&own)
            .filter(|(_, own)| **own == q)
            .map(|(option, _)| option)
            .collect();
        let scores: Vec<f64> = options.iter().map(|r| dot(r, b) / (w as f64).sqrt()).collect();
        let weights = softmax(&scores);
        summaries.extend((0..w).map(|j| options.iter().zip(&weights).map(|(r, a)| a * r[j]).sum::<f64>()));
    }

    // 6. The questions as tokens of a decoder.
    let mut f = b;
    add(&mut f, &head.norm("option_summary_norm", &summaries));
    let global = linear(last, head.tensor("global_projection.weight"), h);
    let types = head.tensor("type_embedding.weight");
    for (f, question) in f.chunks_exact_mut(w).zip(questions) {
        add(f, &global);
        add(f, &types[question.kind * w..(question.kind + 1) * w]);
    }

    // 7. The decoder, over questions. Its memory is not normed.
    for j in 0..shape.layers {
        let at = |part: &str| format!("layers.{j}.{part}");
        let n = head.norm(&at("norm1"), &f);
        add(&mut f, &head.attention(&at("self_attn"), &n, &n));
        let n = head.norm(&at("norm2"), &f);
        add(&mut f, &head.attention(&at("multihead_attn"), &n, &memory));
        let n = head.norm(&at("norm3"), &f);
        add(&mut f, &head.feedforward(&at("linear1"), &at("linear2"), &n));
    }

    // 8. to 11. The score of an option.
    let f = head.norm("field_norm", &f);
    let e = head.norm("option_norm", &r);
    let scale = |name: &str| head.tensor(name)[0].min(100f64.ln()).exp();
    let gate = sigmoid(head.tensor("residual_gate")[0]);
    let (mut prior, mut cosine, mut residual, mut logits) = (vec![], vec![], vec![], vec![]);
    for (o, &q) in own.iter().enumerate() {
        let lexical = &lexical[o * h..(o + 1) * h];
        let asked: Vec<f64> = v[q * h..(q + 1) * h]
            .iter()
            .zip(last)
            .map(|(v, g)| v + g)
            .collect();
        let length = |x: &[f64]| dot(x, x).sqrt();
        let similar = dot(lexical, &asked) / (length(lexical).max(1e-12) * length(&asked).max(1e-12));
        prior.push(scale("prior_logit_scale") * similar);

        let (f, e) = (&f[q * w..(q + 1) * w], &e[o * w..(o + 1) * w]);
        cosine.push(dot(f, e) / (length(f) * length(e)).max(1e-8));
        let mut pair = [f, e].concat();
        pair.extend(f.iter().zip(e).map(|(f, e)| f * e));
        pair.extend(f.iter().zip(e).map(|(f, e)| (f - e).abs()));
        residual.push(head.feedforward("residual_scorer.0", "residual_scorer.3", &pair)[0]);
        logits.push(prior[o] + gate * (scale("joint_logit_scale") * cosine[o] + residual[o]));
    }
    JointHeadOutput {
        questions: v,
        options: r,
        prior,
        cosine,
        residual,
        logits,
    }
}

struct Head<'a> {
    shape: &'a JointHeadShape,
    tensors: &'a HashMap<String, Vec<f64>>,
}

impl Head<'_> {
    #[expect(clippy::panic, reason = "an oracle panics where its caller is wrong")]
    fn tensor(&self, name: &str) -> &[f64] {
        match self.tensors.get(name) {
            Some(values) => values,
            None => panic!("no tensor `{name}`"),
        }
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let part = |part: &str| self.tensor(&format!("{name}.{part}"));
        layer_norm(x, part("weight"), part("bias"), 1e-5)
    }

    /// `outer(gelu(inner(x)))`.
    fn feedforward(&self, inner: &str, outer: &str, x: &[f64]) -> Vec<f64> {
        let layer = |name: &str, x: &[f64]| {
            let part = |part: &str| self.tensor(&format!("{name}.{part}"));
            affine(x, part("weight"), part("bias"))
        };
        let inside: Vec<f64> = layer(inner, x).into_iter().map(gelu).collect();
        layer(outer, &inside)
    }

    /// Multi-head attention of all queries over all keys: `query` `[A, W]`, `memory` `[B, W]` -> `[A, W]`.
    fn attention(&self, name: &str, query: &[f64], memory: &[f64]) -> Vec<f64> {
        let (w, d) = (self.shape.width, self.shape.width / self.shape.heads);
        let tensor = |part: &str| self.tensor(&format!("{name}.{part}"));
        let part = |part: usize, x: &[f64]| {
            let rows = part * w..(part + 1) * w;
            let weight = &tensor("in_proj_weight")[rows.start * w..rows.end * w];
            affine(x, weight, &tensor("in_proj_bias")[rows])
        };
        let (q, k, v) = (part(0, query), part(1, memory), part(2, memory));
        let mut mixed = vec![0.0; q.len()];
        for (row, q) in mixed.chunks_exact_mut(w).zip(q.chunks_exact(w)) {
            for head in (0..w).step_by(d) {
                let of_head = head..head + d;
                let scores: Vec<f64> = k
                    .chunks_exact(w)
                    .map(|k| dot(&q[of_head.clone()], &k[of_head.clone()]) / (d as f64).sqrt())
                    .collect();
                for (weight, v) in softmax(&scores).iter().zip(v.chunks_exact(w)) {
                    row[of_head.clone()]
                        .iter_mut()
                        .zip(&v[of_head.clone()])
                        .for_each(|(y, v)| *y += weight * v);
                }
            }
        }
        affine(&mixed, tensor("out_proj.weight"), tensor("out_proj.bias"))
    }
}

/// `x Wᵀ + b`.
fn affine(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut y = linear(x, weight, weight.len() / bias.len());
    y.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
    y
}

fn add(to: &mut [f64], from: &[f64]) {
    assert_eq!(to.len(), from.len(), "terms of a sum");
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Mean of some rows of `[_, columns]`.
fn mean(x: &[f64], span: &Range<usize>, columns: usize) -> Vec<f64> {
    assert!(!span.is_empty(), "an empty span has no mean");
    (0..columns)
        .map(|j| span.clone().map(|row| x[row * columns + j]).sum::<f64>() / span.len() as f64)
        .collect()
}
