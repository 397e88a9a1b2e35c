#!/usr/bin/env bash
# What the mesh adds to a request: one process a service on loopback, one request in flight, a 136-token prompt, tracing
# configured and unsampled. Then: how soon the device is free after a client went away, and what text costs.
# Writes tests/bench/results/overhead.json: every sample, the machine, the revision. About a minute.
#
# usage: tests/bench/overhead.sh [MODEL_DIR]     (the embedded model when absent)
# env: BUSY_POLL=1: gateway, executor and client wait without sleeping, which needs four cores beside those of the device
#      DELTAGATE (default target/release/deltagate, built if missing), PASSES (2000), WARM_UPS (200), ROUNDS (100),
#      RESULT (where to write)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deltagate="${DELTAGATE:-target/release/deltagate}"
busy=false
[[ -n "${BUSY_POLL:-}" ]] && busy=true
result="${RESULT:-tests/bench/results/overhead.json}"
[[ -x "$deltagate" ]] || cargo build --release --locked -p deltagate
folder="$(mktemp -d)"
up=""
finish() {
  # SIGTERM: the whole set drains and ends.
  if [[ -n "$up" ]]; then
    kill "$up" 2>/dev/null || true
    wait "$up" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap finish EXIT

cat >"$folder/deltagate.toml" <<TOML
[gateway]
busy_poll = $busy
grpc_listen = "127.0.0.1:42151"
http_listen = "127.0.0.1:42180"
capability = "http://127.0.0.1:42152"
policy = "http://127.0.0.1:42153"

[capability]
listen = "127.0.0.1:42152"

[policy]
listen = "127.0.0.1:42153"
capability = "http://127.0.0.1:42152"

[executor]
busy_poll = $busy
listen = "127.0.0.1:42161"
capability = "http://127.0.0.1:42152"
policy = "http://127.0.0.1:42153"

[telemetry]
otlp_endpoint = "http://127.0.0.1:42117"
sample_ratio = 0.0
TOML

config=(--config "$folder/deltagate.toml")
load_before="$(cut -d' ' -f1-3 /proc/loadavg)"
"$deltagate" up --cpu ${1:+--model "$1"} "${config[@]}" --require-ready 120s 2>"$folder/up.log" >&2 &
up=$!
until grep -qx ready "$folder/up.log"; do
  if ! kill -0 "$up" 2>/dev/null; then
    cat "$folder/up.log" >&2
    exit 1
  fi
  sleep 0.1
done

echo "--- overhead"
"$deltagate" bench run "${config[@]}" --tasks tests/bench/overhead.jsonl \
  --warm-ups "${WARM_UPS:-200}" --passes "${PASSES:-2000}" --out "$folder/run.json" ${BUSY_POLL:+--busy-poll}
echo "--- client gone"
"$deltagate" bench cancel "${config[@]}" --tasks tests/bench/cancel.jsonl --rounds "${ROUNDS:-100}" \
  --out "$folder/cancel.json"
kill "$up"
wait "$up" || true
up=""

echo "--- tokenising, tokenizer of the model"
"$deltagate" --json bench tokenize ${1:+--model "$1"} >"$folder/tokenize-model.json"
tokenizer="${DELTAGATE_FIXTURE_CACHE:-target/fixtures}/qwen35/tokenizer.json"
[[ -f "$tokenizer" ]] || tokenizer="$(bash tests/scripts/fetch-tokenizer.sh)"
"$deltagate" --json bench tokenize --family startlux --tokenizer "$tokenizer" >"$folder/tokenize-qwen.json"
load_after="$(cut -d' ' -f1-3 /proc/loadavg)"

revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
git diff --quiet HEAD 2>/dev/null || revision="$revision+changes"
mkdir -p "$(dirname "$result")"
REVISION="$revision" LOAD_BEFORE="$load_before" LOAD_AFTER="$load_after" MODEL="${1:-embedded}" \
  python3 tests/bench/summarize_overhead.py "$folder" "$result"
