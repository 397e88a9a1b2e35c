//! A weight as it is loaded.

use deltagate_kernels_weights::TensorView;

/// A weight as it is loaded: as it lies in its file, or with what an adapter adds to it. The latter is made when it is asked for, and
/// freed with this.
#[derive(Debug)]
pub struct Weights<'a> {
    file: TensorView<'a>,
    merged: Option<Vec<u8>>,
}

impl<'a> Weights<'a> {
    pub(crate) const fn merged(file: TensorView<'a>, bytes: Vec<u8>) -> Self {
        Self {
            file,
            merged: Some(bytes),
        }
    }

    /// The elements, with the name, dtype and shape of the file.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            bytes: self.merged.as_deref().unwrap_or(self.file.bytes),
            ..self.file
        }
    }
}

impl<'a> From<TensorView<'a>> for Weights<'a> {
    fn from(file: TensorView<'a>) -> Self {
        Self { file, merged: None }
    }
}
