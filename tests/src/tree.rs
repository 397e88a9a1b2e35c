//! The source tree, as the tidy tests read it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
        .to_path_buf()
}

/// Every file below `dir` whose name ends in `suffix`, without build output and version control.
pub fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() {
                if !matches!(&*name, "target" | ".git" | ".venv" | ".tools" | "__pycache__") {
                    pending.push(path);
                }
            } else if name.ends_with(suffix) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path relative to the root, with forward slashes.
pub fn relative(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}

/// Rust source without comments and without the contents of string literals, so that a rule about code is not
/// broken by a sentence about it. Line structure is kept.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    let keep_newlines = |out: &mut String, text: &str| out.extend(text.chars().filter(|c| *c == '\n'));
    while i < bytes.len() {
        let rest = &source[i..];
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            i += end;
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |e| e + 2);
            keep_newlines(&mut out, &rest[..end]);
            i += end;
        } else if let Some(hashes) = raw_string(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = &rest[hashes + 2..];
            let end = body
                .find(&close)
                .map_or(rest.len(), |e| hashes + 2 + e + close.len());
            keep_newlines(&mut out, &rest[..end]);
            out.push_str("\"\"");
            i += end;
        } else if bytes[i] == b'"' {
            let mut end = 1;
            while i + end < bytes.len() && bytes[i + end] != b'"' {
                end += if bytes[i + end] == b'\\' { 2 } else { 1 };
            }
            let end = (end + 1).min(rest.len());
            keep_newlines(&mut out, rest.get(..end).unwrap_or(rest));
            out.push_str("\"\"");
            i += end;
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\''") || rest.starts_with("'\\\"'") {
            i += rest[1..].find('\'').map_or(1, |e| e + 2);
            if rest.starts_with("'\\''") {
                i += 1;
            }
        } else {
            let c = rest.chars().next().unwrap_or(' ');
            out.push(c);
            i += c.len_utf8();
        }
        while i < bytes.len() && !source.is_char_boundary(i) {
            i += 1;
        }
    }
    out
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.bytes().take_while(|b| *b == b'#').count();
    (after.as_bytes().get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Whether `word` stands in `text` with no identifier character on either side.
pub fn has_word(text: &str, word: &str) -> bool {
    let ident = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(ident)
            && !text[at + word.len()..].chars().next().is_some_and(ident)
    })
}

/// The Qwen3.5 tokenizer that the set-up of the tests makes.
pub fn qwen35_tokenizer() -> anyhow::Result<PathBuf> {
    let file = root().join("target/fixtures/qwen35/tokenizer.json");
    anyhow::ensure!(
        file.is_file(),
        "{} is missing: make it with `bash tests/scripts/fetch-tokenizer.sh`",
        file.display()
    );
    Ok(file)
}
