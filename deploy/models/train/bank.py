"""Reads the word banks, whose lists are split into train / validation / held-out lines.

The unit of the split is one *line* of a bank file: a whole family of wordings
(`{a|b}` alternatives included), a whole state template, or a whole description.
A line that is held out is never used for training, tokenizer training or
calibration, in any of its expansions.
"""
import hashlib
import os
import re
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
RESERVED = os.path.join(HERE, "bank", "reserved.txt")
WORD = re.compile(r"[a-z]+")


def parse_spintax(text):
    """Turns `a {b|c} <slot>` into a nested list: str | ("alt", [...]) parts."""
    pos = 0

    def seq(stop):
        nonlocal pos
        out, buf = [], []
        while pos < len(text):
            c = text[pos]
            if c in stop:
                break
            if c == "{":
                pos += 1
                if buf:
                    out.append("".join(buf))
                    buf = []
                alts = [seq("|}")]
                while text[pos] == "|":
                    pos += 1
                    alts.append(seq("|}"))
                pos += 1
                out.append(alts)
            else:
                buf.append(c)
                pos += 1
        if buf:
            out.append("".join(buf))
        return out

    tree = seq("")
    return tree


def realise(tree, rng):
    out = []
    for part in tree:
        if isinstance(part, str):
            out.append(part)
        else:
            out.append(realise(part[int(rng.random() * len(part))], rng))
    return "".join(out)


SPACES = re.compile(r"\s+")
PUNCT = re.compile(r" +([,.!?;])")


def tidy(text):
    return PUNCT.sub(r"\1", SPACES.sub(" ", text)).strip()


class Line:
    __slots__ = ("text", "tree", "split")

    def __init__(self, text, spintax=True):
        self.text = text
        self.tree = parse_spintax(text) if spintax else [text]
        self.split = "train"


class Pool:
    """One list of lines with its three parts."""

    def __init__(self, key, texts, spintax=True, frozen=()):
        self.key = key
        self.lines = [Line(t, spintax) for t in texts]
        self.frozen = set(frozen)
        self.parts = None

    def finish(self):
        self.parts = {s: [l for l in self.lines if l.split == s] for s in ("train", "val", "test")}


def words(text):
    return set(WORD.findall(re.sub(r"<\w+>|\$\w+", " ", text.lower())))


def read_sections(path):
    """Yields (section, [(value, {"n": [...], "d": [...], "w": [...], "k": [...], "line": [...], "flags": {...}})])."""
    sections, cur, val = [], None, None

    def fresh(name, flags=()):
        f = {}
        for x in flags:
            k, _, v = x.partition("=")
            f[k] = int(v) if v else 1
        return (name, {"n": [], "d": [], "w": [], "k": [], "line": [], "flags": f})

    for raw in open(path, encoding="utf-8"):
        line = raw.rstrip("\n")
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("== "):
            cur = (line[3:].strip(), [fresh("")])
            sections.append(cur)
            val = cur[1][0][1]
        elif line.startswith("-- ") and line.strip() != "---":
            bits = line[3:].split()
            if bits[0] == "concept":
                bits = bits[1:]
            item = fresh(bits[0], bits[1:])
            cur[1].append(item)
            val = item[1]
        elif line.startswith(("n: ", "w: ", "k: ")):
            sep = "," if cur[0] == "synonyms" else "|"
            vals = [x.strip() for x in line[3:].split(sep)]
            if cur[0] == "synonyms":
                val["w"].append(vals)
            else:
                val[line[0]] += vals
        elif line.startswith("d: "):
            val["d"].append(line[3:].strip())
        else:
            val["line"].append(line.strip())
    return sections


class Bank:
    def __init__(self):
        self.pools = []
        self.teams, self.concepts = {}, {}
        self.topics, self.items = {}, {}
        self.attrs, self.facts, self.numbers, self.questions = {}, {}, {}, {}
        B = os.path.join(HERE, "bank")
        for name in ("teams_a.txt", "teams_b.txt"):
            for sec, vals in read_sections(os.path.join(B, name)):
                team = sec.split()[1]
                self.teams[team] = {"n": vals[0][1]["n"], "d": self.pool("desc", f"team/{team}", vals[0][1]["d"]), "concepts": []}
                for cname, v in vals[1:]:
                    self.teams[team]["concepts"].append(cname)
                    self.concepts[cname] = {
                        "team": team, "n": v["n"], "d": self.pool("desc", f"concept/{cname}", v["d"]),
                        "line": self.pool("wording", f"phrase/{cname}", v["line"]),
                        "sev": v["flags"].get("sev", 1), "urgent": v["flags"].get("urgent", 0)}
        for sec, vals in read_sections(os.path.join(B, "topics.txt")):
            kind, name = sec.split()
            v = vals[0][1]
            if kind == "topic":
                self.topics[name] = {"n": v["n"], "d": self.pool("desc", f"topic/{name}", v["d"]),
                                     "line": self.pool("wording", f"topicline/{name}", v["line"])}
            else:
                self.items[name] = {"n": v["n"], "d": self.pool("desc", f"item/{name}", v["d"]), "w": v["w"]}
        for sec, vals in read_sections(os.path.join(B, "attrs.txt")):
            self.attrs[sec] = {}
            for name, v in vals[1:]:
                # spam kinds share names and descriptions with the first spam kind
                self.attrs[sec][name] = {"n": v["n"], "d": self.pool("desc", f"{sec}/{name}", v["d"]) if v["d"] else None,
                                         "line": self.pool("wording", f"{sec}/{name}", v["line"])}
        for sec, vals in read_sections(os.path.join(B, "facts.txt")):
            if sec == "synonyms":
                self.synonyms = vals[1][1]["w"]
                continue
            if sec == "genericother":
                v = vals[1][1]
                self.other = {"n": v["n"], "d": self.pool("desc", "other", v["d"])}
                continue
            dest = {"fact": self.facts, "number": self.numbers, "days": self.numbers}.get(sec)
            for name, v in vals[1:]:
                entry = {"n": v["n"], "w": v["w"], "k": v["k"], "line": self.pool("wording", f"{sec}/{name}", v["line"])}
                if sec == "itemline":
                    self.itemline = entry["line"]
                else:
                    dest[name] = entry
        for sec, vals in read_sections(os.path.join(B, "questions.txt")):
            self.questions[sec] = self.pool("question", f"question/{sec}", vals[0][1]["line"])
        for sec, vals in read_sections(os.path.join(B, "states.txt")):
            texts = vals[0][1]["line"]
            if sec == "filler":
                self.filler = self.pool("filler", "filler", texts)
            else:
                p = Pool(f"state/{sec}", texts, spintax=False, frozen=("$body", '"$body"', "$turns"))
                self.pools.append(("template", p))
                setattr(self, "state_" + sec, p)
        self.split_all()

    def pool(self, cat, key, texts):
        p = Pool(key, texts)
        self.pools.append((cat, p))
        return p

    def split_all(self):
        """Marks the reserved lines that `bank/reserved.txt` lists; every other line is for training, so that lines
        can be added without moving the split. `known` lets the sampler draw, of a reserved line, only the
        alternatives that consist of words that training has."""
        lines = {(cat, p.key, l.text): l for cat, p in self.pools for l in p.lines}
        with open(RESERVED, encoding="utf-8") as f:
            for row in f:
                split, cat, key, text = row.rstrip("\n").split("\t")
                lines[cat, key, text].split = split     # a reserved line that is gone is an error
        self.known = set()
        for _, p in self.pools:
            p.finish()
            for l in p.parts["train"]:
                self.known |= words(l.text)
        for group in (self.teams, self.concepts, self.topics, self.items, self.facts, self.numbers):
            for e in group.values():
                for t in e["n"] + e.get("w", []):
                    self.known |= words(t)


def reserve(bank, test_share=0.16, val_share=0.10):
    """Chooses the reserved lines by hash, once. A model trained from nothing cannot know a word that it never saw,
    so a line is reserved only if most of its words (65 %) also occur in lines that are not reserved."""
    count = Counter()
    for _, p in bank.pools:
        for l in p.lines:
            l.split = "train"
            count.update(words(l.text))
    ranked = []
    for cat, p in bank.pools:
        n = len(p.lines)
        want_test = max(1, round(test_share * n)) if n >= 4 else 0
        want_val = max(1, round(val_share * n)) if n >= 5 else 0
        order = sorted(p.lines, key=lambda l: hashlib.sha256((p.key + "\0" + l.text).encode()).hexdigest())
        ranked.append((cat, p, order, {"test": want_test, "val": want_val}))
    rows = []
    for split in ("test", "val"):
        for cat, p, order, want in ranked:
            for l in order:
                if want[split] <= 0:
                    break
                if l.split != "train" or l.text in p.frozen:
                    continue
                ws = words(l.text)
                if ws and sum(count[w] >= 2 for w in ws) >= 0.65 * len(ws):
                    l.split = split
                    want[split] -= 1
                    count.subtract(ws)
                    rows.append((split, cat, p.key, l.text))
    return rows


if __name__ == "__main__":
    import sys
    if sys.argv[1:] == ["--reserve"]:       # only ever needed once: it chooses anew
        open(RESERVED, "w").close()
        rows = reserve(Bank())
        with open(RESERVED, "w", encoding="utf-8") as f:
            f.writelines("\t".join(r) + "\n" for r in rows)
    b = Bank()
    for cat in ("template", "question", "wording", "desc", "filler"):
        ps = [p for c, p in b.pools if c == cat]
        print(cat, "lists", len(ps), {s: sum(len(p.parts[s]) for p in ps) for s in ("train", "val", "test")},
              "lists without held-out line:", sum(not p.parts["test"] for p in ps))
    print(len(b.teams), "teams", len(b.concepts), "concepts")
    vocab = set()
    for _, p in b.pools:
        for l in p.lines:
            vocab |= words(l.text)
    print(len(vocab), "words")
