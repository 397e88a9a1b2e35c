//! A model small enough for tests: a byte-level tokenizer without merges, and the StartLux family over it.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub(crate) const MAX_TOKENS: u32 = 4096;

/// Each byte is its own token, with the byte as its id; the four special tokens of the chat template follow.
pub(crate) fn tokenizer_json() -> Vec<u8> {
    let mut vocab = Map::new();
    let mut next = 256;
    for byte in 0..=255u8 {
        // The GPT-2 byte alphabet: printable bytes stand for themselves, the others for code points from 256 on.
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let letter = if printable {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap()
        };
        vocab.insert(letter.to_string(), json!(byte));
    }
    let special = |(id, content): (u32, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let added: Vec<Value> = [
        (256, "<|im_start|>"),
        (257, "<|im_end|>"),
        (258, "<think>"),
        (259, "</think>"),
    ]
    .into_iter()
    .map(special)
    .collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    });
    file.to_string().into_bytes()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// What `Describe` says of it.
pub(crate) fn card_json() -> String {
    let letters: Vec<u32> = (b'A'..=b'Z').map(u32::from).collect();
    json!({
        "name": "mini",
        "family": "startlux",
        "digest": "model-digest",
        "max_tokens": MAX_TOKENS,
        "family_config": {"letter_token_ids": letters, "temperature_by_type": {"choice": 1.5, "noul": 2.0, "score": 1.0}},
        "something_newer": true,
    })
    .to_string()
}
