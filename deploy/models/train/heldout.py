"""Writes the held-out decisions and checks that nothing of them can occur in training.

    python heldout.py --model ../deltagate-mini --out ../../../tests/fixtures/heldout
"""
import argparse
import json
import os
from collections import Counter

import numpy as np

from generate import TASKS, Retry, Sampler, prompt
from render import COMMON, check_golden, options_of, prompt_of

PLAN = {"choice": 300, "noul": 180, "score": 120}
TOURNAMENT = 12
SEED = 20261130


def shape(e):
    """What must be balanced: the answer of a noul, level and number of levels of a score, the letter of a choice."""
    n = len(options_of(e["request"]["questions"]["q"]))
    return (e["kind"], bool(e["expected"])) if e["kind"] == "noul" else (e["kind"], n, e["index"]) if e["kind"] == "score" else (e["kind"], e["index"] % 5)


def fresh(e):
    """Reserved parts only, as far as the list has reserved lines; the main wording always is one."""
    held = {u[0] for u in e["used"] if u[4]}
    return held


def draw(seen_in_training, blob):
    s = Sampler("test", SEED)
    tasks = [t for t in TASKS if t != "unknown_word"]      # invented words have no reserved wording
    weights = [TASKS[t] for t in tasks]
    out, left, count, dup = [], dict(PLAN), Counter(), set()
    left["choice"] -= TOURNAMENT
    quota = {("noul", True): 90, ("noul", False): 90}
    rounds = 0
    while sum(left.values()):
        rounds += 1
        if rounds > 60000:
            raise SystemExit(f"cannot fill the plan: {left}")
        try:
            e = s.draw(s.rng.choices(tasks, weights)[0])
        except Retry:
            continue
        k = e["kind"]
        if not left[k]:
            continue
        held = fresh(e)
        if "template" not in held or "question" not in held and "wording" not in held:
            continue
        if any(u[4] and u[3] in seen_in_training for u in e["used"]):
            continue
        if any(u[4] and u[0] != "template" and len(u[3]) >= 25 and u[3].lower() in blob for u in e["used"]):
            continue
        key = shape(e)
        limit = quota.get(key, 36 if k == "score" else 60)
        if k == "score":
            limit = PLAN["score"] // (4 * key[1]) + 1
        text = prompt(e)
        if count[key] >= limit or text in dup or len(text) > 3500:
            continue
        count[key] += 1
        dup.add(text)
        left[k] -= 1
        out.append(e)
    while sum(e["task"] == "tournament" for e in out) < TOURNAMENT:
        e = s.draw("tournament")
        if {"template", "wording"} <= fresh(e) and not any(
                u[4] and u[0] != "template" and (u[3] in seen_in_training or len(u[3]) >= 25 and u[3].lower() in blob) for u in e["used"]):
            out.append(e)
    s.rng.shuffle(out)
    return out


def training_surface(n, seed=99):
    """Realised wordings, and the lines themselves, of `n` training draws."""
    s = Sampler("train", seed)
    texts, lines, prompts = set(), set(), []
    for i in range(n):
        e = s.draw()
        for cat, key, line, text, held in e["used"]:
            lines.add((key, line))
            texts.add(text)
        if i < 40000:
            prompts.append(prompt(e).lower())
    return texts, lines, "\n".join(prompts)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--train-draws", type=int, default=200000)
    a = ap.parse_args()
    check_golden()
    texts, lines, blob = training_surface(a.train_draws)
    b = Sampler("test", 0).bank
    reserved = {(p.key, l.text) for _, p in b.pools for s in ("test", "val") for l in p.parts[s]}
    assert not (reserved & lines), "a reserved line was drawn in training"
    ex = draw(texts, blob)
    checked = 0
    for e in ex:
        for cat, key, line, text, held in e["used"]:
            if not held:
                continue
            assert (key, line) not in lines
            if cat != "template":
                assert text not in texts, text
                if len(text) >= 25:
                    assert text.lower() not in blob, text
                checked += 1
    print(f"leak check: {checked} reserved wordings of {len(ex)} decisions; none in {a.train_draws} training draws")
    os.makedirs(a.out, exist_ok=True)
    names = Counter()
    for e in ex:
        names[e["task"]] += 1
        e["id"] = f"{e['task']}-{names[e['task']]:03d}"
    with open(os.path.join(a.out, "decisions.jsonl"), "w", encoding="utf-8") as f:
        for e in ex:
            f.write(json.dumps({"id": e["id"], "kind": e["kind"], "request": e["request"], "expected": e["expected"],
                                "holdout": sorted(fresh(e))}, ensure_ascii=False) + "\n")
    report(a.model, ex)
    golden(a.model, a.out, ex)


def report(folder, ex):
    from tokenizers import Tokenizer
    from evaluate import accuracy, answers, right
    from model import load_checkpoint
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    model = load_checkpoint(folder)
    temps = json.load(open(os.path.join(folder, "decision_config.json")))["temperature_by_type"]
    p = answers(model, tok, ex, temps, limit=8192)
    print("held-out accuracy", accuracy(ex, p))
    print("by task", accuracy(ex, p, "task"))
    print("counts", dict(Counter(e["kind"] for e in ex)), dict(Counter(shape(e)[1:] for e in ex if e["kind"] != "choice")))
    conf = [(q.max(), right(e, q)) for e, q in zip(ex, p)]
    print("mean probability of the answer", round(float(np.mean([c for c, _ in conf])), 3))
    return p


def golden(folder, out, ex):
    """Token ids and letter logits computed by transformers' own Qwen3.5 model on the exported folder."""
    import torch
    from tokenizers import Tokenizer
    from evaluate import letter_logits
    from hf_check import load_hf
    from model import load_checkpoint
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    hf, emb = load_hf(folder)
    rows = [("common/" + k, prompt_of(COMMON["state"], q)) for k, q in COMMON["questions"].items()]
    picked = []
    for kind in ("choice", "noul", "score", "choice", "noul"):
        e = next(e for e in ex if e["kind"] == kind and e not in picked and len(options_of(e["request"]["questions"]["q"])) <= 26)
        picked.append(e)
        rows.append((e["id"], prompt(e)))
    own = letter_logits(load_checkpoint(folder), tok, [p for _, p in rows])
    items, worst = [], 0.0
    for (name, p), mine in zip(rows, own):
        ids = tok.encode(p, add_special_tokens=False).ids
        with torch.no_grad():
            h = hf(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].float()
        z = (emb[32:58].float() @ h).tolist()
        worst = max(worst, float(np.abs(np.array(z) - mine).max()))
        items.append({"id": name, "prompt": p, "token_ids": ids, "letter_logits": [round(x, 6) for x in z]})
    assert worst < 1e-3, worst
    print("largest difference between transformers and the training code", worst)
    with open(os.path.join(out, "golden_logits.json"), "w", encoding="utf-8") as f:
        json.dump({"model": "deltagate-mini", "precision": "BF16 weights widened to f32, f32 arithmetic", "tolerance": 0.001, "items": items}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
