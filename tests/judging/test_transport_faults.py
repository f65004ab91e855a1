"""Every fault of the network, on real sockets of this machine: how each is classed, bounded and worded.

Real time, so times are short; nothing leaves loopback.
"""

import errno
import gzip
import json
import os
import socket
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.support.fake_judge import FakeJudge, FaultName, Reply, answer, better_of, in_turn, verdict_text
from tests.support.judging_kit import ASK, GOOD, Kept, ask, judge_of, ticket
from tests.support.unusable import RESPONSES_UNUSABLE

from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.judge import Answered, JudgeError
from genrm_trio.judging.lanes import Lanes, open_stream

GOOD_REPLY = Reply(text=GOOD)
SOON = {"retry_sleep_s": 0.001}


async def compare(judge: FakeJudge, kept: Kept | None = None, **rules: Any) -> Answered:
    asker = judge_of(judge.url, observer=kept, **{**SOON, **rules})
    try:
        with trio.fail_after(20):
            return await asker.compare(ASK, ticket())
    finally:
        await asker.aclose()


async def fails(judge: FakeJudge, kept: Kept | None = None, **rules: Any) -> str:
    with pytest.raises(JudgeError) as caught:
        await compare(judge, kept, **rules)
    return caught.value.text


async def test_what_goes_over_the_wire() -> None:
    async with FakeJudge().running() as judge:
        asker = judge_of(Endpoint(Address(judge.url + "/v1/", api_key="sk-secret", model="genrm")))
        question = ask("one\ud800", "two", turns=[("system", "be fair"), ("user", "2+2?")], principle="be kind")
        answered = await asker.compare(question, ticket())
        await asker.aclose()
    assert answered.usage is not None
    (call,) = judge.calls
    assert (call.method, call.target) == ("POST", "/v1/responses")
    assert call.headers["authorization"] == "Bearer sk-secret"
    assert call.headers["content-type"] == "application/json"
    assert "cookie" not in call.headers
    assert call.body == {
        "input": [
            {"role": "system", "content": "be fair", "type": "message"},
            {"role": "user", "content": "2+2?", "type": "message"},
        ],
        "max_output_tokens": 64,
        "temperature": 0.6,
        "top_p": 0.95,
        "model": "genrm",
        "metadata": {"response_1": "one\ufffd", "response_2": "two", "principle": "be kind"},
    }


async def test_connections_are_kept_and_no_cookie_comes_back() -> None:
    reply = Reply(text=GOOD, headers={"Set-Cookie": "session=abc"})
    async with FakeJudge(lambda _call: reply).running() as judge:
        asker = judge_of(judge.url)
        for _ in range(5):
            await asker.compare(ASK, ticket())
        assert judge.accepted == 1
        assert all("cookie" not in call.headers for call in judge.calls)
        await asker.aclose()
        await judge.until(lambda: judge.connections == 0)


# --- free retries: they use no budget


async def test_refused_until_the_judge_is_there() -> None:
    judge, kept = FakeJudge(), Kept()
    async with judge.running():
        pass  # its port is known, and closed now
    got: list[Answered] = []
    async with trio.open_nursery() as nursery:

        async def late() -> None:
            got.append(await compare(judge, kept, retries=0))
            nursery.cancel_scope.cancel()

        nursery.start_soon(late)
        await kept.until(lambda: bool(kept.faults))
        await nursery.start(judge.serve, judge.port)
    assert got[0].overall is not None
    assert set(kept.kinds) == {"refused"}


async def test_refused_until_the_timeout() -> None:
    judge = FakeJudge()
    async with judge.running():
        pass
    text = await fails(judge, timeout_s=0.7)
    assert "TimeoutError: no complete reply within 0.7 s; last: ConnectError" in text
    assert "deadline=0.7s" in text


@pytest.mark.parametrize("fault", ["reset_before", "close_before"])
async def test_lost_before_the_first_byte(fault: FaultName) -> None:
    kept = Kept()
    async with FakeJudge(in_turn(Reply(fault=fault), GOOD_REPLY)).running() as judge:
        assert (await compare(judge, kept, retries=0)).overall is not None
    assert kept.kinds == ["no_reply"]


async def test_a_name_that_does_not_resolve() -> None:
    class NoNames(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *_args: Any, **_named: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async def getnameinfo(self, *_args: Any) -> Any:
            raise AssertionError("not asked")

    trio.socket.set_custom_hostname_resolver(NoNames())
    kept = Kept()
    judge = judge_of("http://judge.invalid:80", observer=kept, timeout_s=0.7)
    with pytest.raises(JudgeError, match="Name or service not known"):
        await judge.compare(ASK, ticket())
    assert set(kept.kinds) == {"dns", "timeout"}


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EMFILE])
async def test_unreachable(number: int) -> None:
    left = [OSError(number, os.strerror(number))]

    async def connect(host: str, port: int) -> trio.abc.Stream:
        if left:
            raise left.pop()
        return await open_stream(host, port)

    kept = Kept()
    async with FakeJudge().running() as judge:
        asker = judge_of(Endpoint(Address(judge.url), Lanes(connect=connect)), observer=kept, retries=0)
        assert (await asker.compare(ASK, ticket())).overall is not None
        await asker.aclose()
    assert kept.kinds == ["unreachable"]


async def test_a_connection_that_hangs_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genrm_trio.judging.lanes.CONNECT_TIMEOUT_S", 0.05)

    async def connect(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    kept = Kept()
    asker = judge_of(Endpoint(Address("http://127.0.0.1:1"), Lanes(connect=connect)), observer=kept, timeout_s=0.3)
    with pytest.raises(JudgeError, match="ConnectTimeout"):
        await asker.compare(ASK, ticket())
    assert set(kept.kinds) == {"unreachable", "timeout"}


# --- the budget's faults


@pytest.mark.parametrize("fault", ["reset_in_head", "reset_in_body", "close_in_body"])
async def test_lost_within_the_reply_uses_the_budget(fault: FaultName) -> None:
    kept = Kept()
    reply = Reply(text=GOOD, fault=fault)
    async with FakeJudge(in_turn(reply, reply, reply, GOOD_REPLY)).running() as judge:
        assert (await compare(judge, kept)).attempts == 4
    assert kept.kinds == ["cut"] * 3
    async with FakeJudge(lambda _call: reply).running() as judge:
        assert "ReplyCut" in await fails(judge)
        assert len(judge.calls) == 4


async def test_silence_ends_with_the_timeout() -> None:
    async with FakeJudge(lambda _call: Reply(fault="silence")).running() as judge:
        assert "TimeoutError" in await fails(judge, timeout_s=0.2)
        assert len(judge.calls) == 1
        await judge.until(lambda: judge.in_flight == 0 and judge.connections == 0)


async def test_a_slow_body_ends_with_the_timeout_too() -> None:
    hold = trio.Event()
    async with FakeJudge(lambda _call: Reply(text=GOOD, hold=hold)).running() as judge:
        assert "TimeoutError" in await fails(judge, timeout_s=0.2)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_storm_without_retry_after(status: int) -> None:
    async with FakeJudge(lambda _call: Reply(status, body={"detail": "busy"})).running() as judge:
        assert f"status={status}" in await fails(judge)
        assert len(judge.calls) == 4


@pytest.mark.parametrize("status", [429, 503])
async def test_a_storm_with_retry_after(status: int) -> None:
    told = Reply(status, body={}, headers={"Retry-After": "0"})
    async with FakeJudge(in_turn(told, told, GOOD_REPLY)).running() as judge:
        assert (await compare(judge, retries=0)).attempts == 1


async def test_a_storm_with_retry_after_ends_at_the_evaluation_deadline() -> None:
    async with FakeJudge(lambda _call: Reply(429, body={}, headers={"Retry-After": "30"})).running() as judge:
        asker = judge_of(judge.url)
        with trio.fail_after(10), pytest.raises(JudgeError, match="evaluation deadline"):
            await asker.compare(ASK, ticket())
        assert len(judge.calls) == 1
        await asker.aclose()


# --- not retried


async def test_bytes_that_are_not_http() -> None:
    kept = Kept()
    async with FakeJudge(lambda _call: Reply(fault="garbage")).running() as judge:
        assert "RemoteProtocolError" in await fails(judge, kept)
        assert len(judge.calls) == 1
    assert kept.kinds == ["protocol"]


async def test_tls_to_a_server_without() -> None:
    kept = Kept()
    async with FakeJudge().running() as judge:
        asker = judge_of(judge.url.replace("http:", "https:"), observer=kept, timeout_s=5.0)
        with pytest.raises(JudgeError, match="ConnectError"):
            await asker.compare(ASK, ticket())
        await asker.aclose()
    assert kept.kinds == ["tls"]


async def test_a_reply_beyond_the_bound() -> None:
    kept = Kept()
    async with FakeJudge(lambda _call: Reply(text="x" * 300_000)).running() as judge:
        assert "max_reply_bytes = 200000" in await fails(judge, kept, max_reply_bytes=200_000)
        assert len(judge.calls) == 1
        await judge.until(lambda: judge.connections == 0)
    assert kept.kinds == ["too_large"]


async def test_a_compressed_bomb_is_bounded_too() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    reply = Reply(body=bomb, headers={"Content-Encoding": "gzip"})
    async with FakeJudge(lambda _call: reply).running() as judge:
        assert "max_reply_bytes" in await fails(judge, max_reply_bytes=1_000_000)
    async with FakeJudge(lambda _call: Reply(body=b"no gzip", headers={"Content-Encoding": "gzip"})).running() as judge:
        assert "DecodingError" in await fails(judge)


async def test_one_compression_is_undone_although_nobody_asked_for_it() -> None:
    body = gzip.compress(json.dumps(answer(GOOD)).encode())
    for coding in ("gzip", "GZIP", "x-gzip"):
        reply = Reply(body=body, headers={"Content-Encoding": coding})
        async with FakeJudge(lambda _call, reply=reply: reply).running() as judge:  # type: ignore[misc]
            assert (await compare(judge)).overall is not None


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip, gzip", zlib.compress(zlib.compress(b"\x00\x00\x00\xff\xff" * 1000))),
        ("gzip", gzip.compress(b"{" * 100)[:-9]),
        ("br", b"\x00"),
        ("deflate", b""),
    ],
)
async def test_any_other_coding_is_a_judge_failure(coding: str, body: bytes) -> None:
    kept = Kept()
    reply = Reply(body=body, headers={"Content-Encoding": coding})
    async with FakeJudge(lambda _call: reply).running() as judge:
        assert "DecodingError" in await fails(judge, kept)
        assert len(judge.calls) == 1
    assert kept.kinds == ["not_json"]


async def test_of_a_compressed_error_its_words_are_read() -> None:
    said = gzip.compress(b'{"detail": "the model is not here"}' + b" " * 5_000_000)
    for body, words in ((said, "the model is not here"), (b"no gzip", "status=404")):
        reply = Reply(404, body=body, headers={"Content-Encoding": "gzip"})
        async with FakeJudge(lambda _call, reply=reply: reply).running() as judge:  # type: ignore[misc]
            assert words in await fails(judge)


async def test_a_huge_error_body_is_read_in_part() -> None:
    async with FakeJudge(lambda _call: Reply(400, body=b"e" * 5_000_000)).running() as judge:
        text = await fails(judge)
        assert text.count("e") < 1200
        assert "status=400" in text


async def test_an_errors_body_that_is_cut_is_still_that_error() -> None:
    reply = Reply(422, body={"detail": "no" * 100}, fault="close_in_body")
    async with FakeJudge(lambda _call: reply).running() as judge:
        assert "status=422" in await fails(judge)
        assert len(judge.calls) == 1


async def test_redirects_are_not_followed() -> None:
    reply = Reply(307, body={}, headers={"Location": "/elsewhere"})
    async with FakeJudge(lambda _call: reply).running() as judge:
        assert "status=307" in await fails(judge)
        assert len(judge.calls) == 1


# --- texts


async def test_no_text_holds_the_key() -> None:
    key = "sk-super/secret+key"
    kept = Kept()

    def echo(call: Any) -> Reply:
        sent = call.headers["authorization"]
        told = {
            "error": {"message": f"bad key {sent} {sent.replace('/', '%2F').replace('+', '%2B')}" + "x" * 990 + key}
        }
        return Reply(401, body=told)

    async with FakeJudge(echo).running() as judge:
        place = Endpoint(Address(judge.url, api_key=key))
        asker = judge_of(place, observer=kept)
        with pytest.raises(JudgeError) as caught:
            await asker.compare(ASK, ticket())
        await asker.aclose()
    for text in (caught.value.text, kept.faults[0].text, repr(place), repr(Address("http://x", api_key=key))):
        assert "secret" not in text
    assert "***" in caught.value.text


async def test_an_error_text_is_plain_bounded_unicode() -> None:
    body = b'{"detail": "\xff\xfe \\ud800 \x00 ' + b"y" * 3000 + b'"}'
    async with FakeJudge(lambda _call: Reply(500, body=body)).running() as judge:
        text = await fails(judge)
    text.encode("utf-8")
    assert "\ufffd" in text
    assert 900 < text.count("y") <= 1000


# --- large replies do not stall the loop


async def longest_stall(judge: FakeJudge) -> float:
    """Make a comparison; return the longest that the loop kept a task waiting meanwhile, in seconds."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = trio.current_time()
            await trio.sleep(0.005)
            longest = max(longest, trio.current_time() - before)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await compare(judge, retries=0)
        nursery.cancel_scope.cancel()
    return longest


async def test_a_megabyte_of_braces_leaves_the_loop_free() -> None:
    async with FakeJudge(lambda _call: Reply(text="{" * 1_000_000 + GOOD)).running() as judge:
        stalls = [await longest_stall(judge) for _ in range(3)]
    assert min(stalls) < 0.1, "the best of three: other processes may have the machine"


@pytest.mark.parametrize("more", [0, 1])
async def test_a_reply_of_many_small_values_is_not_decoded(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genrm_trio.judging.transport.MOST_VALUES", 1000)
    kept, padding = Kept(), '\\"[{'
    body = b'{"a":[%b"%b"]}' % (b"[]," * (996 + more), padding.encode() * 1000)
    async with FakeJudge(lambda _call: Reply(body=body)).running() as judge:
        text = await fails(judge, kept, retries=0)
    assert kept.kinds == [["no_text"], ["too_large"]][more]
    assert ("more than 1000 texts, objects and arrays" in text) == bool(more)


# --- what is said inside a 200


CASES: list[tuple[Any, str]] = [
    ({"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}, "rate_limited"),
    ({"error": {"message": "m", "code": 502}}, "server_error"),
    ({"error": {"message": "m", "code": "503"}}, "unavailable"),
    ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "bad_request"),
    ({"error": {"message": "m", "type": "invalid_request_error", "code": None}}, "bad_request"),
    ({"error": {"message": "m", "code": "context_length_exceeded"}}, "context_length"),
    ({"error": {"message": "m", "type": "authentication_error"}}, "unauthorized"),
    ({"error": {"message": "m", "type": "overloaded_error"}}, "unavailable"),
    ({"error": "something is off"}, "error_inside"),
    ({"error": {"code": True, "type": 7}}, "error_inside"),
    (answer(GOOD, status="failed", error={"code": "server_error", "message": "m"}), "server_error"),
    (answer(GOOD, status="in_progress"), "incomplete"),
    (answer(GOOD, status="cancelled"), "incomplete"),
    (answer(GOOD, output=None), "no_text"),
    *((body, kind) for kind, body in RESPONSES_UNUSABLE.values()),
]


@pytest.mark.parametrize(("body", "kind"), CASES)
async def test_what_a_200_may_hold_instead_of_an_answer(body: Any, kind: str) -> None:
    kept = Kept()
    async with FakeJudge(lambda _call: Reply(body=body)).running() as judge:
        await fails(judge, kept)
        permanent = kept.faults[0].action == "permanent"
        assert len(judge.calls) == (1 if permanent else 4)
    assert set(kept.kinds) == {kind}
    assert [fault.first for fault in kept.faults] == [True] + [False] * (len(kept.faults) - 1)


@pytest.mark.parametrize(
    "body",
    [
        answer(GOOD, error=None),
        answer(GOOD, status=None),
        answer(GOOD, status=""),
        {"output": answer(GOOD)["output"]},
        answer(GOOD, extra={"logprobs": [1, 2]}),
    ],
)
async def test_what_is_usable_all_the_same(body: Any) -> None:
    async with FakeJudge(lambda _call: Reply(body=body)).running() as judge:
        assert (await compare(judge, retries=0)).overall is not None


async def test_json_that_only_pythons_own_reader_takes() -> None:
    import json

    text = json.dumps(answer(GOOD, note="\ud800", logprob=float("-inf"), big=10**400)).encode()
    raw = text.replace(b"Both were read", b"Both were\xff read")
    async with FakeJudge(lambda _call: Reply(body=raw)).running() as judge:
        assert "\ufffd" in (await compare(judge, retries=0)).text


async def test_a_context_length_400_is_named() -> None:
    kept = Kept()
    body = {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}
    async with FakeJudge(lambda _call: Reply(400, body=body)).running() as judge:
        assert "maximum context length" in await fails(judge, kept)
    assert kept.kinds == ["context_length"]


# --- cancellation


async def storm(judge: FakeJudge, cohorts: int, limit: int, rounds: int) -> None:
    """Cancel many cohorts while the pool is full, again and again; then the next cohort is judged at once."""
    from genrm_trio.judging.slots import Slots

    slots, transport = Slots(limit), Lanes()
    asker = judge_of(Endpoint(Address(judge.url), transport))
    judge.script = lambda _call: Reply(fault="silence")

    async def cohort() -> None:
        place = slots.ticket()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(asker.compare, ASK, place)

    for n in range(rounds):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(cohorts):
                    nursery.start_soon(cohort)
                await stage(judge, limit, n)
                scope.cancel()
        assert (slots.in_use, slots.waiting, transport.open) == (0, 0, 0)
    judge.script = better_of
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(limit):
                nursery.start_soon(asker.compare, ASK, slots.ticket())
    assert (slots.in_use, transport.open) == (0, 0)
    await asker.aclose()
    await judge.until(lambda: judge.connections == 0 and judge.in_flight == 0)


async def stage(judge: FakeJudge, limit: int, n: int) -> None:
    """Wait to a point that differs from round to round: connecting, sending, or all in flight."""
    if n % 3 == 0:
        await judge.until(lambda: judge.in_flight == limit)
    else:
        for _ in range(n):
            await trio.lowlevel.checkpoint()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def test_cancelling_200_cohorts_with_the_pool_full_leaks_nothing() -> None:
    before = open_files()
    async with FakeJudge().running() as judge:
        await storm(judge, cohorts=200, limit=32, rounds=50)
    assert open_files() <= before + 1


Place = Callable[[], Any]


async def test_cancelled_at_every_checkpoint_of_a_call() -> None:
    """The n-th checkpoint for every n: the connection is closed or kept, the slot is back, the next call works."""
    from genrm_trio.judging.slots import Slots

    slots, transport = Slots(1), Lanes()
    async with FakeJudge().running() as judge:
        asker = judge_of(Endpoint(Address(judge.url), transport))
        finished = False
        n = 0
        while not finished:
            n += 1
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, n, scope)
                    await asker.compare(ASK, slots.ticket())
                    finished = True
                    scope.cancel()
            assert (slots.in_use, transport.open) == (0, 0), n
            if n % 2:
                await asker.aclose()
                transport._closed = False  # the next one connects anew
            assert n < 500
        assert n > 5
        assert (await asker.compare(ASK, slots.ticket())).overall is not None
        await asker.aclose()
        await judge.until(lambda: judge.connections == 0)


async def cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_verdicts_of_both_orders_come_back_as_asked() -> None:
    async with FakeJudge(lambda _call: Reply(text=verdict_text(1, 5, 6))).running() as judge:
        answered = await compare(judge)
    assert answered.overall is not None
    assert (answered.overall.score_1, answered.overall.score_2) == (1.0, 5.0), "un-flipping is the caller's"
