//! The CPU as a device: one pool of threads that loading, probing and serving share.

use std::sync::Arc;

use candle_core::Tensor;
use deltagate_checkpoint::{JointHeadConfig, ModelConfig};
use deltagate_kernels_api::Bindable;
use deltagate_kernels_cpu::{Cpu, CpuDtype, Loader, Matrix, ModelShapes, Pool, candidates};
use deltagate_kernels_weights::TensorView;

use super::{
    Dtype, EngineError, EngineSettings,
    device::{Device, DeviceIdentity},
    shapes::{attention_shape, delta_rule_shape, joint_head_shape},
};

pub(super) struct CpuDevice {
    pool: Pool,
    loader: Loader,
    candidates: Vec<Arc<dyn Bindable<Cpu>>>,
}

impl CpuDevice {
    pub(super) fn open(
        config: &ModelConfig,
        joint_head: Option<&JointHeadConfig>,
        settings: &EngineSettings,
    ) -> Result<Self, EngineError> {
        let pool = Pool::new(settings.threads).map_err(|error| EngineError::Device {
            reason: error.to_string(),
        })?;
        let dtype = match settings.dtype {
            Dtype::F32 => CpuDtype::F32,
            Dtype::Bf16 => CpuDtype::Bf16,
        };
        let candidates = candidates(&shapes(config, joint_head), dtype, &pool);
        Ok(Self {
            pool,
            loader: Loader::new(dtype),
            candidates,
        })
    }
}

fn shapes(config: &ModelConfig, joint_head: Option<&JointHeadConfig>) -> ModelShapes {
    ModelShapes {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        vocabulary: config.vocab_size,
        conv_taps: config.linear_conv_kernel_dim,
        delta_rule: delta_rule_shape(config),
        attention: attention_shape(config),
        epsilon: config.rms_norm_eps,
        joint_head: joint_head.map(joint_head_shape),
    }
}

impl Device for CpuDevice {
    type Space = Cpu;

    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity {
            kind: "cpu".to_owned(),
            name: processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            compute_capability: instruction_set().to_owned(),
            id: "cpu:0".to_owned(),
        }
    }

    fn candidates(&self) -> &[Arc<dyn Bindable<Cpu>>] {
        &self.candidates
    }

    fn matrix(&self, parts: &[TensorView<'_>], inputs: usize) -> Result<Matrix, String> {
        self.pool
            .run(|| self.loader.matrix(parts, inputs))
            .map_err(|error| error.to_string())
    }

    fn table(&self, view: &TensorView<'_>, rows: usize, columns: usize) -> Result<Tensor, String> {
        self.pool
            .run(|| self.loader.table(view, rows, columns))
            .map_err(|error| error.to_string())
    }

    fn vector(&self, view: &TensorView<'_>, n: usize) -> Result<Tensor, String> {
        self.loader.vector(view, n).map_err(|error| error.to_string())
    }

    fn taps(&self, view: &TensorView<'_>, channels: usize, taps: usize) -> Result<Tensor, String> {
        self.loader
            .taps(view, channels, taps)
            .map_err(|error| error.to_string())
    }

    fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.run(f)
    }
}

/// As the kernel names it, on Linux.
fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The widest instruction set that the kernels make use of.
fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "x86-64-v4";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "x86-64-v3";
        }
    }
    std::env::consts::ARCH
}
