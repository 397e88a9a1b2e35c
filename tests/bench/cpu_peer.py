"""Times `deltagate bench forward` and transformers' Qwen3_5TextModel on torch, in turns, and keeps every sample.

On a machine that does other work at the same time torch loses far more than its share: each of its many small parallel loops waits
for the thread that was put aside. A ratio from such a sample would flatter us, so the share of the processors that went to anybody
else is kept with each sample, and the medians are over pairs of which neither half was disturbed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import torch
import transformers
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

VOCABULARY = 4096
DISTURBED = 0.05  # of the processors' time
FEWEST = 3  # undisturbed pairs, without which there is no result


def peer_model(threads):
    """The 0.8B shape with the weights that transformers initialises it with."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    # Strong decays give subnormal numbers, on which its products are slow. Ours never have them; here is torch's remedy.
    torch.set_flush_denormal(True)
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        dtype=torch.float32,
    )
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    assert config.layer_types == kinds * 6, config.layer_types
    assert (config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim) == (128, 128, 4)
    return Qwen3_5TextModel(config).eval()


@torch.inference_mode()
def peer_sample(model, tokens):
    ids = torch.tensor([[i * 7919 % VOCABULARY for i in range(tokens)]])
    start = time.perf_counter()
    model(input_ids=ids, use_cache=False)
    return (time.perf_counter() - start) * 1e3


class Deltagate:
    """A `bench forward --step` that takes a sample when it is asked to."""

    def __init__(self, program, threads, lengths, warm_ups):
        self.out = pathlib.Path(tempfile.mkstemp(suffix=".json")[1])
        command = [program, "bench", "forward", "--shape", "0.8b", "--load-format", "dummy", "--vocabulary", str(VOCABULARY)]
        command += ["--dtype", "f32", "--threads", str(threads), "--tokens", ",".join(map(str, lengths))]
        command += ["--warm-ups", str(warm_ups), "--step", "--out", str(self.out)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert json.loads(self.process.stdout.readline()) == {"ready": True}

    def sample(self, tokens):
        self.process.stdin.write(f"{tokens}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["ms"]

    def finish(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise SystemExit("deltagate failed")
        report = json.loads(self.out.read_text())
        self.out.unlink()
        return report


def busy_seconds():
    """Time that all processors together have worked since the start of the machine, and what a hypervisor has taken."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def observed(pid, sample):
    """A sample with the share of the processors that others had meanwhile."""
    wall, busy, own = time.perf_counter(), busy_seconds(), process_seconds(pid)
    ms = sample()
    own, busy, wall = process_seconds(pid) - own, busy_seconds() - busy, time.perf_counter() - wall
    return {"ms": ms, "others": round(max(0.0, busy - own) / (wall * os.cpu_count()), 4)}


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cpus": os.cpu_count(), "kernel": platform.release()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltagate", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[136, 1024])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=5, help="no new turn after so long")
    parser.add_argument("--warm-ups", type=int, default=2)
    args = parser.parse_args()

    load_before = os.getloadavg()
    model = peer_model(args.threads)
    ours = Deltagate(args.deltagate, args.threads, args.tokens, args.warm_ups)
    for tokens in args.tokens:
        for _ in range(args.warm_ups):
            peer_sample(model, tokens)
    samples = {tokens: [] for tokens in args.tokens}
    deadline = time.monotonic() + 60 * args.minutes
    for turn in range(args.repeats):
        if turn >= FEWEST and time.monotonic() > deadline:
            break
        for tokens in args.tokens:
            mine = observed(ours.process.pid, lambda: ours.sample(tokens))
            theirs = observed(os.getpid(), lambda: peer_sample(model, tokens))
            samples[tokens].append({"deltagate": mine, "transformers": theirs})
            time.sleep(0.05)  # threads that wait for more work by spinning have gone to sleep by then

    report = ours.finish()
    runs, enough = [], True
    for tokens, pairs in samples.items():
        kept = [pair for pair in pairs if max(half["others"] for half in pair.values()) <= DISTURBED]
        run = {"tokens": tokens, "undisturbed": len(kept), "pairs": pairs}
        runs.append(run)
        if len(kept) < FEWEST:
            enough = False
            print(f"{tokens:5} tokens: {len(kept)} of {len(pairs)} pairs undisturbed, no result")
            continue
        for name, of in (("median", statistics.median), ("best", min)):
            mine, theirs = (of(pair[who]["ms"] for pair in kept) for who in ("deltagate", "transformers"))
            run[name] = {"deltagate_ms": mine, "transformers_ms": theirs, "ratio": mine / theirs}
            print(f"{tokens:5} tokens, {name:6} of {len(kept)}: deltagate {mine:8.1f} ms, transformers {theirs:8.1f} ms, ratio {mine / theirs:.2f}")
    document = {
        "what": "0.8B shape, random weights, f32, last row only, one sequence; samples in turns",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "revision": output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "machine": machine() | {"load_before": load_before, "load_after": os.getloadavg()},
        "threads": args.threads,
        "warm_ups": args.warm_ups,
        "peer": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "attention": model.config._attn_implementation,
            "delta_rule": "transformers' own torch implementation: flash-linear-attention has none for the CPU",
            "flush_denormal": True,
        },
        "runs": runs,
        "deltagate": report,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    if not enough:
        raise SystemExit("the machine is busy with something else")


if __name__ == "__main__":
    main()
