//! The service over the real engine, with a small model of random weights: what comes out of gRPC is what the engine
//! computes, and kernels are swapped under load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_checkpoint::{LayerKind, ModelConfig, backbone_tensors};
use deltagate_executor::{
    engine::{
        Dtype, Engine, EngineSettings, ForwardObserver, ForwardPlan, Projection, RowSelection, SegmentDone,
        SequencePlan, TensorSource,
    },
    runner::{LoadError, LoadedModel, Loader, ModelLimits, ServedModel, of_engine},
};
use deltagate_kernels_api::{KernelFamily, Preference, Preferences};
use deltagate_kernels_weights::TensorView;
use deltagate_proto::v1::{self, ExecutorPhase, forward_response::Event, readout};
use support::{Bench, collect, config, eventually, runner::Script};
use tonic::Code;

struct Weights {
    config: ModelConfig,
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

impl Weights {
    fn random() -> Self {
        let kind = |i: usize| {
            if i % 4 == 3 {
                LayerKind::FullAttention
            } else {
                LayerKind::LinearAttention
            }
        };
        let config = ModelConfig {
            hidden_size: 64,
            intermediate_size: 96,
            layers: (0..8).map(kind).collect(),
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 32,
            rotary_dim: 8,
            rope_theta: 1e4,
            linear_num_key_heads: 2,
            linear_num_value_heads: 4,
            linear_key_head_dim: 32,
            linear_value_head_dim: 32,
            linear_conv_kernel_dim: 4,
            rms_norm_eps: 1e-6,
            vocab_size: 128,
            tie_word_embeddings: true,
            max_position_embeddings: 256,
        };
        let mut seed = 1u64;
        let mut random = move |range: f32| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0) * range
        };
        let tensors = backbone_tensors(&config).into_iter().map(|(name, shape)| {
            let range = if shape.len() == 2 {
                (3.0 / shape[1] as f32).sqrt()
            } else {
                0.4
            };
            let bytes = (0..shape.iter().product::<usize>())
                .flat_map(|_| random(range).to_le_bytes())
                .collect();
            (name, (shape, bytes))
        });
        Self {
            tensors: tensors.collect(),
            config,
        }
    }
}

impl TensorSource for Weights {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, String> {
        let (name, (shape, bytes)) = self.tensors.get_key_value(name).ok_or("no such tensor")?;
        Ok(TensorView {
            name,
            dtype: deltagate_checkpoint::Dtype::F32,
            shape,
            bytes,
        })
    }

    fn output_embedding(&self) -> Result<Option<TensorView<'_>>, String> {
        self.tensor("embed_tokens.weight").map(Some)
    }
}

fn prefer(backend: &str) -> Preferences {
    let mut preferences = Preferences::default();
    preferences.set(KernelFamily::DeltaRule, Preference::One(backend.to_owned()));
    preferences
}

fn engine(backend: &str) -> Engine {
    let settings = EngineSettings {
        threads: Some(1),
        segment_tokens: 64,
        preferences: prefer(backend),
        ..Default::default()
    };
    Engine::from_source(&Weights::random(), &settings, &mut |_| {}).unwrap()
}

fn loader(backend: &'static str) -> Loader {
    Box::new(move |_| {
        let limits = ModelLimits {
            max_tokens: 256,
            vocab_size: 128,
            hidden_size: 64,
            output_embedding: true,
            decision_head_rows: 0,
            joint_head: false,
        };
        let info = v1::ModelInfo {
            name: "random".to_owned(),
            max_tokens: 256,
            ..Default::default()
        };
        let served = ServedModel {
            info,
            card_json: "{}".to_owned(),
            assets: Vec::new(),
            limits,
        };
        Ok::<_, LoadError>(LoadedModel {
            runner: of_engine(engine(backend), Dtype::F32, "model".to_owned()),
            served,
        })
    })
}

async fn bench() -> Bench {
    let bench = Bench::over(config(), Arc::new(Script::default()), None, loader("cpu.chunked")).await;
    let mut snapshots = bench.handle.snapshots();
    let ready = snapshots.wait_for(|snapshot| snapshot.phase() == ExecutorPhase::Ready);
    tokio::time::timeout(Duration::from_secs(60), ready)
        .await
        .expect("ready within a minute")
        .unwrap();
    bench
}

fn token_ids(length: usize) -> Vec<u32> {
    (0..length)
        .map(|i| u32::try_from(i * 37 % 128).unwrap())
        .collect()
}

/// The same plan, on the wire and for the engine.
fn plan(bench: &Bench) -> (v1::ForwardRequest, ForwardPlan) {
    let wire = |length: usize, rows, projection| v1::Sequence {
        token_ids: token_ids(length),
        readout: Some(v1::Readout {
            rows: Some(rows),
            projection: Some(projection),
        }),
    };
    let request = v1::ForwardRequest {
        sequences: vec![
            wire(
                150,
                readout::Rows::Last(v1::LastRow {}),
                readout::Projection::OutputEmbedding(v1::OutputEmbeddingRows {
                    token_ids: vec![5, 127, 5],
                }),
            ),
            wire(
                9,
                readout::Rows::All(v1::AllRows {}),
                readout::Projection::Hidden(v1::HiddenRow {}),
            ),
            wire(
                70,
                readout::Rows::Positions(v1::RowPositions {
                    positions: vec![69, 0],
                }),
                readout::Projection::Hidden(v1::HiddenRow {}),
            ),
        ],
        segment_events: true,
        ..bench.request(0, &[1])
    };
    let sequence = |length, rows, projection| SequencePlan {
        token_ids: token_ids(length),
        rows,
        projection,
    };
    let plan = ForwardPlan {
        sequences: vec![
            sequence(
                150,
                RowSelection::Last,
                Projection::OutputEmbedding(vec![5, 127, 5]),
            ),
            sequence(9, RowSelection::All, Projection::Hidden),
            sequence(70, RowSelection::Positions(vec![69, 0]), Projection::Hidden),
        ],
        noncausal_full_attention: false,
    };
    (request, plan)
}

struct Unwatched;

impl ForwardObserver for Unwatched {
    fn segment(&mut self, _: &SegmentDone) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn result(events: &[Event]) -> &v1::ForwardResult {
    match events.last() {
        Some(Event::Result(result)) => result,
        other => panic!("no result: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_gives_what_the_engine_computes_bit_for_bit() {
    let bench = bench().await;
    let (request, plan) = plan(&bench);
    let events = collect(bench.client.clone(), request).await.unwrap();
    let expected = engine("cpu.chunked").forward(&plan, &mut Unwatched).unwrap();
    let got = result(&events);
    assert_eq!(got.outputs.len(), 3);
    for (got, expected) in got.outputs.iter().zip(&expected.sequences) {
        let got: Vec<_> = got.rows.iter().map(|row| (row.position, &row.values)).collect();
        let expected: Vec<_> = expected.iter().map(|row| (row.position, &row.values)).collect();
        assert_eq!(got, expected);
    }
    let segments: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Segment(segment) => Some((segment.sequence, segment.segment, segment.segments)),
            _ => None,
        })
        .collect();
    let of_first = segments.iter().filter(|(sequence, ..)| *sequence == 0).count();
    assert!(of_first >= 2, "150 tokens in segments of 64: {segments:?}");
    assert!(
        segments.contains(&(1, 0, 1)),
        "9 tokens are one segment: {segments:?}"
    );
    let delta_rule = got
        .kernels
        .iter()
        .find(|kernel| kernel.family() == v1::KernelFamily::DeltaRule)
        .unwrap();
    assert_eq!(delta_rule.backend, "cpu.chunked");
    assert!(delta_rule.launches > 0 && delta_rule.busy.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn kernels_are_swapped_under_load_and_answers_stay_the_same() {
    let bench = Arc::new(bench().await);
    let reference = collect(bench.client.clone(), plan(&bench).0).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let (bench, stop) = (Arc::clone(&bench), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut results = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match collect(bench.client.clone(), plan(&bench).0).await {
                        Ok(events) => results.push(result(&events).clone()),
                        Err(status) => {
                            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
                results
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let first = bench.fingerprint();
    let asked = Instant::now();
    let second = bench.handle.reload.rebind(prefer("cpu.recurrent")).await.unwrap();
    let bound = asked.elapsed();
    bench.wait_phase(ExecutorPhase::Ready).await;
    println!("swapped after {bound:?}, ready again after {:?}", asked.elapsed());
    assert_ne!(first, second);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let failed = bench
        .handle
        .reload
        .rebind(prefer("cpu.nonsense"))
        .await
        .unwrap_err();
    assert!(failed.to_string().contains("cpu.nonsense"), "{failed}");
    let snapshots = bench.handle.snapshots();
    eventually("the report names it", || {
        snapshots
            .borrow()
            .bindings
            .iter()
            .flat_map(|b| &b.candidates)
            .any(|c| c.backend == "cpu.nonsense")
    })
    .await;
    assert_eq!(bench.fingerprint(), second);
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.store(true, Ordering::Relaxed);

    let mut backends = BTreeMap::new();
    for caller in callers {
        for got in caller.await.unwrap() {
            let kernel = got
                .kernels
                .iter()
                .find(|k| k.family() == v1::KernelFamily::DeltaRule)
                .unwrap();
            let backend = if got.capability_fingerprint == first {
                "cpu.chunked"
            } else {
                "cpu.recurrent"
            };
            assert_eq!(
                kernel.backend, backend,
                "a request ran on another backend than its fingerprint says"
            );
            *backends.entry(backend).or_insert(0usize) += 1;
            for (got, wanted) in got.outputs.iter().zip(&result(&reference).outputs) {
                for (got, wanted) in got.rows.iter().zip(&wanted.rows) {
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * b.abs().max(1.0);
                    assert!(
                        got.values.iter().zip(&wanted.values).all(close),
                        "{backend} gives something else"
                    );
                }
            }
        }
    }
    assert_eq!(backends.len(), 2, "{backends:?}");
}
