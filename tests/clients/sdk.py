"""Drives a running mesh with the official System-One client, as a program of a user would, and prints what it saw.

    sdk.py ask | errors | wait | crowd   BASE_URL

One JSON document on standard output. Nothing is judged here: tests/tests/sdk.rs does that.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version

import httpx2
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Box,
    Choice,
    Noul,
    RetryPolicy,
    Score,
    TypeSafeAPIError,
    TypeSafeClient,
)

# Longer than 1 KiB, from which on the client compresses what it sends.
STATE = {
    "ticket": "I was charged twice for order #4411.",
    "amount": 12.5,
    "tags": ["billing", "app"],
    "history": ["The customer wrote before and was told that the invoice is being looked at."] * 14,
    "account": {"plan": None, "naïve": "🎫"},
}

QUESTIONS = {
    "team": Choice(
        instructions="Which team should handle this ticket?",
        criteria={"shipping": "Delivery and tracking", "billing": "Payments, refunds and invoices", "other": None},
    ),
    "tone": Choice(
        instructions={"ask": "What is the tone?", "hints": ["calm", None, 3]}, criteria={"calm": None, "angry": None}
    ),
    "described": Choice(
        instructions=["What is it", "about?"], criteria={"money": {"such as": ["refunds", "fees"]}, "goods": ["parcels"]}
    ),
    "severity": Score(
        instructions=["How severe is the impact?", {"scale": "low to high"}],
        criteria=["cosmetic", {"level": "annoying"}, ["blocks", "the customer"]],
    ),
    "urgent": Noul(instructions="Should this ticket be answered today?"),
    "yes described": Noul(instructions="Is it about money?", criteria={"true": "It mentions a payment"}),
    "no described": Noul(instructions={"ask": "Is it solved?"}, criteria={"true": None, "false": "It is open"}),
    'a.b[0] "ü" 🎫': Noul(instructions="Is the writer a customer?", criteria={"true": "A customer", "false": ["Staff"]}),
    " as a dictionary ": {"type": "choice", "instructions": "Which?", "criteria": {"one": None, "two": "Two"}},
}


class Wire:
    """What really went over the wire, and when."""

    def __init__(self):
        self.requests = []
        self.responses = []

    def sent(self, request):
        body = request.content if request.method == "POST" else b""
        encoding = request.headers.get("content-encoding")
        self.requests.append(
            {
                "at": time.monotonic(),
                "encoding": encoding,
                "bytes": len(body),
                "retry": request.headers.get("x-typesafe-retry-count"),
                "caller": request.headers.get("x-caller"),
                "body": json.loads(body) if body and encoding is None and len(body) < 100_000 else None,
            }
        )

    def received(self, response):
        self.responses.append(
            {
                "at": time.monotonic(),
                "status": response.status_code,
                "retry_after_ms": response.headers.get("retry-after-ms"),
                "retry_after": response.headers.get("retry-after"),
                "caller": response.request.headers.get("x-caller"),
            }
        )

    def hooks(self):
        return {"request": [self.sent], "response": [self.received]}

    def async_hooks(self):
        async def sent(request):
            self.sent(request)

        async def received(response):
            self.received(response)

        return {"request": [sent], "response": [received]}


def client(base_url, wire, retry):
    http = httpx2.Client(event_hooks=wire.hooks(), timeout=60.0, trust_env=False)
    return TypeSafeClient(api_key="any", base_url=base_url, http_client=http, retry=retry)


def show(result):
    return {
        "model": result.model,
        "request_id": result.request_id,
        "input_tokens": result.usage.input_tokens,
        "output_tokens": result.usage.output_tokens,
        "answers": {name: answer.model_dump(mode="json") for name, answer in result.answers.items()},
        "kinds": {
            "choice": sorted(result.choices),
            "score": sorted(result.scores),
            "noul": sorted(result.nouls),
        },
    }


def ask(base_url):
    wire = Wire()
    with client(base_url, wire, RetryPolicy(max_retries=0)) as sdk:
        # No model is named: the client then asks for `jev-latest`.
        first = sdk.system_one(state=STATE, questions=QUESTIONS)
        models = sdk.models.list()
        named = sdk.system_one(state="Charged twice.", questions={"q": QUESTIONS["urgent"]}, model=models.models[0].name)
        listed = sdk.system_one(state=["Charged", {"twice": True}], questions={"q": QUESTIONS["team"]})
    return {
        "version": version("typesafe-sdk"),
        "python": list(sys.version_info[:2]),
        "answered": show(first),
        "models": [model.model_dump() for model in models.models],
        "named": show(named),
        "array_state": show(listed),
        "sent": wire.requests,
    }


def errors(base_url):
    wire = Wire()
    one = {"q": QUESTIONS["urgent"]}
    wide = {str(number): None for number in range(256)}
    cases = {
        "model": {"state": "x", "questions": one, "model": "no-such-model"},
        "levels": {"state": "x", "questions": {"q": Score(instructions="How bad?", criteria=["only one"])}},
        "options": {"state": "x", "questions": {"q": Choice(instructions="Which?", criteria=wide)}},
        "box": {"state": "x", "questions": {"q": Box(instructions="The dog")}},
        "no instructions": {"state": "x", "questions": {"q": Choice(criteria={"a": None, "b": None})}},
        "empty id": {"state": "x", "questions": {"": QUESTIONS["urgent"]}},
        "too long": {"state": "word " * 200_000, "questions": one},
        "too large": {"state": "x" * (5 << 20), "questions": one},
        "encoding": {"state": "x", "questions": one, "extra_headers": {"content-encoding": "br"}},
        "broken zstd": {"state": "x", "questions": one, "extra_headers": {"content-encoding": "zstd"}},
    }
    seen = {}
    with client(base_url, wire, RetryPolicy(max_retries=0)) as sdk:
        for name, arguments in cases.items():
            try:
                sdk.system_one(**arguments)
                seen[name] = {"error": None}
            except TypeSafeAPIError as error:
                seen[name] = {
                    "error": type(error).__name__,
                    "status": error.status,
                    "request_id": error.request_id,
                    "text": str(error),
                    "detail": error.body.get("detail") if isinstance(error.body, dict) else error.body,
                }
        after = show(sdk.system_one(state="x", questions=one))
    return {"seen": seen, "after": after}


def wait(base_url):
    """One call to a mesh that is not ready yet."""
    wire = Wire()
    retry = RetryPolicy(max_retries=200, timeout=90.0, backoff_initial=0.05, backoff_max=0.1)
    with client(base_url, wire, retry) as sdk:
        result = sdk.system_one(state="Charged twice.", questions={"q": QUESTIONS["team"]})
    return {"answered": show(result), "sent": wire.requests, "received": wire.responses}


def crowd(base_url):
    """Several callers at once, of whom each asks a few times."""
    wire = Wire()

    async def caller(sdk, name):
        answers = []
        for number in range(2):
            headers = {"x-caller": f"{name}.{number}"}
            result = await sdk.system_one(state=STATE, questions=QUESTIONS, extra_headers=headers)
            answers.append(show(result)["answers"])
        return answers

    async def run():
        http = httpx2.AsyncClient(event_hooks=wire.async_hooks(), timeout=60.0, trust_env=False)
        retry = RetryPolicy(max_retries=50, timeout=90.0, backoff_initial=0.05, backoff_max=0.1)
        async with AsyncTypeSafeClient(api_key="any", base_url=base_url, http_client=http, retry=retry) as sdk:
            return await asyncio.gather(*(caller(sdk, name) for name in "abcd"))

    answers = [answer for all in asyncio.run(run()) for answer in all]
    for request in wire.requests:
        request["body"] = None
    return {"answers": answers, "sent": wire.requests, "received": wire.responses}


if __name__ == "__main__":
    # What a developer has set for the real service is not for this one.
    for name in [name for name in os.environ if name.startswith("TYPESAFE_")]:
        del os.environ[name]
    commands = {"ask": ask, "errors": errors, "wait": wait, "crowd": crowd}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    print(json.dumps(commands[sys.argv[1]](sys.argv[2]), ensure_ascii=False))
