"""Trains the small byte-level BPE. Only training-split prompts are read."""
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from generate import Sampler, prompt

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
VOCAB = 4096


def byte_alphabet():
    """The 256 byte tokens in GPT-2 order: printable bytes first, so that A..Z get the ids 32..57."""
    first = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = [chr(b) for b in first], 0
    for b in range(256):
        if b not in first:
            out.append(chr(256 + n))
            n += 1
    return out


def configure(tok):
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)


def train(path, draws=40000, seed=77):
    s = Sampler("train", seed)

    def texts():
        for _ in range(draws):
            p = prompt(s.draw())
            for t in SPECIAL:
                p = p.replace(t, "\n")
            yield p
    raw = Tokenizer(models.BPE())
    configure(raw)
    raw.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL), initial_alphabet=byte_alphabet(), special_tokens=[], show_progress=False))
    import json
    spec = json.loads(raw.to_str())
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in spec["model"]["merges"]]
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    for a, b in merges:                      # ids in merge order, after the bytes
        vocab.setdefault(a + b, len(vocab))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    configure(tok)
    tok.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL[:3]])
    tok.add_tokens([AddedToken(t, normalized=False) for t in SPECIAL[3:]])
    letters = [tok.encode(c).ids for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    assert letters == [[32 + i] for i in range(26)], letters
    p = prompt(Sampler("train", 1).draw())
    base = tok.encode(p).ids
    for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        assert tok.encode(p + c).ids == base + [32 + i]
    tok.save(path)
    return tok


if __name__ == "__main__":
    t = train(sys.argv[1])
    print("vocabulary", t.get_vocab_size())
