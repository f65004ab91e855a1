#!/bin/sh
# Pins the newest versions that pyproject.toml allows, with hashes, for every supported Python and platform.
# The resolver lives in a folder that goes at the end; the lock names no host.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM
"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check 'uv>=0.9,<1'
cd "$root"
"$scratch/venv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-header --all-extras pyproject.toml -o "$scratch/requirements.lock"
if grep -n '://' "$scratch/requirements.lock"; then
    echo "lock: the lines above name a host; the lock is left as it was" >&2
    exit 1
fi
cp "$scratch/requirements.lock" requirements.lock
echo "lock: $(grep -c '==' requirements.lock) packages pinned; run 'make test' next"
