//! The model that is built into the binary.

use sha2::{Digest, Sha256};

include!(concat!(env!("OUT_DIR"), "/embedded_files.rs"));

/// A file of the built-in model.
#[derive(Clone, Copy)]
pub struct EmbeddedFile {
    /// File name.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

/// Files of the built-in model; none if the build was made without one.
pub fn embedded_files() -> Option<&'static [EmbeddedFile]> {
    FILES
}

/// A folder to unpack.
pub(crate) struct Model<'a> {
    /// Name of the folder.
    pub(crate) name: &'static str,
    pub(crate) files: &'a [EmbeddedFile],
}

impl Model<'_> {
    /// SHA-256 over names and bytes, lower-case hex.
    pub(crate) fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for file in self.files {
            for part in [file.name.as_bytes(), file.bytes] {
                hasher.update((part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        hex::encode(hasher.finalize())
    }
}

pub(crate) fn model() -> Option<Model<'static>> {
    FILES.map(|files| Model {
        name: "deltagate-mini",
        files,
    })
}
