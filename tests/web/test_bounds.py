"""Each bound set low on the real process, and hit: what is within it is served, what is beyond it gets an answer.

Every answer can be read, says what the documents say, and leaves a server that serves the next good cohort.
"""

import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import h11
import trio
from tests.support.fake_judge import Call, FakeJudge, better_of
from tests.support.fake_judge import Reply as Verdict
from tests.support.peer import Peer, Reply
from tests.support.server_process import ServerProcess
from tests.web.bodies import as_json, response
from tests.web.test_process import UNREAD, Held, large_bodies, member, process, until_waiting

Hit = Callable[[ServerProcess], Awaitable[None]]

WITHIN_S: Final = 60.0
STALL_S: Final = 2.0
"""Longer than a busy machine keeps an honest client of this test waiting in the middle of a request."""
UNREAD_STALL_S: Final = 1.0
"""Shorter, as the kernel takes the bytes for a client, however busy that is."""
LONG_VERDICT: Final = "quality=5 and a judge that goes on and on"
BOUNDS: Final[dict[str, Any]] = {
    "max_held_members": 6,
    "max_connections": 262,
    "max_request_bytes": 20_000,
    "max_comparisons": 3,
    "judge": {"max_reply_bytes": 4000, "max_concurrency": 2},
    "limits": {
        "refusal_connections": 8,
        "max_header_bytes": 3000,
        "max_header_fields": 20,
        "max_framing_bytes": 4000,
        "max_sessions": 3,
        "max_aggregate_numbers": 40,
        "max_json_values": 300,
        "header_timeout_s": STALL_S,
        "body_stall_s": STALL_S,
        "body_timeout_s": STALL_S + 0.5,
        "write_stall_s": UNREAD_STALL_S,
        "max_log_line": 512,
    },
}


def judge(call: Call) -> Verdict:
    """Say too much about one answer."""
    verdict = better_of(call)
    return Verdict(text=f"{verdict.text}{'.' * 4000}") if LONG_VERDICT in call.raw.decode() else verdict


async def cohort(peer: Peer, group: str, text: str | None = None) -> list[Reply]:
    """All members of a good cohort, and what they are told."""
    replies: list[Reply] = []

    async def one(index: int) -> None:
        body = member(index, group)
        if text is not None:
            body["response"] = response(text=text)
        replies.append(await peer.ask("POST", "/verify", body))

    async with trio.open_nursery() as nursery:
        for index in range(2):
            nursery.start_soon(one, index)
    return replies


@asynccontextmanager
async def others(server: ServerProcess) -> AsyncIterator[Peer]:
    """A client of its own."""
    peer = Peer(server.url)
    try:
        yield peer
    finally:
        peer.close()


async def until_connected(server: ServerProcess, count: int) -> None:
    while (await server.metrics())["connections"] != count:
        pass


def check(reply: Reply, status: int, code: str, *texts: str) -> None:
    """It is a refusal of ours, which says when to come again if that helps."""
    assert (reply.status, reply.code) == (status, code), reply
    for text in texts:
        assert text in reply.json["detail"], reply
    assert reply.header("retry-after") == ("1" if code == "too_busy" else None), reply


async def trickle(stream: trio.SocketStream) -> None:
    """Send a byte again and again, before anybody misses one."""
    while True:
        await stream.send_all(b"x")
        await trio.sleep(STALL_S / 20)


async def talked(server: ServerProcess, data: bytes, *, trickles: bool = False) -> Reply:
    """What is answered to bytes that no client of ours would send; the connection ends with it.

    trickles: they go on, byte by byte, until the answer is there.
    """
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target="/", headers=[("host", "t"), ("transfer-encoding", "chunked")]))
    body = bytearray()
    head: h11.Response | None = None
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream, trio.open_nursery() as nursery:
        await stream.send_all(data)
        if trickles:
            nursery.start_soon(trickle, stream)
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert await stream.receive_some() == b"", "the connection ends"
        nursery.cancel_scope.cancel()
    assert head is not None
    headers = tuple((name.decode(), value.decode()) for name, value in head.headers)
    return Reply(head.status_code, headers, bytes(body))


# -- one bound each ------------------------------------------------------------------------------------


async def header_bytes(server: ServerProcess) -> None:
    def head(size: int) -> bytes:
        start, end = b"GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx: ", b"\r\n\r\n"
        return start + b"a" * (size - len(start + end)) + end

    assert (await talked(server, head(3000))).status == 200
    for size in (3001, 5000, 30_000):
        check(await talked(server, head(size)), 431, "invalid_request")


async def header_fields(server: ServerProcess) -> None:
    def lines(count: int) -> dict[str, str]:
        return {f"x{number}": "a" for number in range(count - 2)}  # our client sends two of its own

    assert (await server.peer.ask("GET", "/health", headers=lines(20))).status == 200
    check(await server.peer.ask("GET", "/health", headers=lines(21)), 431, "invalid_request", "20 lines")


async def request_bytes(server: ServerProcess) -> None:
    body = as_json({"verify_responses": []})
    ask = partial(server.peer.ask, "POST", "/aggregate_metrics")
    assert (await ask(body.ljust(20_000))).status == 200
    check(await ask(body.ljust(20_001)), 413, "too_large", "20000 bytes")


async def framing_bytes(server: ServerProcess) -> None:
    body = as_json({"verify_responses": []})
    head = b"POST /aggregate_metrics HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"

    def chunked(extensions: int) -> bytes:
        extended = b"1;" + b"x" * 800 + b"\r\n \r\n"
        return head + b"%x\r\n%s\r\n" % (len(body), body) + extended * extensions + b"0\r\n\r\n"

    assert (await talked(server, chunked(4))).status == 200
    check(await talked(server, chunked(8)), 413, "too_large", "4000 bytes beside its data")


async def json_values(server: ServerProcess) -> None:
    def body(values: int) -> bytes:
        return as_json({"verify_responses": [], "more": [[] for _ in range(values)]})

    assert (await server.peer.ask("POST", "/aggregate_metrics", body(290))).status == 200
    refused = await server.peer.ask("POST", "/aggregate_metrics", body(310))
    check(refused, 413, "too_large", "limits.max_json_values, 300")


async def aggregate_numbers(server: ServerProcess) -> None:
    def body(rows: int) -> bytes:
        return as_json({"verify_responses": [{"_ng_task_index": 1, "reward": 1.0} for _ in range(rows)]})

    assert (await server.peer.ask("POST", "/aggregate_metrics", body(10))).status == 200
    refused = await server.peer.ask("POST", "/aggregate_metrics", body(25))
    check(refused, 413, "too_large", "limits.max_aggregate_numbers, 40")


async def comparisons(server: ServerProcess) -> None:
    def body(answers: int) -> bytes:
        return as_json({"conversation_history": [], "response_objs": [response(text=str(n)) for n in range(answers)]})

    assert (await server.peer.ask("POST", "/compare", body(3))).status == 200
    check(await server.peer.ask("POST", "/compare", body(4)), 422, "invalid_request", "max_comparisons is 3")


async def sessions(server: ServerProcess) -> None:
    async def seed(number: int) -> Reply:
        return await server.peer.ask("POST", f"/ng-rollout/r{number}/seed_session", {})

    async def close(number: int, seeded: Reply) -> None:
        (cookie,) = (f"{name}={value}" for name, value in seeded.cookies.items())
        body = {"resources_session_id": "any", "episode_id": {"rollout_id": f"r{number}", "attempt": 0}}
        closed = await server.peer.ask("POST", f"/ng-rollout/r{number}/close_session", body, {"cookie": cookie})
        assert closed.status == 200

    opened = [await seed(number) for number in range(3)]
    assert [reply.status for reply in opened] == [200] * 3
    check(await seed(3), 503, "too_busy", "too many sessions")
    assert all(reply.status == 200 for reply in await cohort(server.peer, "without sessions"))
    await close(0, opened[0])
    last = await seed(3)
    assert last.status == 200
    for number, seeded in ((1, opened[1]), (2, opened[2]), (3, last)):
        await close(number, seeded)


async def held_members(server: ServerProcess) -> None:
    held = Held(server.peer)
    async with trio.open_nursery() as nursery:
        for group in range(3):
            nursery.start_soon(held.run, member(0, f"held {group}"))
        await until_waiting(server, 3)
        check(await server.peer.ask("POST", "/verify", member(0, "beyond")), 503, "too_busy", "6 of at most 6")
        for group in range(3):
            nursery.start_soon(held.run, member(1, f"held {group}"))
    assert held.replies == [200] * 6, "members of cohorts that exist are served at the bound"


async def open_stream(stack: AsyncExitStack, server: ServerProcess) -> trio.SocketStream:
    return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", server.port))


async def connections(server: ServerProcess) -> None:
    server.peer.close()
    held = Held(server.peer)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(held.run, member(0, "with a sibling"))
        await until_waiting(server, 1)
        idle = [await open_stream(stack, server) for _ in range(260)]
        await until_connected(server, 262)  # and the one on which the metrics are asked for
        sibling = await stack.enter_async_context(others(server))
        while (reply := await sibling.ask("POST", "/verify", member(1, "with a sibling"))).status != 200:
            check(reply, 503, "too_busy", "262 connections")  # none is idle for long enough yet
        assert await idle[0].receive_some() == b"", "it made room"
    assert held.replies == [200]
    server.peer.close()
    await until_connected(server, 1)
    server.peer.close()
    async with AsyncExitStack() as stack:
        for _ in range(262):
            client = await open_stream(stack, server)
            await client.send_all(b"POST /verify HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\nhalf")
        await until_connected(server, 263)  # the one on which the metrics are asked for is beyond
        beyond = await stack.enter_async_context(others(server))
        check(await beyond.ask("POST", "/verify", member(0, "beyond")), 503, "too_busy", "262 connections")
        assert (await beyond.ask("GET", "/readyz")).status == 200, "probes are answered at the bound"
    await until_connected(server, 1)


async def judge_reply_bytes(server: ServerProcess) -> None:
    replies = await cohort(server.peer, "long verdict", LONG_VERDICT)
    assert [(reply.status, reply.json["mask_sample"]) for reply in replies] == [(200, True)] * 2


async def judge_calls(judge: FakeJudge, server: ServerProcess) -> None:
    script, go_on = judge.script, trio.Event()
    judge.script = lambda call: replace(script(call), hold=go_on)
    replies: list[list[Reply]] = []

    async def one(group: str) -> None:
        replies.append(await cohort(server.peer, group))

    async with trio.open_nursery() as nursery:
        for group in range(3):
            nursery.start_soon(one, f"judged {group}")
        await server.until(lambda read: (read["judge_calls_in_flight"], read["judge_calls_waiting"]) == (2, 4))
        await judge.until(lambda: judge.in_flight == 2)
        go_on.set()
    judge.script = script
    assert [reply.json["mask_sample"] for told in replies for reply in told] == [False] * 6, "calls wait for their turn"
    assert judge.most_in_flight == 2


@asynccontextmanager
async def never_reads(server: ServerProcess) -> AsyncIterator[None]:
    """A client that asks for more than all buffers on its way hold, and reads none of it."""
    with trio.socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.connect(("127.0.0.1", server.port))
        await trio.SocketStream(client).send_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n" * UNREAD)
        yield


async def times(server: ServerProcess) -> None:
    """All at once, as each takes its time."""

    async def half_sent(rest: bytes, text: str, trickles: bool) -> None:
        request = b"POST /verify HTTP/1.1\r\nhost" + rest
        check(await talked(server, request, trickles=trickles), 408, "invalid_request", text)

    server.peer.close()
    async with never_reads(server):
        await server.until(lambda read: read["connections"] == 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(half_sent, b"", "head took too long", False)
            nursery.start_soon(half_sent, b": t\r\ncontent-length: 100\r\n\r\nhalf", "body took too long", False)
            nursery.start_soon(half_sent, b": t\r\ncontent-length: 10000\r\n\r\n", "body took too long", True)
        await server.until(lambda read: read["connections"] == 1)


async def log_lines(server: ServerProcess) -> None:
    """The last of all, so that the lines of the others are looked at as well."""
    group = "long " * 200
    await cohort(server.peer, group)
    ended = await server.logged("cohort_ended", lambda lines: lines[-1]["cohort"].startswith("group_id::long long"))
    assert ended[-1]["cut"] == ["cohort"]
    assert max(map(len, server.log.read_text().splitlines())) == 512, "the line has what there is room for"


HITS: Final[dict[str, Hit]] = {
    "limits.max_header_bytes": header_bytes,
    "limits.max_header_fields": header_fields,
    "max_request_bytes": request_bytes,
    "limits.max_framing_bytes": framing_bytes,
    "limits.max_json_values": json_values,
    "limits.max_aggregate_numbers": aggregate_numbers,
    "max_comparisons": comparisons,
    "limits.max_sessions": sessions,
    "max_held_members": held_members,
    "max_connections": connections,
    "judge.max_reply_bytes": judge_reply_bytes,
    "limits.header_timeout_s, limits.body_stall_s, limits.body_timeout_s, limits.write_stall_s": times,
    "limits.max_log_line": log_lines,
}


async def test_every_bound_is_met_with_an_answer_and_the_next_cohort_is_served(tmp_path: Path) -> None:
    asked = FakeJudge(judge)
    hits: dict[str, Hit] = {"judge.max_concurrency": partial(judge_calls, asked), **HITS}
    async with process(tmp_path, asked, **BOUNDS) as server:
        assert all(reply.status == 200 for reply in await cohort(server.peer, "first"))
        for name, hit in hits.items():
            try:
                with trio.fail_after(WITHIN_S):
                    await hit(server)
                    replies = await cohort(server.peer, f"after {name}")
            except BaseException as error:
                error.add_note(f"at the bound {name}")
                raise
            told = [(reply.status, reply.json["mask_sample"]) for reply in replies]
            assert told == [(200, False)] * 2, f"after {name}"
        left = await server.metrics()
        assert [left[name] for name in ("held_members", "open_sessions", "waiting_verifies")] == [0, 0, 0]


async def unread(server: ServerProcess) -> trio.SocketStream:
    """A client whose answer is larger than all buffers on its way, and who does not read it."""
    first, second = large_bodies(2, 8)
    stream = trio.SocketStream(trio.socket.socket())
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await stream.socket.connect(("127.0.0.1", server.port))
    await stream.send_all(b"POST /verify HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n" % len(first) + first)
    assert (await server.peer.ask("POST", "/verify", second)).status == 200
    return stream


async def test_probes_of_a_process_that_drains(tmp_path: Path) -> None:
    async with process(tmp_path, shutdown_grace_s=60.0) as server, others(server) as prober:
        with trio.fail_after(WITHIN_S):
            stream = await unread(server)
            assert (await prober.ask("GET", "/readyz")).status == 200
            server.child.signal(signal.SIGTERM)
            while (ready := await prober.insist("GET", "/readyz")).status == 200:
                pass
            assert (ready.status, ready.json) == (503, {"status": "draining"})
            assert (await prober.insist("GET", "/livez")).status == 200
            await stream.aclose()
            assert await server.child.wait() == 0
