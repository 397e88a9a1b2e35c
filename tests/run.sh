#!/usr/bin/env bash
# Runs every test: installs the pinned tools, rebuilds the fixtures that do not lie in the tree, then calls nextest.
# Arguments go to nextest, e.g. `bash tests/run.sh -E 'package(deltagate-decider)'`.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tests/scripts/tools.sh
bash tests/scripts/fetch-tokenizer.sh >/dev/null
export PATH="$PWD/.tools/bin:$PATH"
exec cargo nextest run --workspace --no-fail-fast --locked "$@"
