#!/usr/bin/env bash
# The contract passes buf's STANDARD lint and does not break the committed image of what was released last.
# A deliberate addition: `cd proto && buf build -o image.binpb`.
set -euo pipefail
cd "$(dirname "$0")/../../proto"
buf lint
buf breaking --against image.binpb
buf format --diff --exit-code >/dev/null
