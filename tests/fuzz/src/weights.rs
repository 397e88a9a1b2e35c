//! Safetensors files, through the same door as a model's.

use std::{fs, path::PathBuf, process, sync::OnceLock};

use deltagate_kernels_weights::WeightsFile;

/// The bytes of a safetensors file: refused by name, or every tensor lies inside of it.
pub fn safetensors_header(bytes: &[u8]) {
    let file = scratch();
    fs::write(file, bytes).expect("the scratch file can be written");
    let opened = match WeightsFile::open(file) {
        Ok(opened) => opened,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(opened.bytes(), bytes);
    let mut owned = opened.header_bytes().len();
    for name in opened.names() {
        let Ok(tensor) = opened.tensor(name) else {
            // Of a dtype that weights are not read from.
            return;
        };
        assert_eq!(tensor.name, name);
        assert_eq!(tensor.elements(), tensor.shape.iter().product::<usize>());
        assert_eq!(tensor.bytes.len(), tensor.elements() * tensor.dtype.size());
        assert_eq!(tensor.to_f32().len(), tensor.elements());
        owned += tensor.bytes.len();
    }
    assert_eq!(owned, bytes.len(), "bytes that no tensor owns");
}

/// A file of this process, in memory where there is a place for that.
fn scratch() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let shared_memory = PathBuf::from("/dev/shm");
        let dir = if shared_memory.is_dir() {
            shared_memory
        } else {
            std::env::temp_dir()
        };
        dir.join(format!("deltagate-fuzz-{}.safetensors", process::id()))
    })
}
