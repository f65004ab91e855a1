"""Connections: kept while they are good, closed in every other case, with and without TLS.

Real sockets on loopback. What a lost connection means for a comparison is in `test_transport_faults`.
"""

import os
import ssl
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio
from tests.support.fake_judge import FakeJudge, Reply, better_of, in_turn
from tests.support.judging_kit import ASK, GOOD, Kept, judge_of, ticket

from genrm_trio.judging import lanes as lanes_module
from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.lanes import Lanes, open_stream

CERTIFICATE = Path(__file__).parent.parent / "data" / "loopback_tls.pem"  # key and certificate, for 127.0.0.1 only


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


async def test_tls_connections_are_made_and_kept() -> None:
    async with FakeJudge(tls=server_tls()).running() as judge:
        transport = Lanes(ssl_context=client_tls())
        asker = judge_of(Endpoint(Address(judge.url), transport))
        for _ in range(3):
            assert (await asker.compare(ASK, ticket())).overall is not None
        assert (judge.accepted, transport.idle, transport.open) == (1, 1, 0)
        await asker.aclose()
        await judge.until(lambda: judge.connections == 0)


async def test_a_reset_under_tls_is_told_apart_too() -> None:
    kept = Kept()
    script = in_turn(Reply(fault="reset_before"), Reply(text=GOOD, fault="reset_in_body"), Reply(text=GOOD))
    async with FakeJudge(script, tls=server_tls()).running() as judge:
        asker = judge_of(Endpoint(Address(judge.url), Lanes(ssl_context=client_tls())), observer=kept, retries=1)
        await asker.compare(ASK, ticket())
        await asker.aclose()
    assert kept.kinds == ["no_reply", "cut"]


async def test_an_unknown_certificate_is_a_judge_failure_at_once() -> None:
    kept = Kept()
    async with FakeJudge(tls=server_tls()).running() as judge:
        asker = judge_of(judge.url, observer=kept)
        with pytest.raises(JudgeError, match="CERTIFICATE_VERIFY_FAILED"):
            await asker.compare(ASK, ticket())
        await asker.aclose()
    assert kept.kinds == ["tls"]


def open_files() -> int:
    """How many descriptors this process has open; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def silent_listener() -> tuple[trio.SocketListener, int]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return listener, listener.socket.getsockname()[1]


async def test_a_handshake_that_hangs_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "CONNECT_TIMEOUT_S", 0.05)
    listener, port = await silent_listener()
    request = httpx2.Request("POST", f"https://127.0.0.1:{port}/")
    transport = Lanes(ssl_context=client_tls())
    async with listener:
        with pytest.raises(httpx2.ConnectTimeout, match="TLS"):
            await transport.handle_async_request(request)
    assert (transport.open, transport.idle) == (0, 0)


async def test_a_handshake_that_is_cancelled_leaves_no_socket() -> None:
    before = open_files()
    listener, port = await silent_listener()
    request = httpx2.Request("POST", f"https://127.0.0.1:{port}/")
    transport = Lanes(ssl_context=client_tls())
    async with listener:
        accepted = []
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.handle_async_request, request)
                stream = await listener.accept()
                accepted.append(stream)
                assert await stream.receive_some() != b""
                nursery.cancel_scope.cancel()
            assert await stream.receive_some() == b"", "the client closed"
            await stream.aclose()
    assert transport.open == 0
    assert open_files() <= before + 1


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    close = Reply(text=GOOD, headers={"Connection": "close"})
    kept = Kept()
    async with FakeJudge(lambda _call: close).running() as judge:
        asker = judge_of(judge.url, observer=kept)
        for _ in range(3):
            await asker.compare(ASK, ticket())
        assert judge.accepted == 3
        await asker.aclose()
    assert kept.faults == []
    judge = FakeJudge()
    transport = Lanes()
    async with judge.running():
        asker = judge_of(Endpoint(Address(judge.url), transport), observer=kept)
        await asker.compare(ASK, ticket())
    assert transport.idle == 1
    async with judge.running():  # a restarted judge: the idle connection is dead, and found so before it is used
        await asker.compare(ASK, ticket())
        await asker.aclose()
    assert kept.faults == []


def told(status: bytes, body: bytes, chunked: bool) -> bytes:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, framing, sent)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("status", [b"200 OK", b"503 Busy"])
async def test_what_comes_behind_a_reply_is_never_taken_for_the_next_one(status: bytes, chunked: bool) -> None:
    """A proxy that gave up too early passes the late reply on: behind its own at once, or when the next call is out."""
    accepted = 0

    async def speak(stream: trio.SocketStream) -> None:
        nonlocal accepted
        accepted += 1
        mine = b"%d" % accepted
        first = told(status, mine, chunked)
        await stream.receive_some()
        await stream.send_all(first + told(b"200 OK", b"of another call", chunked) if status == b"200 OK" else first)
        try:
            await stream.receive_some()
            await stream.send_all(told(b"200 OK", b"of another call", chunked))
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        endpoint = Endpoint(Address(url))
        replies = [(await endpoint.post("/", b"{}", limit=1000)).body for _ in range(3)]
        await endpoint.aclose()
        nursery.cancel_scope.cancel()
    assert replies == [b"1", b"2", b"3"]


async def test_connections_idle_for_too_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "KEEPALIVE_S", 0.0)
    async with FakeJudge().running() as judge:
        transport = Lanes()
        asker = judge_of(Endpoint(Address(judge.url), transport))
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(asker.compare, ASK, ticket())
        await asker.compare(ASK, ticket())
        await judge.until(lambda: judge.connections <= 1)
        await asker.aclose()


async def test_as_many_connections_as_calls_in_flight_and_no_more() -> None:
    hold = trio.Event()
    async with FakeJudge(lambda _call: Reply(text=GOOD, hold=hold)).running() as judge:
        transport = Lanes()
        asker = judge_of(Endpoint(Address(judge.url), transport))
        place = ticket(limit=5)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(asker.compare, ASK, place)
            await judge.until(lambda: judge.in_flight == 5)
            assert transport.open == 5
            hold.set()
        assert (judge.most_in_flight, judge.accepted) == (5, 5)
        await asker.aclose()
        await judge.until(lambda: judge.connections == 0)


async def test_closing_with_a_call_in_flight_lets_it_end() -> None:
    hold = trio.Event()
    async with FakeJudge(lambda _call: Reply(text=GOOD, hold=hold)).running() as judge:
        asker = judge_of(judge.url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.compare, ASK, ticket())
            await judge.until(lambda: judge.in_flight == 1)
            await asker.aclose()
            hold.set()
        await judge.until(lambda: judge.connections == 0)


async def test_the_kernel_probes_a_silent_peer() -> None:
    import socket

    async with FakeJudge(better_of).running() as judge:
        stream = await open_stream("127.0.0.1", judge.port)
        assert isinstance(stream, trio.SocketStream)
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await stream.aclose()
