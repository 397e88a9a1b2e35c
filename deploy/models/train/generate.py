"""Draws synthetic decisions: a state, one question and the right answer.

`Sampler("train" | "val" | "test", seed).draw()` returns a dict with `kind`, `request`
(a System-One body), `expected`, `task` and `used` (the lines that were drawn).
In "val" and "test" mode every list that has reserved lines yields only those.
"""
import json
import random
import re

from bank import Bank, realise, tidy, words
from render import options_of, prompt_of

NAMES = """Anna Ben Carla David Emma Felix Grace Henry Iris Jack Karen Leo Maria Noah Olga Paul Quinn Rosa Sam Tina Umar Vera
Walter Xenia Yusuf Zoe Alice Bruno Chen Diana Erik Fatima George Hana Ivan Julia Kofi Lena Mark Nina Oscar Priya Ravi Sara
Tom Ursula Victor Wendy Amir Bella Miller Smith Garcia Kim Novak Brown Schmidt Rossi Silva Tanaka""".split()
CITIES = """Berlin Paris London Madrid Rome Vienna Oslo Lisbon Dublin Prague Warsaw Athens Boston Chicago Toronto Sydney Tokyo
Delhi Cairo Lima Hamburg Lyon Milan Porto Geneva Leeds York Bristol Austin Denver Seattle Nairobi""".split()
PRODUCTS = """lamp chair kettle headphones laptop phone camera blender toaster bookshelf sofa tablet monitor keyboard backpack vase
mirror desk coffee machine vacuum cleaner television speaker watch bicycle tent drill mattress printer fan""".replace(
    "coffee machine", "coffee_machine").replace("vacuum cleaner", "vacuum_cleaner").split()
CLOTHING = "jacket shirt dress sweater coat shoes skirt hat boots jeans hoodie gloves".split()
MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DOCS = ["ticket", "message", "request", "email", "case", "text", "note", "mail", "conversation", "ticket", "message"]
TAGS = ["app", "web", "new", "mobile", "vip", "eu", "us", "priority", "first-contact", "de", "followup", "store", "b2b", "2026", "auto"]
CHANNELS = ["email", "chat", "web form", "phone", "app", "letter", "social media"]
PLANS = ["free", "basic", "pro", "business", "enterprise", "starter", "premium"]
COUNTRIES = ["Germany", "France", "Spain", "Italy", "Poland", "Sweden", "Canada", "Japan", "Brazil", "India", "Kenya"]
DOMAINS = ["mail.example", "example.com", "example.org", "post.example", "corp.example"]
SYL = "ba be bi bo bu da de di do du fa fe fi fo ga go gu ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo za ze zi zo".split()
AGENT = ["Hello, how can I help you?", "Thank you for contacting us.", "Could you tell me more?", "I am sorry to hear that.",
         "Let me check this for you.", "One moment please.", "Hi! What can I do for you?", "I understand. Anything else?", "Please describe your request."]
# Teams whose subjects overlap: they are never used as a sure "no" for each other.
NEAR = {k: set(v.split()) for k, v in {
    "billing": "returns cancellations banking procurement sales security shipping", "shipping": "returns billing",
    "returns": "billing shipping", "account": "technical security legal it_helpdesk", "technical": "account it_helpdesk telecom security feedback",
    "sales": "cancellations billing marketing technical feedback procurement", "cancellations": "billing sales account",
    "security": "account billing legal banking technical", "feedback": "technical sales marketing", "legal": "security account procurement hr housing",
    "hr": "legal education procurement", "it_helpdesk": "technical account telecom facilities", "facilities": "housing energy city_office it_helpdesk",
    "procurement": "billing sales legal hr", "marketing": "sales feedback procurement", "travel": "restaurant", "banking": "billing security housing",
    "healthcare": "restaurant hr", "housing": "facilities energy city_office banking legal", "education": "hr", "restaurant": "healthcare travel",
    "telecom": "technical it_helpdesk energy", "energy": "facilities housing telecom", "automotive": "sales", "city_office": "housing facilities"}.items()}
ATTR_NUMERIC = {"urgency": 3, "impact": 5, "sentiment": 5, "register": 3}
NEUTRAL_SUBJECTS = ["Question", "Help", "Request", "Hello", "Please read", "My order", "Message", "A problem", "Support", "Enquiry", "Info"]

TASKS = {  # relative frequency in training: routing, intent, severity, yes/no, and some plain reading
    "route": 22, "category": 14, "wide": 5, "about": 8, "about_criteria": 5, "urgency": 7, "urgency_yes": 6, "impact": 12,
    "impact_yes": 6, "rude_yes": 2, "wish": 8, "wish_yes": 4, "spam": 3, "spam_choice": 1.5, "item": 4, "eligible": 3,
    "lookup": 4, "lookup_yes": 2, "unknown_word": 4}


KEEP = set("no not never nothing nobody none without cannot can't don't doesn't won't isn't can't still but".split())


class Retry(Exception):
    pass


class Sampler:
    def __init__(self, mode, seed, bank=None):
        self.bank = bank or Bank()
        self.mode = mode
        self.rng = random.Random(seed)
        self.tasks = list(TASKS)
        self.weights = list(TASKS.values())
        self.syn = {}
        for group in self.bank.synonyms:
            for w in group:
                self.syn.setdefault(w, []).extend(x for x in group if x != w)
        single = "|".join(sorted((re.escape(w) for w in self.syn), key=len, reverse=True))
        self.syn_re = re.compile(rf"\b({single})\b", re.I)

    # ---- drawing lines -------------------------------------------------------------------
    def line(self, cat, pool, need=False, **slots):
        """One realised wording of a pool. `need`: in val/test mode there must be a reserved line."""
        rng = self.rng
        part = pool.parts[self.mode]
        held = self.mode != "train" and bool(part)
        if not part:
            if need and self.mode != "train":
                raise Retry
            part = pool.parts["train"]
        for _ in range(20):
            line = part[int(rng.random() * len(part))]
            text = realise(line.tree, rng)
            if self.mode == "train" or words(text) <= self.bank.known:
                break
        else:
            if need:
                raise Retry
            line, held = rng.choice(pool.parts["train"]), False      # every reserved wording has an unknown word
            text = realise(line.tree, rng)
        text = self.slots(tidy(text), slots)
        self.used.append((cat, pool.key, line.text, text, held))
        return text

    def slots(self, text, given=()):
        if "<" not in text:
            return text
        rng = self.rng

        def fill(m):
            k = m.group(1)
            if k in given:
                return str(given[k])
            if k in self.ctx:
                return self.ctx[k]
            v = {"order": lambda: rng.choice(["#", "no. ", "", "A-", "#"]) + str(rng.randrange(100, 10 ** rng.randint(4, 7))),
                 "amount": self.amount_text, "name": lambda: rng.choice(NAMES), "city": lambda: rng.choice(CITIES),
                 "product": lambda: rng.choice(PRODUCTS).replace("_", " "), "clothing": lambda: rng.choice(CLOTHING),
                 "month": lambda: rng.choice(MONTHS), "weekday": lambda: rng.choice(WEEKDAYS), "days": lambda: str(rng.randint(2, 30)),
                 "num": lambda: str(rng.choice([rng.randint(2, 12), rng.randint(10, 90), rng.randint(100, 600)])),
                 "date": lambda: rng.choice([f"{rng.randint(1, 28)} {rng.choice(MONTHS)}", f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
                                             f"{rng.choice(MONTHS)} {rng.randint(1, 28)}", f"{rng.randint(1, 28)}.{rng.randint(1, 12)}."]),
                 "phone": lambda: f"0{rng.randint(100, 999)} {rng.randint(100000, 9999999)}", "doc": lambda: self.doc}[k]()
            return v
        return re.sub(r"<(\w+)>", fill, text)

    def amount_text(self):
        rng = self.rng
        a = rng.choice([rng.randint(3, 99), rng.randint(100, 2000)])
        s = f"{a}.{rng.randint(0, 99):02d}" if rng.random() < .4 else str(a)
        return rng.choice(["$" + s, s + " euros", s + " EUR", s + " dollars", "£" + s, s + "€"])

    # ---- text surface --------------------------------------------------------------------
    def sentence(self, s):
        s = s.strip()
        if not s:
            return s
        r = self.rng.random()
        if r < .8:
            s = s[0].upper() + s[1:]
        if s[-1] not in ".!?":
            first = s.split()[0].lower()
            if first in ("when", "where", "how", "what", "which", "is", "are", "do", "does", "can", "could", "why", "will", "has", "did", "may", "was"):
                s += self.rng.choice(["?", "?", "?", ".", ""])
            else:
                s += self.rng.choice([".", ".", ".", ".", "!", ""])
        return s

    def noise(self, s):
        rng = self.rng
        if self.mode == "train":
            if rng.random() < .35:      # synonyms and dropped words: the answer must not hang on one word
                s = self.syn_re.sub(lambda m: rng.choice(self.syn.get(m.group(0).lower(), [m.group(0)])) if rng.random() < .4 else m.group(0), s)
            if rng.random() < .3:
                s = " ".join(w for w in s.split(" ") if rng.random() > .08 or w.lower().strip(".,!?") in KEEP) or s
        r = rng.random()
        if r < .08:
            s = s.lower()
        elif r < .10:
            s = s.upper()
        elif r < .14:
            s = re.sub(r"[.,!?]", "", s)
        elif r < .17:
            s = re.sub(r"[.!?](?= |$)", lambda m: m.group(0) * rng.randint(2, 3), s)
        elif r < .20 and self.mode == "train":
            ws = s.split(" ")
            for _ in range(1 + len(ws) // 12):
                i = rng.randrange(len(ws))
                w = ws[i]
                if len(w) > 4:
                    j = rng.randrange(1, len(w) - 2)
                    ws[i] = rng.choice([w[:j] + w[j + 1] + w[j] + w[j + 2:], w[:j] + w[j + 1:], w[:j] + w[j] + w[j:]])
            s = " ".join(ws)
        return s

    def body(self, main, extras=(), filler=.5, order=True):
        rng = self.rng
        parts = [self.sentence(x) for x in main]
        ex = [self.sentence(x) for x in extras]
        while rng.random() < filler and len(parts) + len(ex) < 6:
            ex.append(self.sentence(self.line("filler", self.bank.filler)))
            filler *= .5
        rng.shuffle(ex)
        for e in ex:
            parts.insert(rng.randint(0, len(parts)) if rng.random() < .3 else len(parts), e)
        if not order:
            rng.shuffle(parts)
        sep = rng.choice([" ", " ", " ", " ", "\n"])
        return self.noise(sep.join(p for p in parts if p))

    # ---- states --------------------------------------------------------------------------
    def state(self, text, subject=None, fields=None, hint=None):
        rng = self.rng
        use_json = rng.random() < .55
        pool = self.bank.state_json if (use_json or fields) else self.bank.state_text
        part = pool.parts[self.mode] or pool.parts["train"]
        line = part[int(rng.random() * len(part))]
        tpl = line.text
        self.used.append(("template", pool.key, tpl, tpl, self.mode != "train" and bool(pool.parts[self.mode])))
        if subject is None or (self.mode == "train" and rng.random() < .6) or self.mode != "train":
            subject = rng.choice(NEUTRAL_SUBJECTS)
        tags = rng.sample(TAGS, rng.randint(1, 3))
        if hint and self.mode == "train" and rng.random() < .3:
            tags.insert(rng.randrange(len(tags) + 1), hint)
        name = rng.choice(NAMES)
        if rng.random() < .5:
            name += " " + rng.choice(NAMES)
        val = {"body": text, "subject": subject, "name": name, "email": f"{name.split()[0].lower()}{rng.choice(['', str(rng.randint(1, 99))])}@{rng.choice(DOMAINS)}",
               "order": rng.choice(["#", "", "ORD-", "A"]) + str(rng.randrange(1000, 10 ** 6)),
               "amount": rng.choice([round(rng.uniform(1, 900), 2), rng.randint(1, 900), rng.randint(2, 60) / 2]),
               "date": f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}", "plan": rng.choice(PLANS), "channel": rng.choice(CHANNELS),
               "id": rng.choice([rng.randrange(100, 10 ** 5), f"T-{rng.randrange(1000, 99999)}"]), "tags": tags, "country": rng.choice(COUNTRIES),
               "num": rng.randint(1, 99), "company": rng.choice(NAMES) + rng.choice([" Ltd", " GmbH", " Inc", " & Sons"])}
        if tpl[0] not in "{[" and tpl != "$turns":
            tpl = tpl.replace("\\n", "\n")
            out = re.sub(r"\$([a-z]+)", lambda m: str(val[m.group(1)]) if m.group(1) in val else m.group(0), tpl)
            return out
        if "$turns" in tpl or "$lines" in tpl:
            sents = text.split(". ") if rng.random() < .5 else [text]
            who = rng.choice(["customer", "user", "client"])
            keys = rng.choice([("role", "text"), ("role", "content"), ("from", "message"), ("author", "text")])
            agent = rng.choice(["agent", "assistant", "support", "bot"])
            turns = []
            if rng.random() < .6:
                turns.append((agent, rng.choice(AGENT[:2] + AGENT[6:7])))
            for i, s in enumerate(sents):
                if i and rng.random() < .5:
                    turns.append((agent, rng.choice(AGENT[2:6])))
                turns.append((who, s))
            val["turns"] = [{keys[0]: a, keys[1]: b} for a, b in turns]
            val["lines"] = [f"{a}: {b}" for a, b in turns]
        tree = json.loads(re.sub(r'(?<!")\$([a-z]+)(?!")', r'"$\1"', tpl))

        def sub(v):
            if isinstance(v, dict):
                return {k: sub(x) for k, x in v.items()}
            if isinstance(v, list):
                return [sub(x) for x in v]
            if isinstance(v, str) and v.startswith("$") and v[1:] in val:
                return val[v[1:]]
            return v
        tree = sub(tree)
        if fields:
            items = list(tree.items()) if isinstance(tree, dict) else [("items", tree)]
            for kv in fields:
                items.insert(rng.randint(0, len(items)), kv)
            tree = dict(items)
        return tree

    # ---- options -------------------------------------------------------------------------
    def style(self, ids):
        rng = self.rng
        f = rng.choice([str, str, str, lambda s: s.replace(" ", "_"), lambda s: s.replace(" ", "-"), str.title, str.upper,
                        lambda s: s.replace("_", " "), lambda s: s[:1].upper() + s[1:], lambda s: s.replace(" ", "_").upper()])
        return [f(i) for i in ids]

    def desc(self, pool):
        d = self.line("desc", pool)
        r = self.rng.random()
        if r < .15:
            d = d[0].lower() + d[1:]
        elif r < .25:
            d = d + "."
        elif r < .32:
            d = d[0].upper() + d[1:]
        return d

    def choice(self, gold, others, other=None, wide=False):
        """gold/others: entries with n (names) and d (pool). Returns criteria dict and the gold id."""
        rng = self.rng
        entries = [gold] + others
        mode = rng.random()
        described = [True] * len(entries) if mode < .5 else [False] * len(entries) if mode < .75 else [rng.random() < .6 for _ in entries]
        if mode < .06:
            base = rng.choice(["alpha beta gamma delta epsilon zeta eta theta iota kappa".split(), [f"team_{i}" for i in range(1, 12)],
                               [f"q{rng.randint(10, 99)}{c}" for c in "abcdefghij"], [f"option {i}" for i in range(1, 12)],
                               list("ABCDEFGHIJ"), [str(i) for i in range(1, 12)]])
            if len(entries) > len(base) or any(not e["d"] for e in entries):
                raise Retry
            ids = base[:len(entries)]
            rng.shuffle(ids)
        else:
            ids = self.style([rng.choice(e["n"][:1] * 2 + e["n"]) for e in entries])
        if len({i.lower().replace("_", " ").replace("-", " ") for i in ids}) < len(ids):
            raise Retry
        crit = [(i, self.desc(e["d"]) if (d and e["d"]) else None) for i, e, d in zip(ids, entries, described)]
        gold_id = ids[0]
        if other is not None:
            oid = self.style([rng.choice(self.bank.other["n"])])[0]
            if oid.lower() in {i.lower() for i in ids}:
                raise Retry
            oc = (oid, self.desc(self.bank.other["d"]) if rng.random() < .4 else None)
            if other:            # the gold option is left out: "other" is right
                crit[0] = oc
                gold_id = oid
            else:
                crit.append(oc)
        head = crit[:]
        rng.shuffle(head)
        if other is not None and rng.random() < .6:   # "other" mostly stands last
            head.sort(key=lambda kv: kv[0] == oid)
        return dict(head), gold_id

    # ---- message parts -------------------------------------------------------------------
    def extra(self, attr, value):
        return self.line("wording", self.bank.attrs[attr][str(value)]["line"])

    def random_extras(self, skip=(), p=.25):
        rng = self.rng
        out = []
        for attr in ("urgency", "impact", "sentiment"):
            if attr not in skip and rng.random() < p * .5:
                out.append(self.extra(attr, rng.randrange(ATTR_NUMERIC[attr])))
        if "wish" not in skip and rng.random() < p * .3:
            out.append(self.extra("wish", rng.choice(["information", "callback", "confirmation", "human"])))
        return out

    def concept_message(self, c, need=True, p=.3, skip=()):
        e = self.bank.concepts[c]
        if self.mode == "train" and self.rng.random() < .07:     # a short summary instead of a customer's words
            main = [self.line("desc", e["d"]) if self.rng.random() < .6 else self.rng.choice(e["n"])]
        else:
            main = [self.line("wording", e["line"], need=need)]
        if self.rng.random() < .15:
            main.append(self.line("wording", e["line"]))
        return self.body(main, self.random_extras(skip, p))

    def some_concept(self):
        if self.rng.random() < .5:     # office and shop teams are more common than the rest
            team = self.rng.choice(["billing", "shipping", "returns", "account", "technical", "sales", "cancellations", "security", "feedback"])
        else:
            team = self.rng.choice(list(self.bank.teams))
        return self.rng.choice(self.bank.teams[team]["concepts"])

    # ---- draw ----------------------------------------------------------------------------
    def draw(self, task=None):
        tries = 0
        while True:
            tries += 1
            if task and tries > 300:      # a task without usable reserved lines
                raise Retry
            self.used, self.ctx = [], {}
            self.doc = self.rng.choice(DOCS)
            t = task or self.rng.choices(self.tasks, self.weights)[0]
            try:
                state, q, expected = getattr(self, "t_" + t)(t)
            except Retry:
                continue
            except (IndexError, ValueError):
                if self.mode == "train":
                    continue
                raise
            opts = options_of(q)
            kind = q["type"]
            if kind == "choice" and len(opts) < 2:
                continue
            index = [o[0] for o in opts].index(expected)
            return {"task": t, "kind": kind, "request": {"state": state, "questions": {"q": q}}, "expected": expected, "index": index, "used": self.used}

    def question(self, key, **slots):
        s = self.line("question", self.bank.questions[key], **slots)
        r = self.rng.random()
        if r < .06:
            s = s.lower()
        elif r < .10:
            s = s.rstrip("?.")
        return s

    def q_choice(self, key, crit):
        return {"type": "choice", "instructions": self.question(key), "criteria": crit}

    def t_route(self, t, wide=False):
        rng, b = self.rng, self.bank
        c = self.some_concept()
        team = b.concepts[c]["team"]
        use_other = None if rng.random() < .6 else rng.random() < .3
        pool = [x for x in b.teams if x != team and (not use_other or x not in NEAR[team])]
        n = rng.randint(9, 24) if wide else rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7])
        near = [x for x in pool if x in NEAR[team]]
        others = rng.sample(pool, min(n, len(pool)))
        if near and rng.random() < .35:
            x = rng.choice(near)
            if x not in others:
                others[rng.randrange(len(others))] = x
        crit, gold = self.choice(b.teams[team], [b.teams[x] for x in others], use_other)
        text = self.concept_message(c)
        return self.state(text, hint=team, subject=rng.choice(b.concepts[c]["n"])), self.q_choice("route", crit), gold

    def t_category(self, t, wide=False):
        rng, b = self.rng, self.bank
        c = self.some_concept()
        team = b.concepts[c]["team"]
        use_other = None if rng.random() < .7 else rng.random() < .3
        if rng.random() < .45 and not use_other:
            pool = [x for x in b.teams[team]["concepts"] if x != c]
            if rng.random() < .5 or not pool:
                pool += rng.sample([x for x in b.concepts if b.concepts[x]["team"] != team], 4)
        else:
            pool = [x for x in b.concepts if x != c and b.concepts[x]["team"] != team
                    and (not use_other or b.concepts[x]["team"] not in NEAR[team])]
        n = rng.randint(9, 24) if wide else rng.choice([1, 2, 3, 3, 4, 5, 6, 7])
        if wide:
            pool = [x for x in b.concepts if x != c]
        others = rng.sample(pool, min(n, len(pool)))
        crit, gold = self.choice(b.concepts[c], [b.concepts[x] for x in others], use_other)
        return self.state(self.concept_message(c), hint=team, subject=rng.choice(b.concepts[c]["n"])), self.q_choice("category", crit), gold

    def t_wide(self, t):
        return self.t_route(t, True) if self.rng.random() < .4 else self.t_category(t, True)

    def t_tournament(self, t):
        """More options than letters: used for the held-out file only."""
        rng, b = self.rng, self.bank
        c = self.some_concept()
        pool = [x for x in b.concepts if x != c]
        others = rng.sample(pool, rng.randint(28, 45))
        crit, gold = self.choice(b.concepts[c], [b.concepts[x] for x in others])
        return self.state(self.concept_message(c)), self.q_choice("category", crit), gold

    def label(self, e, allow_desc=True):
        if allow_desc and e["d"] is not None and self.rng.random() < .4:
            d = self.line("desc", e["d"])
            return d[0].lower() + d[1:]
        x = self.rng.choice(e["n"]).replace("_", " ")
        return x

    def t_about(self, t):
        rng, b = self.rng, self.bank
        c = self.some_concept()
        team = b.concepts[c]["team"]
        yes = rng.random() < .5
        if rng.random() < .4:
            x = b.teams[team] if yes else b.teams[rng.choice([y for y in b.teams if y != team and y not in NEAR[team]])]
        else:
            same = [y for y in b.teams[team]["concepts"] if y != c]
            far = [y for y in b.concepts if b.concepts[y]["team"] != team and b.concepts[y]["team"] not in NEAR[team]]
            x = b.concepts[c if yes else rng.choice(same if (same and rng.random() < .3) else far)]
        q = {"type": "noul", "instructions": self.question("about", x=self.label(x))}
        if rng.random() < .3:
            q["criteria"] = {"true": None, "false": None} if rng.random() < .3 else {"true": self.desc(x["d"]), "false": rng.choice([None, "It is about something else", "Any other topic"])}
        return self.state(self.concept_message(c), hint=team if yes else None), q, yes

    def t_about_criteria(self, t):
        rng, b = self.rng, self.bank
        r = rng.random()
        if r < .6:
            c = self.some_concept()
            team = b.concepts[c]["team"]
            far = [y for y in b.concepts if b.concepts[y]["team"] != team and b.concepts[y]["team"] not in NEAR[team]]
            a, z = (b.concepts[c], b.concepts[rng.choice(far)]) if rng.random() < .6 else (
                b.teams[team], b.teams[rng.choice([y for y in b.teams if y != team and y not in NEAR[team]])])
            text = self.concept_message(c)
        else:
            attr = rng.choice(["urgency", "impact", "sentiment", "register", "wish", "resolved"])
            keys = list(b.attrs[attr])
            if attr in ("impact", "sentiment"):
                k = rng.choice(["0", "1", "3", "4"])
                k2 = rng.choice(["3", "4"] if k in "01" else ["0", "1"])
            else:
                k, k2 = rng.sample(keys, 2)
            a, z = b.attrs[attr][k], b.attrs[attr][k2]
            c = self.some_concept()
            text = self.body([self.line("wording", b.concepts[c]["line"]), self.line("wording", a["line"], need=True)], filler=.3)
        yes = rng.random() < .5
        da, dz = self.desc(a["d"]), self.desc(z["d"])
        crit = {"true": da, "false": dz} if yes else {"true": dz, "false": da}
        r = rng.random()
        if r < .2:
            crit["false"] = None
        elif r < .3:
            crit["false"] = rng.choice(["otherwise", "everything else", "not the case"])
        q = {"type": "noul", "instructions": self.question("about_criteria"), "criteria": crit}
        return self.state(text), q, yes

    def attr_message(self, attr, grade, p=.3):
        """A message with one sentence that fixes the attribute."""
        rng, b = self.rng, self.bank
        e = b.attrs[attr][str(grade)]
        if self.mode == "train" and rng.random() < .06:
            main = [self.line("desc", e["d"])]
        else:
            main = [self.line("wording", e["line"], need=True)]
        if rng.random() < .15:
            main.append(self.line("wording", e["line"]))
        if rng.random() < .85:
            if attr == "sentiment" and rng.random() < .5:
                pre = rng.choice(["the <product>", "about the <product>", "my order from <date>", "I bought the <product>", "your shop in <city>", "delivery of the <clothing>", "my visit on <date>"])
                pre = self.slots(pre)
            else:
                pre = self.line("wording", b.concepts[self.some_concept()]["line"])
            main.insert(0, pre)
        skip = {attr} | ({"sentiment", "impact"} if attr in ("sentiment", "impact") else set())
        if attr == "sentiment":
            skip.add("wish")
        return self.body(main, self.random_extras(skip, p), order=rng.random() < .6)

    def levels(self, attr):
        """-> entries of the chosen level subset (ascending) and a drawn grade index."""
        rng = self.rng
        top = ATTR_NUMERIC[attr]
        n = rng.randint(2, top) if top <= 3 else rng.choice([2, 3, 3, 3, 4, 5, 5])
        sub = sorted(rng.sample(range(top), n))
        if n == 2 and sub[1] - sub[0] == 1 and top > 3:
            sub = [max(0, sub[0] - 1), min(top - 1, sub[1] + 1)]
        return sub

    def level_text(self, attr, g):
        e = self.bank.attrs[attr][str(g)]
        return self.desc(e["d"]) if self.rng.random() < .65 else self.rng.choice(e["n"])

    def t_scale(self, t, attr):
        rng, b = self.rng, self.bank
        sub = self.levels(attr)
        i = rng.randrange(len(sub))
        g = sub[i]
        if self.mode == "train" and attr == "impact" and rng.random() < .2:      # no explicit wording: the usual impact of the issue
            c = self.some_concept()
            g = b.concepts[c]["sev"]
            text = self.concept_message(c, skip=("impact",))
            i = min(range(len(sub)), key=lambda k: (abs(sub[k] - g), k))
        elif self.mode == "train" and attr == "urgency" and rng.random() < .15:
            c = self.some_concept()
            g = 2 if b.concepts[c]["urgent"] else 1 if b.concepts[c]["sev"] >= 2 else rng.choice([0, 1])
            text = self.concept_message(c, skip=("urgency",))
            i = min(range(len(sub)), key=lambda k: (abs(sub[k] - g), k))
        else:
            if self.mode == "train" and rng.random() < .15:     # a grade beside the listed ones goes to the nearest
                g = rng.randrange(ATTR_NUMERIC[attr])
                i = min(range(len(sub)), key=lambda k: (abs(sub[k] - g), k))
            text = self.attr_message(attr, g)
        state = self.state(text)
        if rng.random() < .62:
            lv = [self.level_text(attr, x) for x in sub]
            if len({x.lower() for x in lv}) < len(lv):
                raise Retry
            if rng.random() < .08:
                lv.reverse()
                i = len(lv) - 1 - i
            return state, {"type": "score", "instructions": self.question(attr), "criteria": lv}, i
        ents = [b.attrs[attr][str(x)] for x in sub]
        gold = ents[i]
        ids = self.style([rng.choice(e["n"]) for e in ents])
        described = rng.random() < .5
        pairs = [(k, self.desc(e["d"]) if described else None) for k, e in zip(ids, ents)]
        if len({k.lower() for k, _ in pairs}) < len(pairs):
            raise Retry
        gid = ids[i]
        if rng.random() < .6:
            rng.shuffle(pairs)
        return state, self.q_choice(attr, dict(pairs)), gid

    def t_urgency(self, t):
        return self.t_scale(t, "urgency")

    def t_impact(self, t):
        return self.t_scale(t, "impact")

    def t_sentiment(self, t):
        return self.t_scale(t, "sentiment")

    def t_register(self, t):
        return self.t_scale(t, "register")

    def noul(self, key, yes, good=None, bad=None, **slots):
        rng = self.rng
        q = {"type": "noul", "instructions": self.question(key, **slots)}
        if good is not None and rng.random() < .3:
            q["criteria"] = {"true": self.desc(good["d"]), "false": self.desc(bad["d"]) if bad is not None and rng.random() < .6 else None}
        return q

    def t_urgency_yes(self, t):
        rng, a = self.rng, self.bank.attrs["urgency"]
        if self.mode == "train" and rng.random() < .3:
            c = self.some_concept()
            e = self.bank.concepts[c]
            yes = bool(e["urgent"]) or rng.random() < (.45 if e["sev"] >= 3 else .3 if e["sev"] == 2 else .08)
            text = self.concept_message(c, skip=("urgency",))
        else:
            yes = rng.random() < .5
            text = self.attr_message("urgency", 2 if yes else rng.choice([0, 1, 0]))
        return self.state(text), self.noul("urgency_yes", yes, a["2"], a[rng.choice("01")]), yes

    def t_impact_yes(self, t):
        rng, a = self.rng, self.bank.attrs["impact"]
        yes = rng.random() < .5
        text = self.attr_message("impact", rng.choice([3, 4, 3]) if yes else rng.choice([0, 1, 0, 1, 2] if self.mode == "train" else [0, 1]))
        return self.state(text), self.noul("impact_yes", yes, a["3"], a[rng.choice("01")]), yes

    def t_sentiment_yes(self, t):
        rng, a = self.rng, self.bank.attrs["sentiment"]
        good = rng.random() < .5
        text = self.attr_message("sentiment", rng.choice([3, 4]) if good else rng.choice([0, 1]), p=.1)
        if rng.random() < .5:
            return self.state(text), self.noul("sentiment_yes", good, a[rng.choice("34")], a[rng.choice("01")]), good
        return self.state(text), self.noul("sentiment_no", not good, a[rng.choice("01")], a[rng.choice("34")]), not good

    def t_rude_yes(self, t):
        rng, a = self.rng, self.bank.attrs["register"]
        yes = rng.random() < .5
        text = self.attr_message("register", 0 if yes else rng.choice([1, 2]))
        return self.state(text), self.noul("rude_yes", yes, a["0"], a[rng.choice("12")]), yes

    def wish_message(self, w):
        e = self.bank.attrs["wish"][w]
        main = [self.line("wording", e["line"], need=True)]
        if self.rng.random() < .8:
            c = self.some_concept()
            while self.bank.concepts[c]["team"] in ("cancellations", "feedback", "healthcare") or c in ("refund_status", "return_item", "exchange", "demo", "product_question"):
                c = self.some_concept()
            main.insert(0, self.line("wording", self.bank.concepts[c]["line"]))
        return self.body(main, self.random_extras(("wish", "sentiment")), order=self.rng.random() < .7)

    def t_wish(self, t):
        rng, a = self.rng, self.bank.attrs["wish"]
        w = rng.choice(list(a))
        others = rng.sample([x for x in a if x != w], rng.choice([1, 2, 3, 3, 4, 5, 6]))
        use_other = None if rng.random() < .8 else rng.random() < .2
        crit, gold = self.choice(a[w], [a[x] for x in others], use_other)
        return self.state(self.wish_message(w)), self.q_choice("wish", crit), gold

    def t_wish_yes(self, t):
        rng, a = self.rng, self.bank.attrs["wish"]
        w = rng.choice(list(a))
        yes = rng.random() < .5
        x = w if yes else rng.choice([y for y in a if y != w])
        art = {"refund": "a refund", "replacement": "a replacement", "information": "information", "cancellation": "a cancellation", "human": "a human agent",
               "callback": "a callback", "apology": "an apology", "appointment": "an appointment", "compensation": "compensation", "confirmation": "a confirmation"}
        label = art[x] if rng.random() < .6 else rng.choice(a[x]["n"]).replace("_", " ")
        return self.state(self.wish_message(w)), self.noul("wish_yes", yes, a[x], None, x=label), yes

    def spam_message(self, bad):
        a = self.bank.attrs["spam"]
        k = self.rng.choice([x for x in a if x != "ham"]) if bad else "ham"
        if not bad and self.rng.random() < .5:
            c = self.some_concept()
            if c in ("phishing_report",):
                raise Retry
            return self.concept_message(c)
        return self.body([self.line("wording", a[k]["line"], need=True)], filler=.25)

    def t_spam(self, t):
        a = self.bank.attrs["spam"]
        yes = self.rng.random() < .5
        return self.state(self.spam_message(yes)), self.noul("spam", yes, a["lottery"], a["ham"]), yes

    def t_spam_choice(self, t):
        a = self.bank.attrs["spam"]
        bad = self.rng.random() < .5
        text = self.spam_message(bad)
        crit, gold = self.choice(a["lottery" if bad else "ham"], [a["ham" if bad else "lottery"]])
        return self.state(text), self.q_choice("spam_choice", crit), gold

    def resolved_message(self, yes):
        b = self.bank
        main = [self.line("wording", b.concepts[self.some_concept()]["line"]), self.line("wording", b.attrs["resolved"]["yes" if yes else "no"]["line"], need=True)]
        return self.body(main, filler=.3)

    def t_resolved(self, t):
        a = self.bank.attrs["resolved"]
        yes = self.rng.random() < .5
        return self.state(self.resolved_message(yes)), self.noul("resolved", yes, a["yes"], a["no"]), yes

    def t_status(self, t):
        a = self.bank.attrs["resolved"]
        yes = self.rng.random() < .5
        crit, gold = self.choice(a["yes" if yes else "no"], [a["no" if yes else "yes"]])
        return self.state(self.resolved_message(yes)), self.q_choice("status", crit), gold

    def moderation_message(self, k):
        return self.body([self.line("wording", self.bank.attrs["moderation"][k]["line"], need=True)], filler=.2)

    def t_moderation(self, t):
        rng, a = self.rng, self.bank.attrs["moderation"]
        k = rng.choice(list(a))
        others = rng.sample([x for x in a if x != k], rng.randint(1, 4))
        crit, gold = self.choice(a[k], [a[x] for x in others])
        return self.state(self.moderation_message(k)), self.q_choice("moderation", crit), gold

    def t_moderation_yes(self, t):
        rng, a = self.rng, self.bank.attrs["moderation"]
        yes = rng.random() < .5
        k = "fine" if yes else rng.choice(["insult", "threat", "insult", "private"])
        self.doc = rng.choice(["post", "comment"])
        return self.state(self.moderation_message(k)), self.noul("moderation_yes", yes, a["fine"], a[k] if not yes else a[rng.choice(["insult", "threat"])]), yes

    def t_topic(self, t):
        rng, b = self.rng, self.bank
        k = rng.choice(list(b.topics))
        e = b.topics[k]
        main = [self.line("wording", e["line"], need=True)]
        if rng.random() < .3:
            main.append(self.line("wording", e["line"]))
        others = rng.sample([x for x in b.topics if x != k], rng.choice([1, 2, 3, 4, 5, 6, 7]))
        use_other = None if rng.random() < .8 else rng.random() < .2
        crit, gold = self.choice(e, [b.topics[x] for x in others], use_other)
        text = self.body(main, filler=.1)
        state = rng.choice([lambda: text, lambda: self.state(text), lambda: {"headline": text}, lambda: {"article": text, "author": rng.choice(NAMES)}])()
        return state, self.q_choice("topic", crit), gold

    def t_item(self, t):
        rng, b = self.rng, self.bank
        k = rng.choice(list(b.items))
        e = b.items[k]
        w = rng.choice(e["w"])
        others = rng.sample([x for x in b.items if x != k], rng.choice([1, 2, 3, 4, 5, 6]))
        use_other = None if rng.random() < .8 else rng.random() < .2
        crit, gold = self.choice(e, [b.items[x] for x in others], use_other)
        text = self.body([self.line("wording", b.itemline, need=True, v=w)], filler=.15)
        state = rng.choice([lambda: self.state(text), lambda: self.state(text), lambda: {"product": w, "price": round(rng.uniform(2, 300), 2)},
                            lambda: {"item": w, "quantity": rng.randint(1, 9), "note": text}])()
        return state, self.q_choice("item", crit), gold

    def number_state(self, e, v, key_in_field):
        rng, b = self.rng, self.bank
        if key_in_field:
            text = self.concept_message(self.some_concept(), need=False, p=.1)
            return self.state(text, fields=[(rng.choice(e["k"]), v)])
        text = self.body([self.line("wording", e["line"], need=True, v=v)], filler=.3)
        return self.state(text)

    def two_numbers(self, lo=1, hi=400):
        rng = self.rng
        t = rng.choice([rng.randint(2, 30), rng.choice([10, 20, 25, 30, 50, 60, 75, 100, 150, 200, 250, 300, 500, 1000]), rng.randint(10, hi)])
        d = max(1, int(t * rng.choice([.2, .4, .6, .9]) * rng.uniform(.5, 1)) + rng.randint(0, 2))
        return t, d

    def t_compare(self, t):
        rng, b = self.rng, self.bank
        e = b.numbers[rng.choice([k for k in b.numbers if k != "days"])]
        thr, d = self.two_numbers()
        bigger = rng.random() < .5
        v = thr + d if bigger else max(0, thr - d)
        if rng.random() < .2 and e["n"][0] in ("amount", "score"):
            v = round(v + rng.choice([.5, .25, .9]) * (1 if bigger else -1), 2)
            if v < 0:
                raise Retry
        over = rng.random() < .6
        yes = bigger == over
        q = {"type": "noul", "instructions": self.question("compare_over" if over else "compare_under", x=rng.choice(e["n"]), t=thr)}
        return self.number_state(e, v, rng.random() < .5), q, yes

    def t_eligible(self, t):
        rng, b = self.rng, self.bank
        thr = rng.choice([7, 10, 14, 14, 30, 30, 30, 60, 90, 100, 28, 21])
        yes = rng.random() < .5
        v = rng.randint(0, thr - 1) if yes else thr + rng.randint(1, thr * 2)
        q = {"type": "noul", "instructions": self.question("eligible", t=thr)}
        if rng.random() < .25:
            q["criteria"] = {"true": f"at most {thr} days", "false": f"more than {thr} days"}
        return self.number_state(b.numbers["days"], v, rng.random() < .6), q, yes

    def word(self):
        return "".join(self.rng.choice(SYL) for _ in range(self.rng.randint(2, 3))) + self.rng.choice(["", "", "n", "x", "r", "l"])

    def lookup(self):
        rng, b = self.rng, self.bank
        k = rng.choice(list(b.facts))
        e = b.facts[k]
        vals = rng.sample(e["w"], min(len(e["w"]), rng.choice([2, 3, 4, 5, 6])))
        name = rng.choice(e["n"])
        if rng.random() < .15:
            vals = [self.word() for _ in vals]
        v = vals[0]
        k2 = rng.choice([x for x in b.facts if x != k])
        if rng.random() < .4:
            fields = [(name.replace(" ", "_"), v), (rng.choice(b.facts[k2]["n"]).replace(" ", "_"), rng.choice(b.facts[k2]["w"]))]
            if fields[0][0] == fields[1][0]:
                raise Retry
            text = self.concept_message(self.some_concept(), need=False, p=.1)
            state = self.state(text, fields=fields)
        else:
            main = [self.line("wording", e["line"], need=True, v=v)]
            if rng.random() < .4:
                main.append(self.line("wording", b.facts[k2]["line"], v=rng.choice(b.facts[k2]["w"])))
            state = self.state(self.body(main, filler=.4, order=False))
        if any(re.search(rf"\b{re.escape(x)}\b", json.dumps(state), re.I) for x in vals[1:]):
            raise Retry
        return e, name, vals, state

    def t_lookup(self, t):
        rng = self.rng
        e, name, vals, state = self.lookup()
        v = vals[0]
        ids = self.style(vals)
        gid = ids[0]
        rng.shuffle(ids)
        if len(set(ids)) < len(ids):
            raise Retry
        return state, {"type": "choice", "instructions": self.question("lookup", x=name), "criteria": {k: None for k in ids}}, gid

    def t_lookup_yes(self, t):
        e, name, vals, state = self.lookup()
        yes = self.rng.random() < .5
        return state, {"type": "noul", "instructions": self.question("lookup_yes", x=name, t=vals[0 if yes else 1])}, yes

    def t_unknown_word(self, t):
        """Invented words: only the same word in a description tells the answer."""
        rng = self.rng
        n = rng.randint(2, 6)
        ws = [self.word() for _ in range(n)]
        if len(set(ws)) < n:
            raise Retry
        frame = rng.choice(["my <v> is broken", "I have a question about the <v>", "the <v> does not work", "please explain the <v>", "we need a new <v>",
                            "where can I buy a <v>", "the <v> makes noise", "something is wrong with our <v>"])
        text = self.body([frame.replace("<v>", ws[0])], filler=.5)
        names = rng.sample(["north", "south", "team red", "team blue", "desk 1", "desk 2", "unit a", "unit b", "group x", "anna", "ben", "carla"], n)
        d = rng.choice(["handles <v>", "<v> questions", "everything about <v>", "<v> and repairs", "expert for <v>", "<v>, service and sales"])
        pairs = [(k, d.replace("<v>", w)) for k, w in zip(names, ws)]
        gid = names[0]
        if rng.random() < .25:
            pairs = [(w, None) for w in ws]
            gid = ws[0]
        rng.shuffle(pairs)
        return self.state(text), self.q_choice("unknown_word", dict(pairs)), gid


def prompt(ex):
    r = ex["request"]
    return prompt_of(r["state"], r["questions"]["q"])


if __name__ == "__main__":
    import sys
    import time
    mode = sys.argv[1] if len(sys.argv) > 1 else "train"
    s = Sampler(mode, 1)
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    t0 = time.time()
    for i in range(n):
        e = s.draw()
        if n <= 60:
            print(e["task"], json.dumps(e["request"], ensure_ascii=False), "->", e["expected"])
    print((time.time() - t0) / n * 1000, "ms each")
