"""A judge to test against: a real HTTP server on loopback whose every reply, and every fault, is scripted.

In a test: `async with FakeJudge(script).running() as judge`, then `judge.url` and `judge.calls`. As a process of its
own: `python -m tests.support.fake_judge --ready-file FILE`, steered over `POST /_script` and read over `GET /_calls`
(see `main`). It speaks both dialects; nothing of the product is imported, so it cannot share its mistakes.
"""

import argparse
import json
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import h11
import trio

FaultName = Literal[
    "", "reset_before", "close_before", "reset_in_head", "reset_in_body", "close_in_body", "silence", "garbage"
]
MAX_CALLS_KEPT: Final = 100_000


@dataclass(frozen=True)
class Call:
    """One request that came in: `number` counts from 0 over all connections."""

    number: int
    connection: int
    method: str
    target: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def answers(self) -> tuple[str, str]:
        """The two answers to compare, in either dialect; for a template's prompt both are the prompt."""
        body = self.body
        if "metadata" in body:
            return body["metadata"]["response_1"], body["metadata"]["response_2"]
        by_role = {message["role"]: message["content"] for message in body["messages"]}
        return by_role.get("response_1", by_role.get("user", "")), by_role.get("response_2", by_role.get("user", ""))


@dataclass(frozen=True)
class Reply:
    """What to send: `text` is wrapped as a judge's answer, `body` (bytes, or anything JSON) goes as it is.

    `delay_s` comes before the first byte; `hold` too, until it is set. `fault` breaks the connection: the
    `_in_` ones after a part of the reply was sent.
    """

    status: int = 200
    text: str | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    fault: FaultName = ""
    hold: trio.Event | None = None

    def content(self, target: str) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(answer(self.text or "", target) if self.body is None else self.body).encode()


Script = Callable[[Call], Reply]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def verdict_text(score_1: float, score_2: float, ranking: float) -> str:
    """Return a judge's answer with a fenced verdict."""
    verdict = json.dumps({"score_1": score_1, "score_2": score_2, "ranking": ranking})
    return f"Both were read.\n```json\n{verdict}\n```"


def answer(text: str, target: str = "/v1/responses", **overlay: Any) -> dict[str, Any]:
    """Return a complete reply that says `text`, in the dialect of the target, some members replaced."""
    if target.endswith("/chat/completions"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 20}
        return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage, **overlay}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    usage = {"input_tokens": 100, "output_tokens": 20}
    return {"id": "r", "object": "response", "status": "completed", "output": output, "usage": usage, **overlay}


def better_of(call: Call) -> Reply:
    """The default script: an answer that says `quality=N` is worth N, any other one by its length."""
    worth = [_worth(text) for text in call.answers]
    difference = max(-2.5, min(2.5, worth[0] - worth[1]))
    return Reply(text=verdict_text(worth[0], worth[1], 3.5 - difference))


def _worth(text: str) -> float:
    told = re.search(r"quality=([0-9.]+)", text)
    value = float(told.group(1)) if told else 1.0 + len(text) % 5
    return max(1.0, min(5.0, value))


def in_turn(*replies: Reply, then: Script = better_of) -> Script:
    """Return a script that gives these replies, one a call, and follows `then` afterwards."""
    left = list(replies)

    def script(call: Call) -> Reply:
        return left.pop(0) if left else then(call)

    return script


class FakeJudge:
    """The server; one `running` at a time, again and again on the same port."""

    def __init__(self, script: Script = better_of, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.tls = tls
        self.calls: list[Call] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.connections = 0  # open now
        self.accepted = 0  # ever
        self.port = 0
        self._changed = trio.Event()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self, port: int | None = None) -> AsyncIterator["FakeJudge"]:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(self.serve, port=self.port if port is None else port))
            yield self
            nursery.cancel_scope.cancel()

    async def serve(self, port: int = 0, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=1024)
        self.port = cast("int", listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, self._connection, listeners, handler_nursery=nursery))
            task_status.started(self.port)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the calls and counters holds."""
        while not condition():
            await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _connection(self, socket_stream: trio.SocketStream) -> None:
        stream: Stream = socket_stream
        if self.tls is not None:
            stream = trio.SSLStream(socket_stream, self.tls, server_side=True, https_compatible=True)
        self.accepted += 1
        self.connections += 1
        connection, wire = self.accepted, h11.Connection(h11.SERVER)
        try:
            while await self._one(connection, wire, stream):
                wire.start_next_cycle()
        except h11.RemoteProtocolError:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            self._note()  # the client left, which clients may
        finally:
            self.connections -= 1
            self._note()
            with trio.move_on_after(1, shield=True):
                await stream.aclose()

    async def _one(self, connection: int, wire: h11.Connection, stream: Stream) -> bool:
        """Serve one request; tell whether the connection goes on."""
        request, raw = await _receive(wire, stream)
        if request is None:
            return False
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        target = request.target.decode("ascii")
        if target.startswith("/_"):
            await _send(wire, stream, self._steer(target, raw), target)
            return True
        call = Call(len(self.calls), connection, request.method.decode(), target, headers, raw)
        if len(self.calls) < MAX_CALLS_KEPT:
            self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._note()
        try:
            reply = self.script(call)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_on_close, stream, nursery.cancel_scope)
                await trio.sleep(reply.delay_s)
                if reply.hold is not None:
                    await reply.hold.wait()
                if reply.fault == "silence":
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        finally:
            self.in_flight -= 1
            self._note()
        return await _send(wire, stream, reply, target)

    def _steer(self, target: str, raw: bytes) -> Reply:
        if target == "/_script":
            told = json.loads(raw)
            then = Reply(**told["then"]) if told.get("then") else None
            self.script = in_turn(
                *(Reply(**reply) for reply in told.get("replies", [])),
                then=(lambda _call: then) if then else better_of,
            )
            return Reply(body={"ok": True})
        counts = {"calls": len(self.calls), "in_flight": self.in_flight, "most_in_flight": self.most_in_flight}
        return Reply(body={**counts, "connections": self.connections})


async def _receive(wire: h11.Connection, stream: Stream) -> tuple[h11.Request | None, bytes]:
    request, parts = None, bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(bytes(await stream.receive_some(65536)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            parts += event.data
        elif isinstance(event, h11.EndOfMessage):
            return request, bytes(parts)
        else:
            return None, b""


async def _leave_on_close(stream: Stream, scope: trio.CancelScope) -> None:
    """End the wait when the client closes: it sends nothing more until it has its reply."""
    with suppress(trio.BrokenResourceError):  # a reset is a close too
        await stream.receive_some(1)
    scope.cancel()


async def _send(wire: h11.Connection, stream: Stream, reply: Reply, target: str) -> bool:
    """Send a reply, or break off as it says; tell whether the connection goes on."""
    content = reply.content(target)
    if reply.fault == "garbage":
        await stream.send_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        return False
    if reply.fault in ("reset_before", "close_before"):
        return _break(stream, reply.fault)
    headers = {"content-type": "application/json", "content-length": str(len(content)), **reply.headers}
    head = h11.Response(status_code=reply.status, headers=[(k.encode(), v.encode()) for k, v in headers.items()])
    head_bytes = wire.send(head) or b""
    if reply.fault == "reset_in_head":
        await stream.send_all(head_bytes[:20])
        return await _break_once_read(stream, reply.fault)
    if reply.fault in ("reset_in_body", "close_in_body"):
        await stream.send_all(head_bytes + content[: len(content) // 2])
        return await _break_once_read(stream, reply.fault)
    body = (wire.send(h11.Data(data=content)) or b"") + (wire.send(h11.EndOfMessage()) or b"")
    await stream.send_all(head_bytes + body)
    return wire.our_state is h11.DONE and wire.their_state is h11.DONE


async def _break_once_read(stream: Stream, fault: FaultName) -> bool:
    """Break when the peer's kernel has what was sent: a reset may otherwise overtake it."""
    unsent = 1
    while unsent:
        await trio.sleep(0.001)
        unsent = _unsent(_under(stream).socket)
    return _break(stream, fault)


def _under(stream: Stream) -> trio.SocketStream:
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream


def _unsent(sock: trio.socket.SocketType) -> int:
    """Return how many bytes the peer has not acknowledged; 0 on systems that do not tell."""
    try:
        import fcntl
        import termios

        count = bytearray(4)
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
        return cast("int", struct.unpack("i", count)[0])
    except (ImportError, AttributeError, OSError):
        return 0


def _break(stream: Stream, fault: FaultName) -> bool:
    if fault.startswith("reset"):
        _under(stream).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _under(stream).socket.close()
    return False


def main() -> None:
    """Serve until killed. `--port` 0 takes a free one; the URL is printed, and written to `--ready-file`.

    `POST /_script` takes `{"replies": [REPLY, …], "then": REPLY}`, a REPLY being the members of `Reply`
    (`then` left out: the default script). `GET /_calls` tells how many calls came and are in flight.
    """
    parser = argparse.ArgumentParser(description="A scripted judge on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    options = parser.parse_args()

    def script(call: Call) -> Reply:
        reply = better_of(call)
        return Reply(text=reply.text, delay_s=options.delay)

    async def serve() -> None:
        judge = FakeJudge(script)
        async with judge.running(options.port):
            if options.ready_file:
                part = options.ready_file.with_suffix(".part")
                part.write_text(judge.url)
                os.replace(part, options.ready_file)
            print(judge.url, flush=True)
            await trio.sleep_forever()

    trio.run(serve)


if __name__ == "__main__":
    main()
