"""Answers decisions with a model, measures accuracy, finds the temperatures."""
from collections import defaultdict

import numpy as np
import torch

from render import options_of, prompt_of


def batches(prompts, tok, limit=16384):
    ids = [e.ids for e in tok.encode_batch(prompts, add_special_tokens=False)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    i = 0
    while i < len(order):
        j, width = i, 0
        while j < len(order):
            w = -(-len(ids[order[j]]) // 64) * 64
            if (j - i + 1) * w > limit and j > i:
                break
            width = w
            j += 1
        rows = order[i:j]
        t = torch.zeros(len(rows), width, dtype=torch.long)
        for r, k in enumerate(rows):
            t[r, :len(ids[k])] = torch.tensor(ids[k])
        yield rows, t, torch.tensor([len(ids[k]) for k in rows])
        i = j


@torch.no_grad()
def letter_logits(model, tok, prompts, device="cpu", limit=16384):
    out = np.zeros((len(prompts), 26), dtype=np.float32)
    for rows, ids, lens in batches(prompts, tok, limit):
        out[rows] = model.letters(ids.to(device), lens.to(device)).float().cpu().numpy()
    return out


def softmax(z, t=1.0):
    z = (z - z.max()) / t
    e = np.exp(z.astype(np.float64))
    return e / e.sum()


def tournament(ask, state, q, wide):
    """Choice with more than 26 options: groups, then a final round."""
    def run(opts):
        if len(opts) <= 26:
            return ask(state, q, opts)
        n, g = len(opts), -(-len(opts) // wide["group"])
        groups, at = [], 0
        for i in range(g):
            size = n // g + (1 if i < n % g else 0)
            groups.append(list(range(at, at + size)))
            at += size
        p_group, final = np.zeros(n), []
        for idx in groups:
            p = ask(state, q, [opts[i] for i in idx])
            p_group[idx] = p
            final += [idx[i] for i in sorted(range(len(idx)), key=lambda i: -p[i])[:wide["keep"]]]
        final.sort()
        p = np.zeros(n)
        p[final] = run([opts[i] for i in final]) * (1 - wide["residual"])
        rest = [i for i in range(n) if i not in final]
        s = p_group[rest].sum() or 1.0
        p[rest] = wide["residual"] * p_group[rest] / s
        return p / p.sum()
    return run(options_of(q))


WIDE = {"group": 25, "keep": 3, "residual": 0.001}


def answers(model, tok, examples, temps=None, device="cpu", limit=16384):
    """-> list of probability vectors in option order."""
    temps = temps or {}
    narrow, out = [], [None] * len(examples)
    for i, e in enumerate(examples):
        q = e["request"]["questions"]["q"]
        if len(options_of(q)) <= 26:
            narrow.append(i)
        else:
            def ask(state, q, opts):
                z = letter_logits(model, tok, [prompt_of(state, q, opts)], device)[0]
                return softmax(z[:len(opts)], temps.get("choice", 1.0))
            out[i] = tournament(ask, e["request"]["state"], q, WIDE)
    z = letter_logits(model, tok, [prompt_of(examples[i]["request"]["state"], examples[i]["request"]["questions"]["q"]) for i in narrow], device, limit)
    for i, row in zip(narrow, z):
        q = examples[i]["request"]["questions"]["q"]
        out[i] = softmax(row[:len(options_of(q))], temps.get(q["type"], 1.0))
    return out


def right(e, p):
    q = e["request"]["questions"]["q"]
    if q["type"] == "noul":
        return (p[0] >= 0.5) == e["expected"]
    return options_of(q)[int(np.argmax(p))][0] == e["expected"]


def accuracy(examples, probs, by="kind"):
    hit, n = defaultdict(int), defaultdict(int)
    for e, p in zip(examples, probs):
        for k in ("all", e[by]):
            n[k] += 1
            hit[k] += bool(right(e, p))
    return {k: round(hit[k] / n[k], 4) for k in n}


def calibrate(examples, probs):
    """One temperature per kind that minimises the log loss (grid, 1 % steps). `probs` at T = 1."""
    temps = {}
    for kind in ("choice", "noul", "score"):
        rows = [(np.log(np.maximum(p, 1e-30)), [o[0] for o in options_of(e["request"]["questions"]["q"])].index(e["expected"]))
                for e, p in zip(examples, probs) if e["kind"] == kind and len(p) <= 26]
        best = min(np.exp(np.linspace(np.log(0.3), np.log(5), 283)),
                   key=lambda t: -sum(np.log(softmax(z, t)[g] + 1e-12) for z, g in rows))
        temps[kind] = round(float(best), 4)
    return temps
