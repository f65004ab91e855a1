"""Asks `/health` of the server at a port again and again until its input ends, then prints the latencies in seconds.

A process of its own, so that what a test does meanwhile does not count as the server's slowness. Counted is the time
that passed without that in which a thread of the server, or this process, could have run and had no processor: so
others on a busy machine do not count, but whatever the server waits for does.
"""

import json
import select
import socket
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path


def queued_s(*pids: str) -> dict[Path, float]:
    """For each thread of these processes how long it has waited for a processor since it began, in seconds."""
    waited = {}
    for task in chain.from_iterable(Path(f"/proc/{pid}/task").iterdir() for pid in pids):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            waited[task] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waited


def main() -> None:
    """Probe the port of the process; the arguments are these two."""
    ask = b"GET /health HTTP/1.1\r\nHost: probe\r\n\r\n"
    latencies = []
    port, pid = sys.argv[1:]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            before, began = queued_s(pid, "self"), time.perf_counter()
            connection.sendall(ask)
            received = b""
            while not received.endswith(b'{"status":"ok"}'):
                received += connection.recv(65536)
            wall = time.perf_counter() - began
            queued = sum(waited - before.get(task, 0.0) for task, waited in queued_s(pid, "self").items())
            latencies.append(max(0.0, wall - queued))
    sys.stdout.write(json.dumps(latencies))


if __name__ == "__main__":
    main()
