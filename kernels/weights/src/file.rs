//! A mapped file.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use safetensors::Dtype as FileDtype;

use crate::{
    Dtype, Fault, TensorView, WeightsError,
    header::{Header, LENGTH_BYTES},
};

/// A safetensors file that is mapped into memory and whose header has been checked.
pub struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
}

impl WeightsFile {
    /// Maps a file and checks its header. Links are followed: model caches are full of them.
    ///
    /// # Errors
    /// If the file is not a regular one, cannot be read, is truncated, or its header does not describe its bytes: wrong length, invalid
    /// JSON, duplicate names, offsets that are out of range, overlap or leave bytes over, shapes of another size.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let refuse = |fault| WeightsError {
            file: path.to_owned(),
            fault,
        };
        let (map, header) = open(path).map_err(refuse)?;
        Ok(Self {
            path: path.to_owned(),
            map,
            header,
        })
    }

    /// The path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// The length field and the header, as they stand in the file.
    pub fn header_bytes(&self) -> &[u8] {
        &self.map[..self.header.data_start]
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Names of all tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name, whatever its dtype.
    pub fn contains(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// A tensor by its name.
    ///
    /// # Errors
    /// If there is none, or if its dtype is not F32, BF16 or F16.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, WeightsError> {
        let Some((name, info)) = self.header.tensors.get_key_value(name) else {
            return Err(self.refuse(Fault::Missing {
                tensor: name.to_owned(),
            }));
        };
        let dtype = match info.dtype {
            FileDtype::F32 => Dtype::F32,
            FileDtype::BF16 => Dtype::Bf16,
            FileDtype::F16 => Dtype::F16,
            other => {
                return Err(self.refuse(Fault::UnsupportedDtype {
                    tensor: name.clone(),
                    dtype: other.to_string(),
                }));
            }
        };
        let (start, end) = info.data_offsets;
        let data = &self.map[self.header.data_start..];
        Ok(TensorView {
            name,
            dtype,
            shape: &info.shape,
            bytes: &data[start..end],
        })
    }

    fn refuse(&self, fault: Fault) -> WeightsError {
        WeightsError {
            file: self.path.clone(),
            fault,
        }
    }
}

impl std::fmt::Debug for WeightsFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightsFile")
            .field("path", &self.path)
            .field("tensors", &self.header.tensors.len())
            .finish()
    }
}

fn open(path: &Path) -> Result<(Mmap, Header), Fault> {
    // Asked before opening, because opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(Fault::Io)?.is_file() {
        return Err(Fault::NotRegular);
    }
    let file = File::open(path).map_err(Fault::Io)?;
    let metadata = file.metadata().map_err(Fault::Io)?;
    if !metadata.is_file() {
        return Err(Fault::NotRegular);
    }
    if metadata.len() == 0 {
        return Err(Fault::HeaderLength {
            header: LENGTH_BYTES as u64,
            size: 0,
        });
    }
    let map = map(&file).map_err(Fault::Io)?;
    let header = Header::read(&map)?;
    Ok((map, header))
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is private and read-only, and bytes are only ever read as integers of which every bit pattern is valid. What no
    // program can exclude is that another process shortens or rewrites the file while it is mapped: a read past the new end ends this
    // process with SIGBUS, and rewritten bytes would be other weights. Model folders are therefore required to stay as they are while
    // they are served (replace a folder, never a file in it), and an unpacked built-in model lies in a directory of its owner only.
    unsafe { Mmap::map(file) }
}
