"""What tests of judges share: asks, judges over a scripted transport in virtual time, and an observer that keeps.

Real sockets are in `fake_judge`; here a call never leaves the process.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import trio
from tests.support.fake_judge import answer, verdict_text

from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.judge import Ask, CallSeen, FaultSeen
from genrm_trio.judging.panel import Panel
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.slots import Slots, Ticket
from genrm_trio.judging.text import Turn
from genrm_trio.judging.transport import Dialect, HttpJudge, TransportRules
from genrm_trio.judging.verdict import VerdictRules

ASK = Ask((Turn("user", "2+2?"),), "four", "five", None, None, (0, 1), 0)
GOOD = verdict_text(4.0, 2.0, 2.0)
PARAMS: Mapping[str, Any] = {"input": [], "max_output_tokens": 64, "temperature": 0.6, "top_p": 0.95}


@dataclass(frozen=True)
class Step:
    """One reply of a scripted transport: after `after_s` an error, or a status with a body."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    error: httpx2.HTTPError | None = None
    after_s: float = 0.0

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def says(text: str = GOOD, **overlay: Any) -> Step:
    """A step that answers with a text."""
    return Step(body=answer(text, **overlay))


class Scripted(httpx2.AsyncBaseTransport):
    """Replies step by step; the last step repeats. Keeps when each call came, and its body."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.times: list[float] = []
        self.bodies: list[Any] = []
        self.requests: list[httpx2.Request] = []
        self.in_flight = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.times.append(trio.current_time())
        self.requests.append(request)
        self.bodies.append(json.loads(request.content))
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        self.in_flight += 1
        try:
            await trio.sleep(step.after_s)
        finally:
            self.in_flight -= 1
        if step.error is not None:
            raise step.error
        headers = [(name.encode(), value.encode()) for name, value in step.headers.items()]
        return httpx2.Response(step.status, headers=headers, stream=_Bytes(step.content))

    @property
    def gaps(self) -> list[float]:
        """The seconds between calls."""
        return [round(b - a, 6) for a, b in zip(self.times, self.times[1:], strict=False)]


class _Bytes(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class Kept:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[CallSeen] = []
        self.faults: list[FaultSeen] = []
        self._changed = trio.Event()

    def on_call(self, call: CallSeen) -> None:
        self.calls.append(call)

    def on_fault(self, fault: FaultSeen) -> None:
        self.faults.append(fault)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the faults holds."""
        while not condition():
            await self._changed.wait()

    @property
    def kinds(self) -> list[str]:
        return [fault.kind for fault in self.faults]


class TopOfRange(random.Random):
    """A generator whose jitter is always the whole range, so that sleeps can be told."""

    def uniform(self, a: float, b: float) -> float:
        return b


def endpoints(*transports: httpx2.AsyncBaseTransport, api_key: str | None = None) -> list[Endpoint]:
    """One endpoint for each transport."""
    return [
        Endpoint(Address(f"http://judge-{n}:8000", api_key=api_key), transport)
        for n, transport in enumerate(transports)
    ]


def judge_of(
    *where: Endpoint | httpx2.AsyncBaseTransport | str,
    dialect: Dialect | None = None,
    verdicts: VerdictRules | None = None,
    observer: Kept | None = None,
    wall: Callable[[], float] = lambda: 0.0,
    rng: random.Random | None = None,
    **rules: Any,
) -> HttpJudge:
    """A judge over endpoints, transports or base URLs."""
    panel = [_endpoint(n, place) for n, place in enumerate(where)]
    return HttpJudge(
        dialect or Responses(PARAMS),
        Panel(panel),
        verdicts or VerdictRules(),
        TransportRules(**rules),
        rng=rng or TopOfRange(0),
        observer=observer,
        wall=wall,
    )


def _endpoint(n: int, place: Endpoint | httpx2.AsyncBaseTransport | str) -> Endpoint:
    if isinstance(place, str):
        return Endpoint(Address(place))
    if isinstance(place, httpx2.AsyncBaseTransport):
        return endpoints(*[place] * (n + 1))[n]
    return place


def ticket(limit: int = 8, label: str = "cohort") -> Ticket:
    """A ticket of slots of its own."""
    return Slots(limit).ticket(label=label)


def ask(
    response_1: str = "four",
    response_2: str = "five",
    *,
    turns: Sequence[tuple[str, str]] = (("user", "2+2?"),),
    **fields: Any,
) -> Ask:
    """An ask, some fields replaced."""
    values: dict[str, Any] = {"principle": None, "rubric_ids": None, "pair": (0, 1), "judge_index": 0, **fields}
    return Ask(tuple(Turn(*turn) for turn in turns), response_1, response_2, **values)
