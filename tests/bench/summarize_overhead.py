"""Joins the parts of overhead.sh into one file and prints the tables. Usage: summarize_overhead.py FOLDER RESULT"""

import json
import math
import os
import platform
import sys


def percentiles(samples):
    """Nearest rank, as `deltagate bench` counts."""
    ordered = sorted(samples)
    rank = lambda q: ordered[max(math.ceil(q * len(ordered)), 1) - 1]
    return {"samples": len(ordered), "p50": rank(0.5), "p95": rank(0.95), "p99": rank(0.99), "max": ordered[-1]}


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load_before": os.environ["LOAD_BEFORE"],
        "load_after": os.environ["LOAD_AFTER"],
    }


def main():
    folder, result = sys.argv[1:]

    def read(name):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)

    run, cancel = read("run.json"), read("cancel.json")
    (task,) = run["tasks"]
    parts = {part: task[f"{part}_ms"] for part in ("round_trip", "tokenize", "policy", "queue", "forward", "gateway")}
    times = zip(parts["round_trip"], parts["tokenize"], parts["queue"], parts["forward"])
    parts["overhead"] = [whole - tokenize - queue - forward for whole, tokenize, queue, forward in times]
    overhead = percentiles(parts["overhead"])
    summary = {
        "revision": os.environ["REVISION"],
        "machine": machine(),
        "model": os.environ["MODEL"],
        "input_tokens": task["input_tokens"],
        "failures": len(task["failures"]),
        "targets_ms": {"overhead_p50": 0.3, "overhead_p99": 1.0},
        "met": {"overhead_p50": overhead["p50"] <= 0.3, "overhead_p99": overhead["p99"] <= 1.0},
        "milliseconds": {part: percentiles(samples) for part, samples in parts.items()},
        "client_gone_ms": {part: percentiles(cancel[f"{part}_ms"]) for part in ("freed_after", "queue")},
    }
    whole = {
        "summary": summary,
        "overhead": run,
        "client_gone": cancel,
        "tokenize": {"model": read("tokenize-model.json"), "qwen35": read("tokenize-qwen.json")},
    }
    with open(result, "w", encoding="utf-8") as file:
        json.dump(whole, file, separators=(",", ":"))
        file.write("\n")

    load = f"load {summary['machine']['load_before']} before, {summary['machine']['load_after']} after"
    print(f"{summary['revision']} · {summary['machine']['cpu']}, {summary['machine']['cores']} cores · {load}")
    print(f"{task['input_tokens']} tokens, {len(parts['overhead'])} requests, {summary['failures']} failures\n")
    print("| milliseconds | p50 | p95 | p99 | max |\n|---|---|---|---|---|")
    for part, p in [*summary["milliseconds"].items(), *(("gone: " + k, v) for k, v in summary["client_gone_ms"].items())]:
        print(f"| {part} | {p['p50']:.3f} | {p['p95']:.3f} | {p['p99']:.3f} | {p['max']:.3f} |")
    print(f"\nA whole forward pass of the request that is given up: {cancel['whole_forward_ms']:.1f} ms.\n")
    print("| tokenizer | tokens | tokenising p50 µs | text and JSON p50 µs | ratio |\n|---|---|---|---|---|")
    for name, report in whole["tokenize"].items():
        for length in report["lengths"]:
            tokenize, rest = length["tokenize_us"]["p50"], length["text_and_json_us"]["p50"]
            print(f"| {name} | {length['tokens']} | {tokenize:.1f} | {rest:.1f} | {length['ratio']:.3f} |")
    print(f"\nmet: {summary['met']}; every sample is in {result}")


main()
