//! The joint head of a model, onto the device.

use std::ops::Range;

use deltagate_checkpoint::joint_head_tensors;
use deltagate_kernels_api::{JointHead, JointHeadTensors, Space};
use deltagate_kernels_weights::{TensorView, first_not_finite};

use super::{
    EngineError, TensorSource,
    device::Device,
    shapes::joint_head_shape,
    weights::{Reader, failed},
};

/// How large its tensors are; 0 for a model without one.
pub(super) fn bytes(source: &dyn TensorSource) -> Result<u64, EngineError> {
    let tensors = source
        .joint_head()
        .map(|config| joint_head_tensors(&config))
        .unwrap_or_default();
    let size = |(name, _): (String, Vec<usize>)| {
        let view = source.joint_head_tensor(&name);
        view.map(|view| view.bytes.len() as u64)
            .map_err(|reason| failed(&name, reason))
    };
    tensors.into_iter().map(size).sum()
}

/// None for a model without one.
pub(super) fn load<D: Device>(
    reader: &mut Reader<'_, D>,
) -> Result<Option<JointHead<D::Space>>, EngineError> {
    let Some(config) = reader.source.joint_head() else {
        return Ok(None);
    };
    let shape = joint_head_shape(&config);
    let head = JointHead::load(shape, config.hidden_size, &mut Tensors { reader })?;
    Ok(Some(head))
}

struct Tensors<'r, 'a, D: Device> {
    reader: &'r mut Reader<'a, D>,
}

impl<'a, D: Device> Tensors<'_, 'a, D> {
    /// Some elements of a tensor. What is not finite is named by its place in the whole one, not in the part.
    fn elements(&self, name: &str, elements: Range<usize>) -> Result<TensorView<'a>, EngineError> {
        let refuse = |reason: String| failed(name, reason);
        let view = self.reader.source.joint_head_tensor(name).map_err(refuse)?;
        // A whole tensor is looked at while it is converted; a part would give the place inside of the part.
        if (elements.len() < view.elements() || view.shape.is_empty())
            && let Some((element, value)) = first_not_finite(view.dtype, view.bytes)
        {
            return Err(refuse(format!(
                "tensor `{name}` holds {value} at element {element}"
            )));
        }
        let size = view.dtype.size();
        let bytes = view.bytes.get(elements.start * size..elements.end * size);
        let bytes = bytes.ok_or_else(|| refuse(format!("has {} elements only", view.elements())))?;
        Ok(TensorView { bytes, ..view })
    }
}

impl<D: Device> JointHeadTensors<D::Space> for Tensors<'_, '_, D> {
    type Error = EngineError;

    fn matrix(
        &mut self,
        name: &str,
        rows: Range<usize>,
        inputs: usize,
    ) -> Result<<D::Space as Space>::Matrix, EngineError> {
        let view = self.elements(name, rows.start * inputs..rows.end * inputs)?;
        let shape = [rows.len(), inputs];
        let view = TensorView {
            shape: &shape,
            ..view
        };
        let matrix = self.reader.device.matrix(&[view], inputs);
        let matrix = matrix.map_err(|reason| failed(name, reason))?;
        self.reader.count(&[view]);
        Ok(matrix)
    }

    fn vector(
        &mut self,
        name: &str,
        elements: Range<usize>,
    ) -> Result<<D::Space as Space>::Tensor, EngineError> {
        let view = self.elements(name, elements.clone())?;
        let shape = [elements.len()];
        let view = TensorView {
            shape: &shape,
            ..view
        };
        let vector = self.reader.device.vector(&view, elements.len());
        let vector = vector.map_err(|reason| failed(name, reason))?;
        self.reader.count(&[view]);
        Ok(vector)
    }

    fn scalar(&mut self, name: &str) -> Result<f32, EngineError> {
        let view = self.elements(name, 0..1)?;
        self.reader.count(&[view]);
        let value = view.to_f32().first().copied();
        value.ok_or_else(|| failed(name, "is empty".to_owned()))
    }
}
