#!/usr/bin/env bash
# How fast a model folder becomes a model, and its peak memory: 0.9 GB of F32 from the page cache, f32, 2 threads.
# Writes tests/bench/results/load.json with every pass. Half a minute, 2 GB of memory, 1 GB of disk.
#
# usage: tests/bench/load.sh [MODEL_DIR]     (a folder of random weights when absent)
# env: DELTAGATE (default target/release/deltagate, built if missing), PASSES (9), RESULT (where to write)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deltagate="${DELTAGATE:-target/release/deltagate}"
result="${RESULT:-tests/bench/results/load.json}"
[[ -x "$deltagate" ]] || cargo build --release --locked -p deltagate
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
model="${1:-$folder/random}"
[[ $# -gt 0 ]] || python3 tests/bench/make_folder.py "$model"
mkdir -p "$(dirname "$result")"
"$deltagate" --json bench load --model "$model" --threads 2 --passes "${PASSES:-9}" >"$result"
cat "$result"
