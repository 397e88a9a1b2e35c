//! What a device must offer to the runtime.

use std::sync::Arc;

use deltagate_kernels_api::{Bindable, Space};
use deltagate_kernels_weights::TensorView;

/// Who a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Kind of device: `cpu`.
    pub kind: String,
    /// Name, for people.
    pub name: String,
    /// What code it can run: an instruction set on a CPU.
    pub compute_capability: String,
    /// Which one of its kind on this host.
    pub id: String,
}

/// A device with its memory space and the kernels that may run on it.
pub(super) trait Device: Send {
    type Space: Space;

    fn identity(&self) -> DeviceIdentity;

    /// Every candidate, for the model that the device was opened for.
    fn candidates(&self) -> &[Arc<dyn Bindable<Self::Space>>];

    /// `[N_i, inputs]` matrices, fused one below the other.
    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        inputs: usize,
    ) -> Result<<Self::Space as Space>::Matrix, String>;

    /// A table that is read row by row.
    fn table(
        &self,
        view: &TensorView<'_>,
        rows: usize,
        columns: usize,
    ) -> Result<<Self::Space as Space>::Tensor, String>;

    /// A small f32 weight.
    fn vector(&self, view: &TensorView<'_>, n: usize) -> Result<<Self::Space as Space>::Tensor, String>;

    /// Taps of a depthwise convolution: `[C, 1, K]` in the file.
    fn taps(
        &self,
        view: &TensorView<'_>,
        channels: usize,
        taps: usize,
    ) -> Result<<Self::Space as Space>::Tensor, String>;

    /// Runs `f` where the kernels of this device are to be called.
    fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R;
}
