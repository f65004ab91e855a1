"""A judge's heads and chunks: bounded, read a little at a time, and never refused when they are a judge's."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, repeat

import h11
import httpx2
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fed import Fed
from tests.support.judging_kit import ASK, Kept, judge_of, ticket

from genrm_trio.judging import framing as framing_module
from genrm_trio.judging.framing import CHUNK_LINE_BYTES, FRAMED_BYTES, PLAIN_BYTES, Framing, TooMuchFraming
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.lanes import CHUNKS_A_TURN, Lanes

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n"

COSTLY: dict[str, tuple[bytes, bytes]] = {
    "tiny chunks": (CHUNKED, b"1\r\n \r\n" * 1000),
    "long sizes of tiny chunks": (CHUNKED, b"00000000000000000001\r\n \r\n" * 200),
    "extensions of tiny chunks": (CHUNKED, (b"1;" + b"a" * 500 + b"\r\n \r\n") * 20),
    "one extension": (CHUNKED + b"1;", b" " * 10_000),
    "one size": (CHUNKED, b"0" * 10_000),
    "a bad line behind spaces": (CHUNKED + b"1;" + b" " * 90_000 + b"\nX\r\n", b" "),
    "trailers": (CHUNKED + b"0\r\n", b"a:\r\n" * 1000),
    "a long trailer": (CHUNKED + b"0\r\na:", b"b" * 10_000),
    "header fields": (HEAD, b"a:\r\n" * 1000),
    "a long header field": (HEAD + b"a:", b"b" * 10_000),
    "interim replies": (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "interim replies of another version": (b"HTTP/1.2 100 C\r\n\r\n", b"HTTP/2.0 100 C\r\n\r\n" * 100),
    "interim replies first": (b"HTTP/1.0 199 x\n\n" * 20 + CHUNKED, b"1\r\n \r\n" * 1000),
    "blank lines": (b"", b"\r\n" * 1000),
    "no line at all": (b"H", b"T" * 10_000),
}
"""By what it is: how it begins, and what then is repeated for ever."""
NEVER_PARSED = {"one extension", "one size", "a bad line behind spaces"}


@asynccontextmanager
async def saying(say: Callable[[], object]) -> AsyncIterator[str]:
    """A judge that answers each request with what `say` gives, part by part; its address."""

    async def speak(stream: trio.SocketStream) -> None:
        try:
            await stream.receive_some()
            for part in say():  # type: ignore[attr-defined]  # an iterable of bytes
                await stream.send_all(part)
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", COSTLY)
async def test_what_costs_much_ends_the_call_and_is_read_a_little_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing_module, "FRAMING_BYTES", 50_000)
    fed, kept = Fed(monkeypatch, h11.CLIENT), Kept()
    start, again = COSTLY[name]
    async with saying(lambda: chain([start], repeat(again))) as url, trio.open_nursery() as nursery:
        nursery.start_soon(fed.watch)
        asker = judge_of(url, observer=kept, retries=0)
        with trio.fail_after(60), pytest.raises(JudgeError):
            await asker.compare(ASK, ticket())
        await asker.aclose()
        nursery.cancel_scope.cancel()
    assert set(kept.kinds) <= {"too_large", "protocol"}
    assert len(kept.kinds) == 1
    # Twice: another task may have a turn at the end of one round of all tasks, and one at the start of the next.
    assert fed.worst <= FRAMED_BYTES * 2
    assert (fed.worst == 0) == (name in NEVER_PARSED)
    assert fed.most_events <= (CHUNKS_A_TURN + FRAMED_BYTES // len(b"HTTP/1.0 199 x\n\n")) * 2


@pytest.mark.parametrize(
    "head", [HEAD + b"Content-Length: 1000000\r\n\r\n", b"HTTP/1.0 200 OK\nx: transfer-encoding:\n\n"]
)
async def test_a_plain_body_is_read_in_large_parts_whatever_is_in_it(head: bytes) -> None:
    body = (b"\n" * 3000 + b"0\r\n\r\n" + b"1;" + b" " * 6000).ljust(1_000_000, b"\n")
    sizes = []
    async with saying(lambda: [head + body]) as url:
        transport = Lanes()
        response = await transport.handle_async_request(httpx2.Request("POST", url))
        received = b""
        async for part in response.aiter_raw():
            sizes.append(len(part))
            received += part
        await response.aclose()
        await transport.aclose()
    assert received == body
    assert max(sizes) > FRAMED_BYTES


def fed(framing: Framing, data: bytes) -> Framing:
    framing.feed(data)
    return framing


def fed_in_parts(framing: Framing, data: bytes, sizes: st.DataObject) -> None:
    at = 0
    while at < len(data):
        step = sizes.draw(st.integers(1, framing.most))
        framing.feed(data[at : at + step])
        at += step


@given(
    interim=st.lists(st.sampled_from([100, 102, 103]), max_size=2),
    parts=st.lists(st.binary(min_size=1, max_size=3000), max_size=8),
    extension=st.sampled_from([b"", b";a", b";a=b" + b" " * 500]),
    trailers=st.sampled_from([b"", b"a: b\r\n"]),
    sizes=st.data(),
)
def test_what_the_parser_reads_is_never_refused(
    interim: list[int], parts: list[bytes], extension: bytes, trailers: bytes, sizes: st.DataObject
) -> None:
    heads = b"".join(b"HTTP/1.1 %d x\r\na: b\r\n\r\n" % status for status in interim)
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    framing = Framing()
    fed_in_parts(framing, heads + CHUNKED + chunks + b"0\r\n" + trailers + b"\r\n", sizes)
    assert framing.most == FRAMED_BYTES
    assert [framing.ended, fed(framing, b"\n").ended] == [True, False]


KNOWN_ENDS = {
    "a length": HEAD + b"A: b\r\nContent-Length: 3\r\n\r\nabc",
    "the same length twice": HEAD + b"content-length:3 \r\ncontent-length: 3\r\n\r\nabc",
    "no body": HEAD + b"Content-Length: 0\r\n\r\n",
    "a status without a body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "behind an interim reply": b"HTTP/1.1 103 Hints\r\n\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc",
    "chunks": CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    "chunks and trailers": CHUNKED + b"3\r\nabc\r\n0\r\na: b\r\nc: d\r\n\r\n",
}
UNKNOWN_ENDS = {
    "no length": HEAD + b"\r\nabc",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a folded length": HEAD + b"Content-Length: 3\r\n 4\r\n\r\nabc",
    "a length of another field": HEAD + b"X-Content-Length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("reply", KNOWN_ENDS.values(), ids=KNOWN_ENDS)
@given(sizes=st.data())
def test_the_end_of_a_reply_is_seen_only_there(reply: bytes, sizes: st.DataObject) -> None:
    framing = Framing()
    fed_in_parts(framing, reply[:-1], sizes)
    assert [framing.ended, fed(framing, reply[-1:]).ended, fed(framing, b"H").ended] == [False, True, False]


@pytest.mark.parametrize("reply", [*UNKNOWN_ENDS.values(), *(reply + b"HTTP" for reply in KNOWN_ENDS.values())])
@given(sizes=st.data())
def test_an_end_that_is_not_known_or_not_the_last_is_none(reply: bytes, sizes: st.DataObject) -> None:
    framing = Framing()
    fed_in_parts(framing, reply, sizes)
    assert not framing.ended


@given(parts=st.lists(st.binary(min_size=1, max_size=50), max_size=5), size=st.integers(1, 3000), sizes=st.data())
def test_no_line_is_longer_than_its_bound_however_it_comes(parts: list[bytes], size: int, sizes: st.DataObject) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    line = b"1;" + b" " * size + b"\r\n"
    framing = Framing()
    fed_in_parts(framing, CHUNKED + chunks, sizes)
    if len(line) <= CHUNK_LINE_BYTES:
        fed_in_parts(framing, line, sizes)
    else:
        with pytest.raises(TooMuchFraming, match="1024"):
            fed_in_parts(framing, line, sizes)


def test_a_switch_of_protocols_is_an_end_of_heads() -> None:
    framing = Framing()
    framing.feed(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    assert framing.most == PLAIN_BYTES
