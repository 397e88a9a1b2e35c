//! One digest over everything in a folder that decides an answer.

use deltagate_kernels_weights::WeightsFile;
use sha2::{Digest, Sha256};

/// Weights files up to this size are read in full. A larger one would take seconds to minutes at each start.
const WHOLE_FILE_BYTES: u64 = 64 << 20;
/// Of larger files, so much of each tensor: another training of the same architecture differs there.
const TENSOR_SAMPLE_BYTES: usize = 4096;

/// Collects named parts. Each part is framed by its name and length, so that two folders with the same digest have the same parts.
pub(crate) struct FolderDigest(Sha256);

impl FolderDigest {
    pub(crate) fn new() -> Self {
        Self(Sha256::new_with_prefix(b"deltagate checkpoint 1\n"))
    }

    pub(crate) fn part(&mut self, name: &str, bytes: &[u8]) {
        self.0.update((name.len() as u64).to_le_bytes());
        self.0.update(name);
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    pub(crate) fn weights(&mut self, name: &str, file: &WeightsFile) {
        if file.size() <= WHOLE_FILE_BYTES {
            return self.part(name, file.bytes());
        }
        self.part(name, file.header_bytes());
        self.part("size", &file.size().to_le_bytes());
        let mut names: Vec<&str> = file.names().collect();
        names.sort_unstable();
        // Tensors of other dtypes are not read, so they decide nothing.
        for view in names.into_iter().filter_map(|name| file.tensor(name).ok()) {
            self.part(
                view.name,
                &view.bytes[..view.bytes.len().min(TENSOR_SAMPLE_BYTES)],
            );
        }
    }

    /// Lower-case hex.
    pub(crate) fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::FolderDigest;

    fn digest(parts: &[(&str, &[u8])]) -> String {
        let mut digest = FolderDigest::new();
        for (name, bytes) in parts {
            digest.part(name, bytes);
        }
        digest.finish()
    }

    #[test]
    fn bytes_cannot_move_from_one_part_to_the_next() {
        assert_ne!(
            digest(&[("a", b"xy"), ("b", b"")]),
            digest(&[("a", b"x"), ("b", b"y")])
        );
        assert_ne!(digest(&[("ab", b"")]), digest(&[("a", b"b")]));
        assert_eq!(digest(&[("a", b"x")]).len(), 64);
    }
}
