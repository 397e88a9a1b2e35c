//! What a safetensors file is read as, and every way in which it is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use deltagate_kernels_weights::{Dtype, Fault, WeightsFile};
use tempfile::TempDir;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn write(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// The error for such a file; its message must name the file.
fn refused(bytes: &[u8]) -> Fault {
    let (_dir, path) = write(bytes);
    let error = WeightsFile::open(&path).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    error.fault
}

const GOOD: &str = concat!(
    r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"#,
    r#""a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"n":{"dtype":"I64","shape":[],"data_offsets":[14,22]}}"#
);

fn good_data() -> Vec<u8> {
    let mut data: Vec<u8> = [1.0f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    data.extend([0x80, 0x3F, 0x00, 0x40, 0x40, 0x40]);
    data.extend(7i64.to_le_bytes());
    data
}

#[test]
fn a_good_file_gives_its_tensors() {
    let (_dir, path) = write(&file(GOOD, &good_data()));
    let weights = WeightsFile::open(&path).unwrap();
    let mut names: Vec<_> = weights.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "n"]);
    let a = weights.tensor("a").unwrap();
    assert_eq!(
        (a.name, a.dtype, a.shape, a.to_f32()),
        ("a", Dtype::F32, &[2, 1][..], vec![1.0, -2.5])
    );
    assert_eq!(weights.tensor("b").unwrap().to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!(weights.size(), 8 + GOOD.len() as u64 + 22);
    assert_eq!(&weights.header_bytes()[8..], GOOD.as_bytes());
}

#[test]
fn an_absent_tensor_and_an_unusable_dtype_are_named() {
    let (_dir, path) = write(&file(GOOD, &good_data()));
    let weights = WeightsFile::open(&path).unwrap();
    assert!(matches!(weights.tensor("c").unwrap_err().fault, Fault::Missing { tensor } if tensor == "c"));
    assert!(weights.contains("n"));
    let error = weights.tensor("n").unwrap_err().fault;
    assert!(
        matches!(&error, Fault::UnsupportedDtype { tensor, dtype, .. } if tensor == "n" && dtype == "I64")
    );
}

#[test]
fn lengths_that_the_file_does_not_have() {
    for size in [0, 7] {
        let error = refused(&vec![0; size]);
        assert!(
            matches!(error, Fault::HeaderLength { header: 8, size: s, .. } if s == size as u64),
            "{error}"
        );
    }
    let mut long = file(GOOD, &good_data());
    long[..8].copy_from_slice(&10_000u64.to_le_bytes());
    assert!(matches!(
        refused(&long),
        Fault::HeaderLength { header: 10_008, .. }
    ));
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(
        refused(&long),
        Fault::HeaderLength { header: u64::MAX, .. }
    ));
    // One byte short: the JSON is cut.
    long[..8].copy_from_slice(&(GOOD.len() as u64 - 1).to_le_bytes());
    assert!(matches!(refused(&long), Fault::Header(_)));
}

#[test]
fn truncated_data_name_the_tensor_that_is_cut() {
    let whole = file(GOOD, &good_data());
    let error = refused(&whole[..whole.len() - 1]);
    assert!(
        matches!(&error, Fault::OutOfRange { tensor, end: 22, available: 21, .. } if tensor == "n"),
        "{error}"
    );
}

#[test]
fn headers_that_are_no_headers() {
    for header in [
        "",
        "[]",
        "{",
        r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"__metadata__":{"n":1},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} {}"#,
    ] {
        let error = refused(&file(header, &[0; 4]));
        assert!(matches!(error, Fault::Header(_)), "{header}: {error}");
    }
}

#[test]
fn a_name_that_stands_twice() {
    // Equal offsets would pass for one tensor if the last of two entries simply won.
    let header = concat!(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"#,
        r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#
    );
    assert!(matches!(refused(&file(header, &[0; 8])), Fault::Duplicate { tensor } if tensor == "a"));
}

fn one(shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn shapes_and_offsets_that_disagree() {
    for (shape, offsets) in [
        ("[2]", "[0,4]"),
        ("[1]", "[4,0]"),
        ("[0]", "[0,4]"),
        ("[4294967296,4294967296,4294967296]", "[0,4]"),
        ("[9223372036854775808,2]", "[0,4]"),
    ] {
        let error = refused(&file(&one(shape, offsets), &[0; 4]));
        assert!(
            matches!(&error, Fault::Inconsistent { tensor, .. } if tensor == "a"),
            "{shape} {offsets}: {error}"
        );
    }
    let error = refused(&file(&one("[1]", "[4,8]"), &[0; 4]));
    assert!(matches!(
        error,
        Fault::OutOfRange {
            end: 8,
            available: 4,
            ..
        }
    ));
    let error = refused(&file(&one("[1]", "[0,18446744073709551615]"), &[0; 4]));
    assert!(
        matches!(error, Fault::OutOfRange { end: u64::MAX, .. }),
        "{error}"
    );
}

#[test]
fn overlaps_and_bytes_of_nobody() {
    let two = |second: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[1],"data_offsets":{second}}}}}"#
        )
    };
    let error = refused(&file(&two("[4,8]"), &[0; 8]));
    assert!(
        matches!(&error, Fault::Overlap { tensor, other, .. } if tensor == "b" && other == "a"),
        "{error}"
    );
    let gap = refused(&file(&two("[12,16]"), &[0; 16]));
    assert!(
        matches!(
            gap,
            Fault::Unowned {
                offset: 8,
                bytes: 4,
                ..
            }
        ),
        "{gap}"
    );
    let tail = refused(&file(&two("[8,12]"), &[0; 13]));
    assert!(
        matches!(
            tail,
            Fault::Unowned {
                offset: 12,
                bytes: 1,
                ..
            }
        ),
        "{tail}"
    );
}

#[test]
fn only_regular_files_are_mapped() {
    let dir = TempDir::new().unwrap();
    assert!(matches!(
        WeightsFile::open(dir.path()).unwrap_err().fault,
        Fault::NotRegular
    ));
    assert!(matches!(
        WeightsFile::open(&dir.path().join("absent")).unwrap_err().fault,
        Fault::Io(_)
    ));
    if Path::new("/dev/null").exists() {
        assert!(matches!(
            WeightsFile::open(Path::new("/dev/null")).unwrap_err().fault,
            Fault::NotRegular
        ));
    }
}

#[cfg(unix)]
#[test]
fn links_are_followed() {
    let (dir, path) = write(&file(GOOD, &good_data()));
    let link = dir.path().join("link.safetensors");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(WeightsFile::open(&link).unwrap().contains("a"));
}
