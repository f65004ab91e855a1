"""Asks `/health` of the server at a port again and again until its input ends, then prints the latencies in seconds.

A process of its own, so that what a test does meanwhile does not count as the server's slowness. Counted is the lesser
of the time that passed and of the processor time that the server had meanwhile, so that others on a busy machine do
not count either.
"""

import json
import select
import socket
import sys
import time
from pathlib import Path


def processor_s(pid: str) -> float:
    """Processor time that all threads of a process had, in seconds."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def main() -> None:
    """Probe the port of the process; the arguments are these two."""
    ask = b"GET /health HTTP/1.1\r\nHost: probe\r\n\r\n"
    latencies = []
    port, pid = sys.argv[1:]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            own, began = processor_s(pid), time.perf_counter()
            connection.sendall(ask)
            received = b""
            while not received.endswith(b'{"status":"ok"}'):
                received += connection.recv(65536)
            wall = time.perf_counter() - began
            latencies.append(min(wall, processor_s(pid) - own))
    sys.stdout.write(json.dumps(latencies))


if __name__ == "__main__":
    main()
