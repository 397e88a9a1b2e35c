"""Trains deltagate-mini from nothing and writes the checkpoint folder.

    python train.py --out ../deltagate-mini --minutes 9
"""
import argparse
import json
import os
import random
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset

import tokenizer as tokmod
from evaluate import accuracy, answers, calibrate
from generate import Sampler, prompt
from model import Config, Model, Norm, save_checkpoint
from render import check_golden, options_of

WIDTHS = (128, 192, 448)


def option_ends(text, offsets, count):
    """Index of the last token of every option line."""
    end = text.rindex("<|im_end|>\n<|im_start|>assistant")
    lines = text[text.rindex("\nOptions:\n", 0, end) + 10:end].split("\n")
    assert len(lines) == count, text
    ends, at, k = [], end, len(offsets) - 1
    for line in reversed(lines):
        while offsets[k][0] >= at:
            k -= 1
        ends.append(k)
        at -= len(line) + 1
    return ends[::-1]


class Stream(IterableDataset):
    def __init__(self, tok_path, tokens, seed, widths=WIDTHS):
        self.tok_path, self.tokens, self.seed, self.widths = tok_path, tokens, seed, widths

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        seed = self.seed * 1000 + (info.id if info else 0)
        tok = Tokenizer.from_file(self.tok_path)
        s = Sampler("train", seed)
        buckets = {w: [] for w in self.widths}
        while True:
            ex = [s.draw() for _ in range(64)]
            texts = [prompt(e) for e in ex]
            for e, text, enc in zip(ex, texts, tok.encode_batch(texts, add_special_tokens=False)):
                n = len(enc.ids)
                w = next((w for w in self.widths if n <= w), None)
                if w is None:
                    continue
                b = buckets[w]
                k = len(options_of(e["request"]["questions"]["q"]))
                b.append((enc.ids, e["index"], k, option_ends(text, enc.offsets, k)))
                if len(b) == self.tokens // w:
                    ids = np.zeros((len(b), w), dtype=np.int32)
                    ends = np.zeros((len(b), 26), dtype=np.int64)
                    for i, x in enumerate(b):
                        ids[i, :len(x[0])] = x[0]
                        ends[i, :x[2]] = x[3]
                    yield (torch.from_numpy(ids), torch.tensor([len(x[0]) for x in b]), torch.tensor([x[1] for x in b]), torch.tensor([x[2] for x in b]), torch.from_numpy(ends))
                    buckets[w] = []


class Tutor(torch.nn.Module):
    """Two helper heads on the stream before the last layer, used in training only: at the last
    token of every option they ask "is this the right option?" and "which letter is it?"."""

    def __init__(self, hidden):
        super().__init__()
        self.norm = Norm(hidden)
        self.point = torch.nn.Linear(hidden, 1, bias=False)
        self.letter = torch.nn.Linear(hidden, 26, bias=False)

    def forward(self, stream, gold, count, ends):
        e = self.norm(stream.gather(1, ends[..., None].expand(-1, -1, stream.shape[-1]))).float()
        used = torch.arange(26, device=e.device) < count[:, None]
        s = self.point(e)[..., 0].float().masked_fill(~used, float("-inf"))
        which = torch.where(used, torch.arange(26, device=e.device), -100)
        return F.cross_entropy(s, gold), F.cross_entropy(self.letter(e).float().flatten(0, 1), which.flatten(), ignore_index=-100)


def heads(h, ids, lengths, gold, count, emb, lm_rows):
    """Letter loss over the options in use, and next-token loss over a share of the rows."""
    last = h[torch.arange(h.shape[0], device=h.device), lengths - 1].float()
    z = last @ emb[32:58].float().T
    z = z.masked_fill(torch.arange(26, device=h.device) >= count[:, None], float("-inf"))
    loss = F.cross_entropy(z, gold)
    hit = (z.argmax(-1) == gold).float().mean()
    lm = (h[:lm_rows, :-1].to(torch.bfloat16) @ emb.to(torch.bfloat16).T).float()
    target = ids[:lm_rows, 1:].long()
    keep = torch.arange(1, ids.shape[1], device=h.device)[None] < lengths[:lm_rows, None]
    target = torch.where(keep, target, -100)
    return loss, F.cross_entropy(lm.flatten(0, 1), target.flatten(), ignore_index=-100), hit


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=9.0, help="training time; the learning rate follows the clock")
    ap.add_argument("--tokens", type=int, default=32768, help="tokens of one batch")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--wd", type=float, default=0.1)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--lm", type=float, default=0.3)
    ap.add_argument("--hide", type=float, default=0.04, help="share of hidden tokens at the start; none at the end")
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--resume", help="start from the weights of this checkpoint folder")
    ap.add_argument("--tokenizer", help="use this tokenizer.json instead of training one")
    ap.add_argument("--no-graphs", action="store_true")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--report-draws", type=int, default=6000, help="decisions of each accuracy that is printed")
    ap.add_argument("--test", action="store_true", help="print the accuracy on the reserved wordings at the end")
    a = ap.parse_args()
    check_golden()
    os.makedirs(a.out, exist_ok=True)
    t_start = time.time()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    random.seed(a.seed)
    torch.set_float32_matmul_precision("high")
    tok_path = os.path.join(a.out, "tokenizer.json")
    if a.resume or a.tokenizer:
        tok = Tokenizer.from_file(a.tokenizer or os.path.join(a.resume, "tokenizer.json"))
        tok.save(tok_path)
    else:
        tok = tokmod.train(tok_path)
    cfg = Config()
    cfg.vocab = tokmod.VOCAB
    model = Model(cfg, a.dropout)
    if a.resume:
        from model import load_checkpoint
        model.load_state_dict(load_checkpoint(a.resume).state_dict())
    model.to(dev).train()
    tutor = Tutor(cfg.hidden).to(dev)
    print("parameters", sum(p.numel() for p in model.parameters()), "tokenizer", tok.get_vocab_size(), f"{time.time() - t_start:.0f}s", flush=True)
    named = list(model.named_parameters()) + list(tutor.named_parameters())
    decay = [p for _, p in named if p.ndim >= 2]
    plain = [p for _, p in named if p.ndim < 2]
    cuda = dev == "cuda"
    rate = torch.tensor(a.lr, device=dev)
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": a.wd}, {"params": plain, "weight_decay": 0.0}],
                            lr=rate if cuda else a.lr, betas=(0.9, 0.98), fused=cuda, capturable=cuda)
    loader = iter(DataLoader(Stream(tok_path, a.tokens, a.seed), batch_size=None, num_workers=a.workers, prefetch_factor=8))

    fast = None
    if not a.no_compile and cuda:
        torch._dynamo.config.cache_size_limit = 64
        fast = [torch.compile(layer, dynamic=False) for layer in model.layers]
    params = [p for _, p in named]
    lm_weight = torch.tensor(a.lm, device=dev)
    hide = torch.tensor(a.hide, device=dev)

    def train_step(ids, lengths, gold, count, ends):
        opt.zero_grad(set_to_none=True)
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=cuda, cache_enabled=False):
            # A few tokens are hidden, so that no single word is all that an answer hangs on.
            seen_ids = torch.where(torch.rand(ids.shape, device=dev) < hide, cfg.vocab - 5, ids)
            # the few wide batches are not worth a compilation of their own
            h, before = model(seen_ids, tap=True, fast=fast if ids.shape[1] <= 192 else None)
            loss, lm, hit = heads(h, ids, lengths, gold, count, model.embed_tokens.weight, ids.shape[0] // 3)
            point, letter = tutor(before, gold, count, ends)
            total = loss + lm_weight * lm + 0.5 * point + 0.1 * letter
        total.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        return torch.stack([loss, lm, point, letter, hit]).detach()

    graphs, want_graphs = {}, cuda and not a.no_graphs

    def run_step(batch):
        """After three plain steps of a width the whole step is recorded once and then replayed:
        the model is so small that launching kernels one by one would take most of the time."""
        nonlocal want_graphs
        w = batch[0].shape[1]
        seen[w] = seen.get(w, 0) + 1
        if w in graphs:
            g, static, out = graphs[w]
            for s, x in zip(static, batch):
                s.copy_(x)
            g.replay()
            return out.clone()
        batch = [x.to(dev) for x in batch]
        if not want_graphs or seen[w] <= 3:
            side = torch.cuda.Stream() if want_graphs else None
            if side is None:
                return train_step(*batch)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = train_step(*batch)
            torch.cuda.current_stream().wait_stream(side)
            return out
        try:
            torch.cuda.synchronize()
            opt.zero_grad(set_to_none=True)
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, capture_error_mode="thread_local"):
                out = train_step(*batch)
            graphs[w] = (g, batch, out)
            g.replay()
            print(f"width {w}: step recorded", flush=True)
            return out.clone()
        except Exception as e:      # plain steps are slower but equal
            print("recording failed, plain steps from here:", repr(e)[:300], flush=True)
            want_graphs = False
            torch.cuda.synchronize()
            return train_step(*batch)

    seen, step, t0, t_log, warm = {}, 0, None, time.time(), 300
    losses = []
    while True:
        batch = next(loader)
        frac = 0.0 if t0 is None else min(1.0, (time.time() - t0) / (a.minutes * 60))
        lr = a.lr * min(1.0, (step + 1) / warm) * (0.5 * (1 + np.cos(np.pi * frac)) * 0.99 + 0.01)
        lm_weight.fill_(a.lm * (1 - frac) + 0.02)
        hide.fill_(a.hide * max(0.0, 1 - 1.3 * frac))
        if cuda:
            rate.fill_(lr)
        else:
            for gr in opt.param_groups:
                gr["lr"] = lr
        losses.append(run_step(batch))
        step += 1
        if t0 is None and (seen.get(128, 0) > 3 and seen.get(192, 0) > 3 or step >= 200):   # the clock starts after compilation
            if cuda:
                torch.cuda.synchronize()
            t0 = time.time()
            print(f"compiled after {t0 - t_start:.0f}s", flush=True)
        if step % 100 == 0 and cuda:
            torch.cuda.synchronize()      # keep the clock honest
        if step % 500 == 0:
            m = torch.stack(losses).mean(0).tolist()
            losses = []
            print(f"step {step} {100 * frac:.0f}% loss {m[0]:.4f} lm {m[1]:.3f} point {m[2]:.4f} letter {m[3]:.3f} hit {m[4]:.4f} lr {lr:.5f} {500 * a.tokens / (time.time() - t_log) / 1e6:.2f} Mtok/s", flush=True)
            t_log = time.time()
        if frac >= 1.0:
            break
    del loader
    model.eval()
    save_checkpoint(model, a.out)
    print("steps", step, "batches by width", seen, flush=True)
    finish(a.out, dev, a.test, n=a.report_draws)
    import hf_check
    hf_check.check(a.out)
    print(f"total {time.time() - t_start:.0f}s")


def draws(mode, n, seed):
    s = Sampler(mode, seed)
    return [s.draw() for _ in range(n)]


def finish(out, dev, test=False, n=6000):
    """Temperatures from the validation wordings, decision_config.json, and the measured accuracies."""
    from model import load_checkpoint
    tok = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    model = load_checkpoint(out, dev)          # the rounded weights, as they will be served
    limit = 65536 if dev == "cuda" else 8192
    val = draws("val", n, 501)
    p = answers(model, tok, val, device=dev, limit=limit)
    temps = calibrate(val, p)
    cfg = {"letter_token_ids": list(range(32, 58)), "temperature_by_type": temps,
           "wide_choice": {"group": 25, "keep": 3, "residual": 0.001}, "release_date": "2026-11-30"}
    with open(os.path.join(out, "decision_config.json"), "w") as f:
        json.dump(cfg, f, indent=2)
        f.write("\n")
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump({"add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
                   "pad_token": "<|endoftext|>", "model_max_length": 4096, "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}, f, indent=2)
        f.write("\n")
    report = {"temperatures": temps, "val": accuracy(val, p), "val_by_task": accuracy(val, p, "task")}
    tr = draws("train", n, 777)
    pt = answers(model, tok, tr, device=dev, limit=limit)
    report["fresh_train_draws"] = accuracy(tr, pt)
    report["fresh_by_task"] = accuracy(tr, pt, "task")
    if test:
        te = draws("test", n, 601)
        pe = answers(model, tok, te, device=dev, limit=limit)
        report["test"] = accuracy(te, pe)
        report["test_by_task"] = accuracy(te, pe, "task")
    print(json.dumps(report, indent=1), flush=True)
    return report


if __name__ == "__main__":
    main()
