#!/usr/bin/env bash
# Runs every fuzz target from its committed seeds, two at a time, and fails on a finding. Arguments: seconds for each
# target (60), then the targets (all). Needs a C++ compiler for libFuzzer; fetches cargo-fuzz when it is not in .tools.
#
# The compiler is the one of the build: coverage comes from stable flags of it. No sanitizer, because the code under
# test is safe Rust; what a finding looks like is a panic, a broken promise of tests/fuzz/src, too much memory or time.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.13.2
seconds=${1:-60}
targets=("${@:2}")
[ "${#targets[@]}" -gt 0 ] || targets=(http_body proto_request safetensors_header prepare)

if [ "$(.tools/bin/cargo-fuzz --version 2>/dev/null)" != "cargo-fuzz $version" ]; then
    cargo install cargo-fuzz --version "$version" --locked --quiet --root .tools
fi

build=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$build
cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
# The lock file is held: cargo-fuzz has no flag for it.
cargo metadata --manifest-path tests/fuzz/Cargo.toml --locked --format-version 1 >/dev/null
# Some flags of cargo-fuzz have been unstable in one release or another; none of them needs a nightly compiler.
RUSTC_BOOTSTRAP=1 PATH="$PWD/.tools/bin:$PATH" cargo fuzz build --fuzz-dir tests/fuzz --sanitizer none

fuzz() {
    local target=$1 work=$build/run/$1
    rm -rf "$work" && mkdir -p "$work/corpus"
    # The first folder takes what is new; the seeds are only read.
    "$build/$host/release/$target" "$work/corpus" "tests/fuzz/seeds/$target" \
        -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=10 -max_len=8192 \
        -dict=tests/fuzz/json.dict -artifact_prefix="$work/" -print_final_stats=1 >"$work/log" 2>&1
}

failed=()
for ((first = 0; first < ${#targets[@]}; first += 2)); do
    declare -A running=()
    for target in "${targets[@]:first:2}"; do
        fuzz "$target" & running[$target]=$!
    done
    for target in "${!running[@]}"; do
        if wait "${running[$target]}"; then
            executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/run/$target/log")
            echo "$target: ${executed:-0} executions in ${seconds}s, no finding"
            [ "${executed:-0}" -gt 0 ] || failed+=("$target")
        else
            failed+=("$target")
            echo "$target: a finding; the end of its log:"
            tail -n 40 "$build/run/$target/log"
            for input in "$build/run/$target/"{crash,oom,timeout,slow-unit}-*; do
                [ ! -e "$input" ] || { echo "$input, in base64:"; base64 -w0 "$input"; echo; }
            done
        fi
    done
    unset running
done
[ "${#failed[@]}" -eq 0 ] || { echo "fuzzing failed: ${failed[*]}"; exit 1; }
