#!/bin/sh
# Finds a Python that the project runs on and hands over to tools/setup.py, which makes .venv.
# Plain sh, because on a bare machine this is the first thing that runs: it may only say what is missing.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# An interpreter that was asked for by name is taken or refused; another one would be a surprise.
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.14 python3.13 python3.12 python3.11; fi
for candidate in "$@"; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
        exec "$candidate" "$root/tools/setup.py"
    fi
done

found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")
cat >&2 <<MESSAGE
setup: this project needs Python 3.11 to 3.14, and found $found.
       Debian 12 or Ubuntu 24.04 and newer:  apt-get install python3 python3-venv
       An interpreter elsewhere:             make PYTHON=/path/to/python3.12 setup
MESSAGE
exit 1
