"""Starts server processes quickly: a process that has imported everything forks one for each that is asked for.

A forked child runs the real command line in a process of its own, with its own log; only the second that Python
needs to import the product is spared. As a program: `python -m tests.support.forks SOCKET`. Each connection to the
socket asks for children by lines of JSON and hears of them; when it closes, its children are killed.
"""

import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

IMPORTED: Final = ("genrm_trio.ops.cli", "genrm_trio.ops.service")


@dataclass(eq=False)
class Client:
    """One test: its connection, what it sent of the next line, and its living children."""

    stream: socket.socket
    unread: bytes = b""
    children: set[int] = field(default_factory=set)

    def tell(self, **what: object) -> None:
        """Report something; a client that is gone hears nothing."""
        try:
            self.stream.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            self.unread = b""


@dataclass(eq=False)
class Output:
    """The standard output of one child, which ends when the child does."""

    pid: int
    client: Client
    reader: int


class Forks:
    """The program: waits for connections, lines and output, all in one thread, so that forking is safe."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve until our standard input closes; then no child is left."""
        try:
            self._serve()
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
            for pid in self._children:
                os.waitpid(pid, 0)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if isinstance(key.data, Client):
                    self._hear(key.data)
                elif isinstance(key.data, Output):
                    self._relay(key.data)
                else:
                    stream, _ = self._listener.accept()
                    self._selector.register(stream, selectors.EVENT_READ, Client(stream))

    def _hear(self, client: Client) -> None:
        data = client.stream.recv(65536)
        if not data:
            self._selector.unregister(client.stream)
            client.stream.close()
            for pid in client.children:
                os.kill(pid, signal.SIGKILL)
            return
        *lines, client.unread = (client.unread + data).split(b"\n")
        for line in lines:
            self._fork(client, json.loads(line))

    def _fork(self, client: Client, asked: dict[str, Any]) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _become_server(asked["argv"], writer, asked["log"])
        os.close(writer)
        client.children.add(pid)
        self._children.add(pid)
        self._selector.register(reader, selectors.EVENT_READ, Output(pid, client, reader))
        client.tell(started=pid)

    def _relay(self, output: Output) -> None:
        data = os.read(output.reader, 65536)
        if data:
            output.client.tell(pid=output.pid, said=data.decode())
            return
        self._selector.unregister(output.reader)
        os.close(output.reader)
        _, status = os.waitpid(output.pid, 0)
        output.client.children.discard(output.pid)
        self._children.discard(output.pid)
        output.client.tell(pid=output.pid, exited=os.waitstatus_to_exitcode(status))


def _become_server(argv: list[str], writer: int, log: str) -> NoReturn:
    """Run the command line in this child, and nothing of the parent's code after it."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        os.closerange(3, 4096)
        sys.argv = argv
        import_module("genrm_trio.ops.cli").main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import, listen, say so, and serve."""
    for name in IMPORTED:
        import_module(name)
    path = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        print("ready", flush=True)
        Forks(listener).serve()


if __name__ == "__main__":
    main()
