"""The prompt format of the StartLux decision family, byte for byte."""
import hashlib
import json
import re

SYSTEM = "Apply the criterion to the evidence. Choose exactly one listed option. Answer with its letter only."
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BARE = re.compile(r"^(?:\(?(?:[a-z]|\d{1,3})[).]?|(?:option|opt)[_ ]?\d{1,3})$", re.I)


def dump(v):
    return json.dumps(v, ensure_ascii=False)


def annotate(v):
    """Arrays of 8 and more elements get their positions written in."""
    if isinstance(v, dict):
        return {k: annotate(x) for k, x in v.items()}
    if isinstance(v, list):
        if len(v) < 8:
            return [annotate(x) for x in v]
        return [{"_index": i, **annotate(x)} if isinstance(x, dict) else {"_index": i, "value": annotate(x)}
                for i, x in enumerate(v)]
    return v


def as_text(v):
    if v is None:
        return None
    s = v.strip() if isinstance(v, str) else dump(v).strip()
    return s or None


def state_text(state):
    if state is None or state == {} or state == []:
        return ""
    return state if isinstance(state, str) else dump(annotate(state))


def norm(s):
    return re.sub(r"[\s_-]+", " ", s).strip().lower()


def options_of(q):
    """-> list of (answer value, shown name, criterion or None)"""
    kind = q.get("type", "choice")
    crit = q.get("criteria")
    if kind == "noul":
        c = crit or {}
        return [(True, "yes", as_text(c.get("true"))), (False, "no", as_text(c.get("false")))]
    if kind == "score":
        return [(i, str(i), as_text(c)) for i, c in enumerate(crit)]
    return [(k, k, as_text(v)) for k, v in crit.items()]


def option_lines(kind, opts):
    bare = kind == "choice" and all(BARE.match(o[1].strip()) for o in opts) and all(o[2] for o in opts)
    out = []
    for letter, (_, name, crit) in zip(LETTERS, opts):
        if bare:
            body = crit
        elif not crit or norm(crit) == norm(name):
            body = name
        else:
            body = f"{name}: {crit}"
        out.append(f"{letter}) {body}")
    return "\n".join(out)


def prompt_of(state, q, opts=None):
    kind = q.get("type", "choice")
    opts = options_of(q) if opts is None else opts
    evidence = state_text(state)
    if not evidence.strip():
        evidence = "(none)"
    instr = (as_text(q.get("instructions")) or ("Which answer fits the evidence?" if kind == "noul" else None))
    user = f"Evidence:\n{evidence}\n\nQuestion: {instr}\nOptions:\n{option_lines(kind, opts)}".strip()
    return (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n")


COMMON = {
    "state": {"ticket": "I was charged twice for order #4411.", "amount": 12.5, "tags": ["billing", "app"]},
    "questions": {
        "team": {"type": "choice", "instructions": "Which team should handle this ticket?",
                 "criteria": {"shipping": "Delivery and tracking", "billing": "Payments, refunds and invoices", "other": None}},
        "severity": {"type": "score", "instructions": "How severe is the impact?",
                     "criteria": ["cosmetic", "annoying", "blocks the customer"]},
        "urgent": {"type": "noul", "instructions": "Should this ticket be answered today?"}}}
GOLDEN = {"team": "674258b26a8541fb", "severity": "0839895fb1f07199", "urgent": "589636c756dad410"}


def check_golden():
    for name, q in COMMON["questions"].items():
        h = hashlib.sha256(prompt_of(COMMON["state"], q).encode()).hexdigest()[:16]
        assert h == GOLDEN[name], (name, h)


if __name__ == "__main__":
    check_golden()
    print("prompt format ok")
