#!/usr/bin/env bash
# What each decider family's text costs on one core: from the body to the plan and from its outputs to the body of the answer, for a
# state of 1,000 tokens of the Qwen3.5 tokenizer and one choice of three. No device. Writes tests/bench/results/families.json with
# every sample. Half a minute.
#
# env: DELTAGATE (default target/release/deltagate, built if missing), REPEATS (300), RESULT (where to write)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deltagate="${DELTAGATE:-target/release/deltagate}"
result="${RESULT:-tests/bench/results/families.json}"
[[ -x "$deltagate" ]] || cargo build --release --locked -p deltagate
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
tokenizer="$(bash tests/scripts/fetch-tokenizer.sh)"

# One family's tokenizers have a marker of their own; two families answer with a head of the checkpoint.
python3 - "$tokenizer" "$folder" <<'PY'
import json, pathlib, sys
tokenizer, folder = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
marker = {"id": 248077, "content": "<decision>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
tokenizer["added_tokens"].append(marker)
(folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
jev = {
    "format": "open-jev-text-merged/1", "model_id": "m", "base_revision": "a", "checkpoint_revision": "b", "temperature": 2.5,
    "chat_prefix": "<|im_start|>user\n", "chat_suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "head_weight": [0.5] * 1024, "head_bias": 0.0,
}
(folder / "open_jev.json").write_text(json.dumps(jev))
(folder / "sequence_classification.json").write_text(json.dumps({"labels": ["billing", "shipping", "other"]}))
questions = {"team": {"type": "choice", "criteria": ["billing", "shipping", "other"]}}
(folder / "plain.json").write_text(json.dumps(questions))
PY

load_before="$(cut -d' ' -f1-3 /proc/loadavg)"
for family in startlux open_jev pplx_v1 pplx_v1_1 clef cua_s1 intern decider_2b sequence_classification; do
  options=()
  [[ -f "$folder/$family.json" ]] && options+=(--family-config "$folder/$family.json")
  [[ "$family" == sequence_classification ]] && options+=(--questions "$folder/plain.json" --plain-state)
  taskset -c 0 "$deltagate" --json bench tokenize --family "$family" --tokenizer "$folder/tokenizer.json" "${options[@]}" \
    --state-tokens 1000 --repeats "${REPEATS:-300}" >"$folder/$family.result"
done

revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
git diff --quiet HEAD 2>/dev/null || revision="$revision+changes"
mkdir -p "$(dirname "$result")"
REVISION="$revision" LOAD="$load_before before, $(cut -d' ' -f1-3 /proc/loadavg) after" python3 - "$folder" "$result" <<'PY'
import json, os, pathlib, sys
cpu = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
reports = [json.loads(path.read_text()) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.result"))]
for report in reports:
    for length in report["lengths"]:
        for key in ("samples_tokenize_us", "samples_text_and_json_us"):
            length[key] = [round(sample, 1) for sample in length[key]]
machine = {"cpu": cpu, "cores": os.cpu_count(), "load": os.environ["LOAD"]}
out = {"revision": os.environ["REVISION"], "machine": machine, "families": reports}
pathlib.Path(sys.argv[2]).write_text(json.dumps(out, separators=(",", ":")) + "\n")
print(f"{out['revision']} · {cpu} · load {os.environ['LOAD']}\n")
print("| family | tokens of all prompts | prepare + finish p50 µs | p99 µs | text and JSON in it, p50 µs | requests a second, one core |\n|---|---|---|---|---|---|")
for report in reports:
    length = report["lengths"][0]
    both, text = length["prepare_and_finish_us"], length["text_and_json_us"]
    print(f"| {report['family']} | {length['tokens']} | {both['p50']:.0f} | {both['p99']:.0f} | {text['p50']:.0f} | {length['per_second']:.0f} |")
PY
