//! Reads small files of a folder, within limits.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use serde_json::Value;

use crate::{Finding, Problem};

/// No configuration file comes near to it.
pub(crate) const MAX_JSON_BYTES: u64 = 4 << 20;
/// A real tokenizer has 20 MB.
pub(crate) const MAX_ASSET_BYTES: u64 = 256 << 20;

/// Whether something of this name lies in the folder, a broken link included.
pub(crate) fn exists(dir: &Path, name: &str) -> bool {
    dir.join(name).symlink_metadata().is_ok()
}

/// The bytes of a regular file of at most `limit` bytes.
pub(crate) fn read(dir: &Path, name: &str, limit: u64) -> Result<Vec<u8>, Finding> {
    let (file, size) = open(dir, name, limit)?;
    let mut bytes = Vec::new();
    // One byte more than the limit is asked for, in case the file grows while it is read.
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Finding::file(name, Problem::Io(error)))?;
    match bytes.len() as u64 {
        read if read > limit => Err(Finding::file(
            name,
            Problem::TooLarge {
                bytes: read.max(size),
                limit,
            },
        )),
        _ => Ok(bytes),
    }
}

/// Bytes and content of a JSON file. Of equal keys the last one counts, as for the programs that write these files.
pub(crate) fn json(dir: &Path, name: &str) -> Result<(Vec<u8>, Value), Finding> {
    let bytes = read(dir, name, MAX_JSON_BYTES)?;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok((bytes, value)),
        Err(error) => Err(Finding::file(name, Problem::Json(error.to_string()))),
    }
}

fn open(dir: &Path, name: &str, limit: u64) -> Result<(File, u64), Finding> {
    let refuse = |problem| Finding::file(name, problem);
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if exists(dir, name) => refuse(Problem::DanglingLink),
        io::ErrorKind::NotFound => refuse(Problem::MissingFile { needed_by: None }),
        _ => refuse(Problem::Io(error)),
    };
    let path = dir.join(name);
    // Asked before opening, because opening a pipe would wait for its writer.
    let metadata = fs::metadata(&path).map_err(io)?;
    if !metadata.is_file() {
        return Err(refuse(Problem::NotRegular));
    }
    if metadata.len() > limit {
        return Err(refuse(Problem::TooLarge {
            bytes: metadata.len(),
            limit,
        }));
    }
    Ok((File::open(&path).map_err(io)?, metadata.len()))
}
