"""What watches a running server: its judge, its core's actions and what its requests are told.

Each action is held against the core's invariants as it happens, and against the clients' record, as in the stateful
test of the core. What is wrong is noted and not raised: a cohort's life would take it for a defect of its judging.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio
from tests.core.clients import CLIENT_INVARIANTS, CLIENT_STATE_INVARIANTS, Call, Clients, Known, Request, Seen

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId, parse_capture_key
from genrm_trio.core.invariants import broken, broken_step
from genrm_trio.core.outcome import Answer, JudgeFailed, Refused, SubmitReply, Told, Waits
from genrm_trio.core.registry import Submission
from genrm_trio.core.snapshot import snapshot
from genrm_trio.core.trace import Event
from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict
from genrm_trio.runtime.server import Server, Verification

SIZE: Final = 2
MOODS: Final = ("answers", "is slow", "fails", "is silent", "breaks")


@dataclass
class Asked:
    """One request under way. waiter: its number in the core, once it is there. life: which cohort of its key it met."""

    sent: Verification
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    waiter: int | None = None
    life: int = 0
    answer: Answer | None = None
    ended: bool = False


class Judge:
    """Says of each answer which judging this is and whose answer it is, so that no two rewards are alike."""

    def __init__(self) -> None:
        self.mood = MOODS[0]
        self.judging: dict[str, int] = {}

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            key, number, mood = ask.response_1.split(" ")[0], 0, self.mood
            number = self.judging[key]
            if mood == "is silent":
                await trio.sleep_forever()
            await trio.sleep(5.0 if mood == "is slow" else 0.0)
        if mood == "fails":
            raise JudgeError(f"call {number} failed")
        if mood == "breaks":
            raise ZeroDivisionError("a defect in the judge")
        first, second = (number + float(text.split(" ")[1]) / 100 for text in (ask.response_1, ask.response_2))
        return Answered(Verdict(first, second, 3.5), None, None, "")

    async def aclose(self) -> None:
        """Nothing to give back."""


class Watched(Server):
    """The server, with somebody who hears what its core answers."""

    heard: Callable[[int, Answer], None]

    def answered(self, waiter: int, answer: Answer, /) -> None:
        self.heard(waiter, answer)
        super().answered(waiter, answer)


class Watch:
    """Checks each action of the core as it happens, and keeps the clients' record. `wrong` has what does not hold."""

    def __init__(self, server: Watched, judge: Judge) -> None:
        self.wrong: list[str] = []
        self.record = Clients(SIZE)
        self.lives: dict[str, int] = {}
        self.told: dict[int, Answer] = {}
        self.asking: Asked | None = None
        self._calls = 0
        self._going: set[str] = set()
        self._freed: set[tuple[str, int]] = set()
        self._judge = judge
        self._registry = server.registry
        self._before = snapshot(self._registry)
        self._submitted: Event | None = None
        self._submit_to = server.registry.submit
        server.heard = self.answered
        server.registry.trace = self.hear
        server.registry.submit = self.submit  # type: ignore[method-assign]  # to hear the replies that come at once

    def check(self, found: Mapping[str, str | None], where: object) -> None:
        self.wrong += [f"{name}: {text} ({where})" for name, text in found.items() if text is not None]

    @contextmanager
    def _noted(self, where: object) -> Iterator[None]:
        """A record that can make no sense of what it sees has found something wrong."""
        try:
            yield
        except (AssertionError, LookupError) as error:
            self.wrong.append(f"the record: {error!r} ({where})")

    def see(self, seen: Seen) -> None:
        self.check({name: holds(self.record, seen) for name, holds in CLIENT_INVARIANTS.items()}, seen)

    # -- what the core does ----------------------------------------------------------------------------

    def answered(self, waiter: int, answer: Answer) -> None:
        self.told[waiter] = answer
        with self._noted(waiter):
            self._hear_answer(self.record.waiting.pop(waiter), answer, at_once=False)

    def submit(self, now: float, submission: Submission) -> SubmitReply:
        """What the server calls instead of the core's own: to learn whose waiter it is, and what is told at once."""
        reply = self._submit_to(now, submission)
        if self.asking is not None:
            self.asking.waiter, self.asking.life = submission.waiter, self.lives.get(submission.cohort.key, 0)
        if not isinstance(reply, Waits):
            answer = reply.outcome if isinstance(reply, Told) else reply
            self.told[submission.waiter] = answer
            with self._noted(submission):
                assert self._submitted is not None, "a submit is an event"
                self._told_at_once(self._submitted, answer)
        return reply

    def _told_at_once(self, event: Event, answer: Answer) -> None:
        request = self._request(event)
        if isinstance(answer, Refused):
            self.see(Seen(request, answer))
        else:
            self._hear_answer(request, answer, at_once=True)
        self._settle(event)

    def _hear_answer(self, request: Request, answer: Answer, *, at_once: bool) -> None:
        self.see(Seen(request, answer, at_once=at_once))
        if at_once:
            self.record.accept(request, answer)
        self.record.hear(request, answer)

    def hear(self, event: Event) -> None:
        with self._noted(event):
            after = snapshot(self._registry)
            self.check(broken(self._registry) | broken_step(self._before, event, after), event)
            learn: Callable[[Event], None] = getattr(self, f"_{event.name.lower()}", self._nothing)
            learn(event)
            self._before = after
            self._submitted = event if event.name == "Submit" else None
            if event.name != "Submit" or _waits(event):
                self._settle(event)  # else once its answer is known, which comes in the same step: see `submit`

    def _settle(self, event: Event) -> None:
        self.check({name: holds(self.record, self._registry) for name, holds in CLIENT_STATE_INVARIANTS.items()}, event)
        self.record.settle(self._registry)

    # -- what the record learns of it ------------------------------------------------------------------

    def _nothing(self, _event: Event) -> None:
        """Clients see nothing of it."""

    def _submit(self, event: Event) -> None:
        args, reply = dict[str, Any](event.args), event.reply
        assert isinstance(reply, dict)
        key, cohort = args["cohort"], self._registry.cohorts.get(args["cohort"])
        before = self._before.cohorts.get(key)
        evicted, superseded = _texts(reply["evicted"]), _texts(reply["superseded"])
        if cohort is not None and (before is None or key in evicted):
            self.lives[key] = self.lives.get(key, 0) + 1
        if cohort is not None and cohort.phase is Phase.EVALUATING and (before is None or before.phase != cohort.phase):
            self._calls += 1
            self._judge.judging[key] = self._calls
        self.record.drop(evicted)
        self.record.fail(superseded)
        if _waits(event):
            request = self._request(event)
            self.see(Seen(request))
            self.record.accept(request, None)
            known = request.session in self.record.sessions
            self.record.waiting[request.waiter] = request if known else replace(request, session=None)

    def _request(self, event: Event) -> Request:
        a: dict[str, Any] = dict(event.args)
        known = self.record.sessions.get(a["session"] or "")
        episode = parse_capture_key(a["episode"]) if a["episode"] else None
        proper = (known is None or known.episode == episode) and not self._registry.closed
        place = (a["waiter"], a["session"], a["cohort"], a["group"], a["attempt"], a["index"])
        return Request(*place, a["answer"], proper)

    def _leave(self, event: Event) -> None:
        self.record.waiting.pop(_number(event.args["waiter"]), None)

    def _expirecollection(self, event: Event) -> None:
        self.record.fail([str(event.args["cohort"])])

    _fail = _expirecollection

    def _judged(self, event: Event) -> None:
        self._call(event, rewarded=True)

    def _judgefailed(self, event: Event) -> None:
        self._call(event, rewarded=False)

    def _call(self, event: Event, *, rewarded: bool) -> None:
        key = str(event.args["cohort"])
        cohort = self._registry.cohorts[key]
        call = Call(self._judge.judging[key], key, rewarded, {one.index: one.digest for one in cohort.by_index})
        self.see(Seen(call=call))
        self.record.calls[call.number] = call
        self.record.verdicts[key] = call.number
        if isinstance(cohort.failure, JudgeFailed):
            self.record.failures[cohort.failure.text] = call.number

    def _seed(self, event: Event) -> None:
        session = str(event.args["session"])
        if event.reply == "bound" and session not in self.record.sessions:
            self.record.sessions[session] = Known(session, parse_capture_key(str(event.args["episode"])), "typed")

    def _endsession(self, event: Event) -> None:
        if event.reply == "ended":
            self.record.end(str(event.args["session"]))

    def _expiresession(self, event: Event) -> None:
        self.record.end(str(event.args["session"]))

    def opens(self) -> None:
        """Admission is about to open."""
        self.record.resume()

    def _openadmission(self, event: Event) -> None:
        assert isinstance(event.reply, dict)
        for session in _texts(event.reply["ended"]):
            self.record.end(session)

    def _export(self, event: Event) -> None:
        assert isinstance(event.reply, dict)
        group = event.args["group"]
        self.record.export(_texts(event.reply["states"]), None if group is None else str(group))

    def retires(self, episode: EpisodeId) -> None:
        """This attempt is about to be retired."""
        self._going = self.record.bound([episode])
        self._freed = self.record.freed(self._going, self._registry.collecting)

    def _retire(self, _event: Event) -> None:
        left = [waiter for waiter, request in self.record.waiting.items() if request.session in self._going]
        self.check({"retire_never_waits_for_cohort": f"{left} still wait" if left else None}, _event)
        self.record.leave(self._going, self._freed)

    def _shutdown(self, _event: Event) -> None:
        for session in list(self.record.sessions):
            self.record.end(session)


def _waits(event: Event) -> bool:
    reply = event.reply["reply"] if isinstance(event.reply, dict) else None
    return isinstance(reply, dict) and "waits" in reply


def _texts(listed: Any) -> list[str]:
    return [str(one) for one in listed]


def _number(value: Any) -> int:
    assert isinstance(value, int)
    return value
