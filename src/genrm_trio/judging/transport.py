"""One comparison over HTTP: the budget, the pauses and the deadlines around a judge's calls (contract 7.5, 14.9).

What a fault means is in the table of `faults`, what a backend says and reads in `responses` and `chat`, who is asked
in `panel`. Here is the only loop. Every wait in it ends: free retries with the call's timeout, told waits before
the evaluation deadline, budgeted retries with the budget.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import httpx2
import trio

from genrm_trio.judging import faults
from genrm_trio.judging.endpoint import HEAD_CHARS, Endpoint, Reply
from genrm_trio.judging.faults import Action, Fault, Kind
from genrm_trio.judging.judge import (
    Answered,
    Ask,
    CallSeen,
    FaultSeen,
    JudgeError,
    Observer,
    Unobserved,
    Usage,
)
from genrm_trio.judging.lenient import decode_json, has_more_values
from genrm_trio.judging.offload import off_loop
from genrm_trio.judging.panel import Panel
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict, VerdictRules, read_rubric, read_verdict

RECONNECT_S: Final = 0.5
"""The pause between free retries of one call."""
RECONNECTS_PER_S: Final = 512
"""Free retries of all calls together: beyond RECONNECT_S times this many waiting calls, each waits longer."""
LONGEST_SLEEP_S: Final = 30.0
"""The cap on a budgeted retry's sleep."""
SHORTEST_TOLD_WAIT_S: Final = 0.5
"""`Retry-After: 0` waits this long, or a storm of them would spin."""
LONGEST_TOLD_WAITS_S: Final = 86400.0
"""All told waits of one comparison together, for a caller without a deadline."""
MOST_VALUES: Final = 262_144
"""Texts, objects and arrays of a reply: a verdict needs a few, and decoding more of them holds every thread up."""
TEXT_CHARS: Final = 1000
"""How much of an error and of a reply an error text carries (contract 7.5)."""


@dataclass(frozen=True, slots=True)
class TransportRules:
    """The settings of the loop: `name` is the judge's in error texts, times are in seconds.

    `timeout_s` bounds one call with its free retries (`judge_request_timeout_s`); `retries` and `retry_sleep_s`
    are `genrm_parse_retries` and `genrm_parse_retry_sleep_s`; `max_reply_bytes` bounds a reply's body.
    """

    name: str = "judge"
    timeout_s: float = 1800.0
    retries: int = 3
    retry_sleep_s: float = 0.2
    max_reply_bytes: int = 16 * 1024 * 1024

    @property
    def attempts(self) -> int:
        """The budget: at least one attempt."""
        return max(1, self.retries + 1)


@dataclass(frozen=True, slots=True)
class Said:
    """One reply, read: `text` when it is usable, else `fault`. `tokens` are input and output, if both were told."""

    text: str = ""
    fault: Fault | None = None
    tokens: tuple[float, float] | None = None
    hit_max: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A request's body, and the optional features that it uses."""

    content: bytes
    features: frozenset[str] = frozenset()


class Dialect(Protocol):
    """What differs between backends. Pure: no clock, no network."""

    @property
    def path(self) -> str:
        """Where to POST, from the base URL on."""
        ...

    def write(self, ask: Ask, endpoint: Endpoint) -> Question:
        """Return the body for an endpoint. Raises JudgeError when there is none."""
        ...

    def read(self, reply: Mapping[str, Any]) -> Said:
        """Read a 2xx reply that is a JSON object and not an error object."""
        ...

    def refused(self, question: Question, fault: Fault) -> frozenset[str]:
        """Return the features of the question that the fault refuses by name."""
        ...


class HttpJudge:
    """A judge behind HTTP: a `Dialect` over a `Panel`.

    `rng` draws the jitter and `wall` tells Unix time; both are injected so that tests replay.
    """

    def __init__(
        self,
        dialect: Dialect,
        panel: Panel,
        verdicts: VerdictRules,
        rules: TransportRules | None = None,
        *,
        rng: random.Random,
        observer: Observer | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.dialect = dialect
        self.panel = panel
        self.verdicts = verdicts
        self.rules = rules or TransportRules()
        self.observer: Observer = observer or Unobserved()
        self.wall = wall
        self._rng = rng
        self._pausing = 0  # calls that sleep between free retries

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        """Make one comparison; see `Judge.compare`.

        An answer without a readable verdict comes back as `Answered` with None when the budget is spent; every
        other end without a verdict is a JudgeError.
        """
        return await _Comparison(self, ask, slot).run()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.panel.aclose()

    def backoff(self, k: int) -> float:
        """Return the sleep before the k-th budgeted retry, k from 0, in seconds.

        Full jitter below retry_sleep_s times 2^k, capped: calls that failed together come back apart.
        """
        return self._rng.uniform(0.0, min(LONGEST_SLEEP_S, self.rules.retry_sleep_s * 2.0 ** min(k, 60)))

    async def pause(self, left: float) -> float:
        """Sleep before a free retry, at most `left` seconds; return how long it took."""
        self._pausing += 1
        began = trio.current_time()
        try:
            await trio.sleep(min(left, max(RECONNECT_S, self._pausing / RECONNECTS_PER_S)))
        finally:
            self._pausing -= 1
        return trio.current_time() - began


class _Comparison:
    """One comparison on its way: the loop and what it remembers."""

    def __init__(self, judge: HttpJudge, ask: Ask, slot: Ticket) -> None:
        self._judge = judge
        self._ask = ask
        self._slot = slot
        self._attempts = 0
        self._endpoint: Endpoint | None = None  # who was asked last
        self._posted = 0.0  # when
        self._dead: set[Endpoint] = set()  # gave a permanent fault while others were there; never all
        self._told_waits_s = 0.0
        self._tokens: tuple[float, float] | None = None
        self._hits = 0  # attempts that ended at max_output_tokens
        self._text: str | None = None  # the last usable answer
        self._overall: Verdict | None = None  # what was read from it

    async def run(self) -> Answered:
        while True:
            self._attempts += 1
            result = await self._attempt()
            if isinstance(result, Answered):
                return result
            if result.action is Action.PERMANENT:
                raise JudgeError(self._words(result))
            if self._attempts >= self._judge.rules.attempts:
                return self._spent(result)
            await trio.sleep(self._judge.backoff(self._attempts - 1))

    def _spent(self, fault: Fault) -> Answered:
        """The budget is spent: no verdict for this pair, or a judge failure (contract 7.5)."""
        if fault.action is not Action.PAIR:
            raise JudgeError(self._words(fault))
        if self._text is not None:
            return self._answered(self._overall, None)
        remark = f"no completed answer after {self._attempts} attempts; "
        if self._hits:
            remark += f"{self._hits} of them ended at max_output_tokens, which may be too small; "
        raise JudgeError(self._words(fault, remark))

    def _answered(self, overall: Verdict | None, rubric: Verdict | None) -> Answered:
        usage = None if self._tokens is None else Usage(*self._tokens, self._hits > 0)
        return Answered(overall, rubric, usage, self._text or "", self._attempts)

    async def _attempt(self) -> Answered | Fault:
        """Use up one attempt of the budget: an outcome, or the fault that ended it."""
        while True:
            said = await self._call()
            if said.fault is None or said.fault.action is not Action.WAIT:
                break
            await self._wait_as_told(said.fault)
        self._hits += said.hit_max
        if said.tokens is not None:
            before = self._tokens or (0.0, 0.0)
            self._tokens = (before[0] + said.tokens[0], before[1] + said.tokens[1])
        if said.fault is not None:
            return said.fault
        overall, rubric = await off_loop(len(said.text), partial(self._read_verdicts, said.text))
        self._text, self._overall = said.text, overall
        if (overall if self._ask.rubric_ids is None else rubric) is not None:
            return self._answered(overall, rubric)
        return self._noted(Fault(Kind.UNPARSEABLE, "UnparseableVerdict", "no verdict in the answer", 200, said.text))

    def _read_verdicts(self, text: str) -> tuple[Verdict | None, Verdict | None]:
        rules, ids = self._judge.verdicts, self._ask.rubric_ids
        return read_verdict(text, rules), None if ids is None else read_rubric(text, rules, ids)

    async def _wait_as_told(self, fault: Fault) -> None:
        """Sleep as `Retry-After` says, or until another endpoint is ready; fail when that passes the deadline."""
        assert self._endpoint is not None
        assert fault.retry_after is not None
        other = self._judge.panel.ready_in(besides=self._endpoint, dead=self._dead)
        seconds = max(SHORTEST_TOLD_WAIT_S, min(fault.retry_after, other))
        self._told_waits_s += seconds
        end = trio.current_time() + seconds
        if end >= trio.current_effective_deadline() or self._told_waits_s > LONGEST_TOLD_WAITS_S:
            raise JudgeError(self._words(fault, "waiting would pass the evaluation deadline; "))
        await trio.sleep(seconds)

    async def _call(self) -> Said:
        """Make one call: retry what costs no budget until the call's timeout, and turn to other endpoints.

        The judge's time and the pauses count against the timeout, waiting for a slot does not.
        """
        panel, left = self._judge.panel, self._judge.rules.timeout_s
        shun: set[Endpoint] = set()  # failed since all had their turn
        silences = 0  # ends of a share that was not all that was left
        while True:
            async with self._slot.slot():
                endpoint = self._endpoint = panel.pick(dead=self._dead, shun=shun)
                began, share = trio.current_time(), self._share(endpoint, left, silences)
                said = await self._exchange(endpoint, share)
                silent = share < left and said.fault is not None and said.fault.kind is Kind.TIMEOUT
                left -= trio.current_time() - began
            if said.fault is None:
                return said
            silences += silent
            if said.fault.action is Action.RETRY_FREE or silent:
                shun.add(endpoint)
                if not panel.has_well(dead=self._dead, shun=shun):
                    left -= await self._judge.pause(max(0.0, left))
                    if len(shun | self._dead) == len(panel):  # else whoever rests unasked is next
                        shun.clear()
                if left <= 0:
                    return Said(fault=self._noted(faults.timed_out(self._within, said.fault)))
            elif not self._another_takes_over(endpoint, said.fault, shun):
                return said

    def _share(self, endpoint: Endpoint, left: float, silences: int) -> float:
        """Return how long an endpoint may take of the `left` seconds: all of them, unless a panel has somebody else.

        Twice as long after each silence, so that answers which became slow are waited for in the end.
        """
        if len(self._judge.panel) - len(self._dead) == 1:
            return left
        usable = min(left, trio.current_effective_deadline() - trio.current_time())
        return min(left, self._judge.panel.patience(endpoint, usable) * 2.0**silences)

    @property
    def _within(self) -> str:
        return f"within {self._judge.rules.timeout_s} s"

    def _another_takes_over(self, endpoint: Endpoint, fault: Fault, shun: set[Endpoint]) -> bool:
        """Tell whether a panel has somebody else to ask at once, without using the budget."""
        panel = self._judge.panel
        if fault.action is Action.WAIT:
            shun.add(endpoint)
            return panel.has_well(dead=self._dead, shun=shun)
        speaks_against_it = fault.rule.endpoint and fault.kind is not Kind.TIMEOUT
        if fault.action is Action.PERMANENT and speaks_against_it and len(self._dead) + 1 < len(panel):
            self._dead.add(endpoint)
            return True
        return False

    async def _exchange(self, endpoint: Endpoint, share: float) -> Said:
        """Ask one endpoint once, for `share` seconds at most; tell the panel and the observer how it went.

        A call that the evaluation deadline cuts was silent for too long, and is told as such. One that is cancelled
        for another reason says nothing about its endpoint.
        """
        said: Said | None = None
        began = self._posted = trio.current_time()
        try:
            with self._judge.panel.using(endpoint), trio.move_on_after(share):
                said = await self._converse(endpoint)
            if said is None:
                said = Said(fault=faults.timed_out(f"within {trio.current_time() - began:g} s"))
            return said
        finally:
            if said is None and trio.current_time() >= self._slot.deadline.deadline:
                said = Said(fault=faults.timed_out("before the evaluation deadline"))
            if said is not None:
                self._judge.panel.report(endpoint, said.fault, trio.current_time() - self._posted)
                self._tell(endpoint, said.fault)

    def _tell(self, endpoint: Endpoint, fault: Fault | None, features: str = "") -> None:
        """Tell the observer how a call ended."""
        kind, status = ("answered", 200) if fault is None else (fault.kind, fault.status)
        self._judge.observer.on_call(CallSeen(endpoint.label, kind, trio.current_time() - self._posted, status))
        if fault is not None:
            self._noted(fault, features)

    async def _converse(self, endpoint: Endpoint) -> Said:
        """Post, and post again without the features that the endpoint refuses by name, which it does once each.

        Each refusal is a call and a fault of its own; the panel is not told, as the endpoint does answer.
        """
        while True:
            question = self._judge.dialect.write(self._ask, endpoint)
            try:
                reply = await endpoint.post(
                    self._judge.dialect.path, question.content, limit=self._judge.rules.max_reply_bytes
                )
                said = await off_loop(len(reply.body), partial(self._hear, endpoint, reply))
            except httpx2.HTTPError as error:
                said = Said(fault=faults.from_exception(error))
            fault = said.fault
            refused = self._judge.dialect.refused(question, fault) if fault is not None else frozenset()
            if fault is None or not refused:
                return said
            endpoint.refused |= refused
            features = " and ".join(sorted(refused))
            detail = f"this endpoint is asked without {features} from now on: {fault.detail}"
            self._tell(endpoint, replace(fault, kind=Kind.FEATURE, detail=detail), features)
            self._posted = trio.current_time()

    def _hear(self, endpoint: Endpoint, reply: Reply) -> Said:
        """Class a reply and read it.

        Depth alone is the reply's doing, so running out of stack is a judge failure (contract 7.5). Whatever else might
        be raised here is a mistake of ours, and stays a failure of the cohort that names it (contract 5.4).
        """
        head = endpoint.head(reply.body)
        try:
            return self._read(endpoint, reply, head)
        except RecursionError:
            return Said(fault=Fault(Kind.NOT_JSON, "RecursionError", "nested too deeply", reply.status, head))

    def _read(self, endpoint: Endpoint, reply: Reply, head: str) -> Said:
        """Class a reply by its status, then by what is inside."""
        now = self._judge.wall()
        if not 200 <= reply.status < 300:
            return Said(fault=faults.from_status(reply.status, reply.headers, head, now))
        if has_more_values(reply.body, MOST_VALUES):
            detail = f"the reply has more than {MOST_VALUES} texts, objects and arrays"
            return Said(fault=Fault(Kind.TOO_LARGE, "ReplyTooLarge", detail, reply.status, head))
        try:
            decoded = decode_json(reply.body)
        except ValueError as error:
            return Said(fault=Fault(Kind.NOT_JSON, "JSONDecodeError", str(error), reply.status, head))
        if not isinstance(decoded, dict):
            return Said(fault=Fault(Kind.NOT_OBJECT, "UnusableAnswer", "not an object", reply.status, head))
        fault = faults.from_error_object(decoded, reply.headers, head, now)
        said = self._judge.dialect.read(decoded) if fault is None else Said(fault=fault)
        if said.fault is None:
            return said
        # The detail may hold as much as the reply: it is masked and then cut here, where a large reply is in a thread.
        detail = endpoint.clean(said.fault.detail)[:HEAD_CHARS]
        return replace(said, fault=replace(said.fault, detail=detail, status=reply.status, body=head))

    def _noted(self, fault: Fault, features: str = "") -> Fault:
        """Tell the observer about a fault, and return it."""
        self._judge.observer.on_fault(
            FaultSeen(
                kind=fault.kind,
                action=fault.action,
                first=self._slot.first(f"{fault.kind} {features}"),
                cohort=self._slot.label,
                endpoint=self._endpoint.label if self._endpoint else "",
                pair=self._ask.pair,
                judge_index=self._ask.judge_index,
                text=self._words(fault),
                features=features,
            )
        )
        return fault

    def _words(self, fault: Fault, remark: str = "") -> str:
        """Word a fault (contract 7.5): scrubbed, without the key, each part bounded."""
        assert self._endpoint is not None
        clean, ask, rules = self._endpoint.clean, self._ask, self._judge.rules
        status = "" if fault.status is None else f"status={fault.status} "
        text = (
            f"{rules.name} {self._judge.dialect.path} pair={ask.pair} judge_index={ask.judge_index} "
            f"deadline={rules.timeout_s}s attempt={self._attempts}: {remark}{status}{fault.error}: "
            f"{clean(fault.detail)[:TEXT_CHARS]}"
        )
        return f"{text}; reply: {clean(fault.body)[:TEXT_CHARS]}" if fault.body else text
