#!/usr/bin/env bash
# CPU speed against transformers on torch: the same shape, random weights, f32, the same threads, turn by turn in one run.
# Writes tests/bench/results/cpu.json with every sample. Not part of CI. PEER_PYTHON names a Python that has
# tests/bench/requirements.txt; otherwise one is made below target/. Arguments go to cpu_peer.py, e.g. `--repeats 20`.
set -euo pipefail
cd "$(dirname "$0")/../.."

python="${PEER_PYTHON:-target/bench-venv/bin/python}"
if [[ -z "${PEER_PYTHON:-}" && ! -x "$python" ]]; then
  python3 -m venv target/bench-venv
  "$python" -m pip install --quiet --requirement tests/bench/requirements.txt
fi
cargo build --release --locked -p deltagate
exec "$python" tests/bench/cpu_peer.py --deltagate target/release/deltagate --out tests/bench/results/cpu.json "$@"
