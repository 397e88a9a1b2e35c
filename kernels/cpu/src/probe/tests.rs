#![allow(clippy::unwrap_used, clippy::panic)]
use std::sync::Arc;

use candle_core::Tensor;
use deltagate_kernels_api::{
    AttentionShape, Beta, Candidate, Conv1d, Decay, DeltaRule, DeltaRuleShape, GateWeights, Gates, JointHead,
    JointHeadShape, JointQuestion, KernelFamily, LogDecay, Norm, PROBE_LENGTHS, ProbePlan, ProbeStage,
    Readout, probe,
};

use super::*;
use crate::{Chunked, CpuConv1d, CpuNorm, CpuReadout, Pool, candidates};

fn shapes(key_heads: usize, value_heads: usize) -> ModelShapes {
    ModelShapes {
        hidden: 192,
        intermediate: 320,
        vocabulary: 97,
        conv_taps: 4,
        delta_rule: DeltaRuleShape {
            key_heads,
            value_heads,
            key_dim: 128,
            value_dim: 128,
        },
        attention: AttentionShape {
            heads: 6,
            kv_heads: 2,
            head_dim: 256,
            rotary_dim: 64,
            rope_theta: 1e7,
            epsilon: 1e-6,
        },
        epsilon: 1e-6,
        joint_head: Some(JointHeadShape {
            width: 1024,
            routing_layers: 2,
            layers: 4,
            heads: 16,
            feedforward: 4096,
        }),
    }
}

/// Sizes that fill no lane, no tile and no block.
fn odd() -> ModelShapes {
    ModelShapes {
        hidden: 50,
        intermediate: 77,
        vocabulary: 13,
        conv_taps: 3,
        delta_rule: DeltaRuleShape {
            key_heads: 3,
            value_heads: 9,
            key_dim: 24,
            value_dim: 40,
        },
        attention: AttentionShape {
            heads: 3,
            kv_heads: 1,
            head_dim: 20,
            rotary_dim: 6,
            rope_theta: 1e4,
            epsilon: 1e-5,
        },
        epsilon: 1e-5,
        joint_head: Some(JointHeadShape {
            width: 21,
            routing_layers: 1,
            layers: 3,
            heads: 3,
            feedforward: 13,
        }),
    }
}

fn context(dtype: CpuDtype) -> Context {
    Context {
        shapes: shapes(2, 6),
        dtype,
    }
}

#[test]
fn every_candidate_passes_in_both_dtypes() {
    let pool = Pool::new(Some(2)).unwrap();
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {seed}");
    let plan = ProbePlan {
        seed,
        ..ProbePlan::default()
    };
    let mut seen = Vec::new();
    for (dtype, shapes) in [
        (CpuDtype::F32, shapes(2, 6)),
        (CpuDtype::F32, shapes(4, 4)),
        (CpuDtype::F32, odd()),
        (CpuDtype::Bf16, shapes(3, 6)),
        (CpuDtype::Bf16, odd()),
    ] {
        for candidate in candidates(&shapes, dtype, &pool) {
            for &family in candidate.families() {
                let report = probe(candidate.clone() as Arc<dyn Candidate>, family, &plan);
                println!(
                    "{} {family} {}: L2 {:.1e} worst {:.1e} {:?} {}",
                    dtype.as_str(),
                    report.backend,
                    report.relative_l2,
                    report.worst_element,
                    report.times,
                    report.reason
                );
                assert!(
                    report.passed && report.stage == ProbeStage::Timed,
                    "seed {seed}: {report:?}"
                );
                assert_eq!(report.source_digest.len(), 64);
                seen.push(family);
            }
        }
    }
    assert!(KernelFamily::ALL.iter().all(|f| seen.contains(f)));
}

/// Checks a broken op at every length and gives the lengths that notice.
fn noticed(backend: &Backend<Cpu>) -> Vec<usize> {
    let context = context(CpuDtype::F32);
    let bad = |tokens: &usize| {
        let case = ProbeCase {
            tokens: *tokens,
            seed: 7,
        };
        check(backend, &context, &case)
            .and_then(|a| context.bound().allows(&a))
            .is_err()
    };
    PROBE_LENGTHS.into_iter().filter(bad).collect()
}

struct PlainWeightNorm;
impl Norm<Cpu> for PlainWeightNorm {
    fn add_norm(
        &self,
        x: &mut Tensor,
        d: Option<&Tensor>,
        w: &Tensor,
        epsilon: f64,
    ) -> Result<Tensor, OpError> {
        let w = (w - 1.0).map_err(crate::space::device)?;
        CpuNorm.add_norm(x, d, &w, epsilon)
    }
}

struct ForgetsTheResidual;
impl Norm<Cpu> for ForgetsTheResidual {
    fn add_norm(
        &self,
        x: &mut Tensor,
        d: Option<&Tensor>,
        w: &Tensor,
        epsilon: f64,
    ) -> Result<Tensor, OpError> {
        let mut copy = x.copy().map_err(crate::space::device)?;
        CpuNorm.add_norm(&mut copy, d, w, epsilon)
    }
}

struct ReversedTaps;
impl Conv1d<Cpu> for ReversedTaps {
    fn conv1d(&self, x: &Tensor, taps: &Tensor) -> Result<Tensor, OpError> {
        let taps = taps
            .index_select(&Tensor::new(&[3u32, 2, 1, 0], taps.device()).unwrap(), 1)
            .unwrap();
        CpuConv1d.conv1d(x, &taps)
    }
}

/// Forgets the state between chunks, as a kernel does whose carry is broken.
struct NoCarry;
impl DeltaRule<Cpu> for NoCarry {
    fn gates(&self, ba: &Tensor, w: &GateWeights<'_, Cpu>) -> Result<Gates<Tensor>, OpError> {
        Chunked.gates(ba, w)
    }
    fn delta_rule(
        &self,
        qkv: &Tensor,
        gates: &Gates<Tensor>,
        shape: &DeltaRuleShape,
    ) -> Result<Tensor, OpError> {
        let Decay::Log(decay) = &gates.decay else {
            panic!("log")
        };
        let tokens = qkv.dims()[0];
        let parts: Vec<Tensor> = (0..tokens)
            .step_by(64)
            .map(|start| {
                let n = 64.min(tokens - start);
                let cut = |t: &Tensor| t.narrow(0, start, n).unwrap();
                let gates = Gates {
                    decay: Decay::Log(LogDecay(cut(&decay.0))),
                    beta: Beta(cut(&gates.beta.0)),
                };
                Chunked.delta_rule(&cut(qkv), &gates, shape).unwrap()
            })
            .collect();
        Ok(Tensor::cat(&parts, 0).unwrap())
    }
}

/// Leaves the last row of its output as it found it.
struct SkipsTheLastRow;
impl Conv1d<Cpu> for SkipsTheLastRow {
    fn conv1d(&self, x: &Tensor, taps: &Tensor) -> Result<Tensor, OpError> {
        let y = CpuConv1d.conv1d(x, taps)?;
        let (rows, columns) = y.dims2().unwrap();
        let unwritten = crate::buffer::output::<f32>(columns);
        let last = Tensor::from_vec(unwritten, (1, columns), y.device()).unwrap();
        Ok(Tensor::cat(&[&y.narrow(0, 0, rows - 1).unwrap(), &last], 0).unwrap())
    }
}

/// A joint head with a fault.
enum JointFault {
    /// The type of a question counts for nothing.
    ForgetsTheType,
    /// The tokens of an option are those of its neighbour.
    ReadsTheNextToken,
    /// Each question is decided by itself.
    AsksOneByOne,
    /// The last logit is not written.
    SkipsTheLastOption,
}

impl Readout<Cpu> for JointFault {
    fn hidden(&self, rows: &Tensor) -> Result<Vec<Vec<f32>>, OpError> {
        CpuReadout.hidden(rows)
    }

    fn logits(&self, rows: &Tensor, table: &Tensor, ids: &[u32]) -> Result<Vec<Vec<f32>>, OpError> {
        CpuReadout.logits(rows, table, ids)
    }

    fn joint(
        &self,
        rows: &Tensor,
        ids: &[u32],
        table: &Tensor,
        head: &JointHead<Cpu>,
        questions: &[JointQuestion],
    ) -> Result<Vec<f32>, OpError> {
        let (mut ids, mut questions) = (ids.to_vec(), questions.to_vec());
        match self {
            Self::ForgetsTheType => questions.iter_mut().for_each(|q| q.kind = (q.kind + 1) % 3),
            Self::ReadsTheNextToken => ids.rotate_left(1),
            Self::AsksOneByOne => {
                let alone =
                    |q: &JointQuestion| CpuReadout.joint(rows, &ids, table, head, std::slice::from_ref(q));
                let logits = questions.iter().map(alone).collect::<Result<Vec<_>, _>>()?;
                return Ok(logits.concat());
            }
            Self::SkipsTheLastOption => {
                let mut logits = CpuReadout.joint(rows, &ids, table, head, &questions)?;
                logits.pop();
                logits.extend(crate::buffer::output::<f32>(1));
                return Ok(logits);
            }
        }
        CpuReadout.joint(rows, &ids, table, head, &questions)
    }
}

#[test]
fn broken_joint_heads_are_noticed() {
    assert!(noticed(&Backend::Readout(Arc::new(CpuReadout))).is_empty());
    let notices = |fault| noticed(&Backend::Readout(Arc::new(fault)));
    assert_eq!(notices(JointFault::ForgetsTheType), PROBE_LENGTHS);
    // A sequence of one token has no next one, and a single question is alone.
    assert_eq!(notices(JointFault::ReadsTheNextToken), PROBE_LENGTHS[1..]);
    assert!(notices(JointFault::AsksOneByOne).len() >= 4);
    assert_eq!(notices(JointFault::SkipsTheLastOption), PROBE_LENGTHS);
}

#[test]
fn joint_heads_without_sense_are_refused() {
    let head = |shape| {
        let context = Context {
            shapes: ModelShapes {
                joint_head: shape,
                ..shapes(2, 6)
            },
            dtype: CpuDtype::F32,
        };
        context.loadable()
    };
    let good = shapes(2, 6).joint_head.unwrap();
    assert!(head(None).is_ok() && head(Some(good)).is_ok());
    for bad in [
        JointHeadShape { heads: 0, ..good },
        JointHeadShape { heads: 3, ..good },
        JointHeadShape { width: 0, ..good },
        JointHeadShape {
            feedforward: 0,
            ..good
        },
    ] {
        assert!(head(Some(bad)).is_err(), "{bad:?}");
    }
}

struct Backwards;
impl LaunchBackend for Backwards {
    fn launch(&self, calls: &mut dyn SegmentCalls) -> Result<(), OpError> {
        (0..calls.count()).rev().try_for_each(|i| calls.run(i))
    }
}

struct GoesOn;
impl LaunchBackend for GoesOn {
    fn launch(&self, calls: &mut dyn SegmentCalls) -> Result<(), OpError> {
        (0..calls.count()).map(|i| calls.run(i)).last().unwrap_or(Ok(()))
    }
}

#[test]
fn broken_ops_are_noticed() {
    assert!(noticed(&Backend::Norm(Arc::new(CpuNorm))).is_empty());
    assert_eq!(noticed(&Backend::Norm(Arc::new(PlainWeightNorm))), PROBE_LENGTHS);
    assert_eq!(
        noticed(&Backend::Norm(Arc::new(ForgetsTheResidual))),
        PROBE_LENGTHS
    );
    assert_eq!(noticed(&Backend::Conv1d(Arc::new(ReversedTaps))), PROBE_LENGTHS);
    assert_eq!(
        noticed(&Backend::Conv1d(Arc::new(SkipsTheLastRow))),
        PROBE_LENGTHS
    );
    assert_eq!(
        noticed(&Backend::DeltaRule(Arc::new(NoCarry))),
        [65, 127, 128, 136, 523]
    );
    assert_eq!(noticed(&Backend::Launch(Arc::new(Backwards))), PROBE_LENGTHS[1..]);
    assert!(noticed(&Backend::Launch(Arc::new(GoesOn))).contains(&136));
}
