"""Python's invariants, held against behaviours of the spec: those of the state, of a step, and of what clients saw.

The states come from the spec, so that broken rules can be shown, which the code does not have. The clients' record
learns from the events what callers see, as the stateful test's does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from spec.tools.codes import Codes, Constants, Key
from spec.tools.graph import Event, State
from spec.tools.inflation import Inflation
from tests.core.clients import (
    CLIENT_INVARIANTS,
    CLIENT_STATE_INVARIANTS,
    Call,
    Clients,
    Known,
    Request,
    Saved,
    Seen,
)

from genrm_trio.core.invariants import broken, broken_step
from genrm_trio.core.outcome import Answer, CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.core.registry import Registry
from genrm_trio.core.snapshot import Snapshot, snapshot
from genrm_trio.core.trace import ACTIONS
from genrm_trio.ops.tla.values import Map, Value, pairs_of

Wrong = dict[str, str]


class CallCodes(Codes):
    """Rewards that say of which call and index they are, as the clients' record reads them."""

    def reward_number(self, outcome: Any) -> float:
        return self.call(outcome) + int(outcome[3]) / 100

    def judge_text(self, key: Key, failure: Value) -> str:
        return f"call {self.call(failure)}"

    def call(self, outcome: Any) -> int:
        return int(super().reward_number((outcome[0], outcome[1], outcome[2]))) + 1


@dataclass(frozen=True, slots=True)
class Inflated:
    """A state of the server as the code has it, and what is wrong with it.

    core: as the spec has it; kept, so that nothing else comes to have its identity.
    """

    core: Map
    registry: Registry
    seen: Snapshot
    wrong: Wrong


class Invariants:
    """Those of the server: each state is made and judged once, and so is each step, however many behaviours pass it.

    States and events are told apart by identity: a graph has one object for each.
    """

    def __init__(self, constants: Constants) -> None:
        self.codes = CallCodes(constants)
        self.inflation = Inflation(self.codes)
        self._states: dict[int, Inflated] = {}
        self._steps: dict[tuple[int, int, int], tuple[Event, Wrong]] = {}

    def state(self, core: Map) -> Inflated:
        """This state."""
        known = self._states.get(id(core))
        if known is None:
            registry = self.inflation.registry(core)
            known = self._states[id(core)] = Inflated(core, registry, snapshot(registry), broken(registry))
        return known

    def step(self, before: Map, event: Event, after: Map) -> Wrong:
        """What is wrong with this step, and with the state that it leads to."""
        number = id(before), id(event), id(after)
        known = self._steps.get(number)
        if known is None:
            wrong = self.state(after).wrong
            if event.name in ACTIONS:
                seen = self.inflation.event(event)
                wrong = wrong | broken_step(self.state(before).seen, seen, self.state(after).seen)
            known = self._steps[number] = event, wrong
        return known[1]


class Witness:
    """Sees one behaviour, step by step. `step` returns what is wrong after it, by the invariant's name.

    invariants: those of the server, which the witnesses of all behaviours of one graph share.
    """

    def __init__(self, invariants: Invariants, initial: State) -> None:
        self.invariants = invariants
        self.codes, self.inflation = invariants.codes, invariants.inflation
        self.record = Clients(self.codes.constants.size)
        self._wrong: Wrong = {}
        self._saved: Saved | None = None
        self._crashed = False
        self._before = invariants.state(initial.core).registry
        for session, opened in pairs_of(initial.core["session"]):
            self._open(session, opened["ep"])

    def step(self, event: Event, before: State, after: State) -> Wrong:
        self._wrong = dict(self.invariants.step(before.core, event, after.core))
        registry = self.invariants.state(after.core).registry
        see: Callable[[Event, State, State], None] = getattr(self, f"_{event.name.lower()}", self._nothing)
        self._guarded("the record", lambda: see(event, before, after))
        self._before = registry
        if not self._crashed:
            for name, holds in CLIENT_STATE_INVARIANTS.items():
                self._judge(name, lambda holds=holds: holds(self.record, registry))  # type: ignore[misc]
            self.record.settle(registry)
        return self._wrong

    def _guarded(self, what: str, action: Callable[[], object]) -> None:
        """A record that can make no sense of what it sees has found something wrong."""
        try:
            action()
        except (AssertionError, KeyError) as error:
            self._wrong[what] = repr(error)

    def _judge(self, name: str, holds: Callable[[], str | None]) -> None:
        try:
            text = holds()
        except KeyError as error:
            text = f"there is no {error}"
        if text is not None:
            self._wrong[name] = text

    def _see(self, seen: Seen) -> None:
        for name, holds in CLIENT_INVARIANTS.items():
            self._judge(name, lambda holds=holds: holds(self.record, seen))  # type: ignore[misc]

    # -- what the record is told of --------------------------------------------------------------------

    def _nothing(self, _event: Event, _before: State, _after: State) -> None:
        """Clients see nothing of it."""

    def _open(self, session: Value, episode: Value) -> None:
        session_id = self.codes.session_id(session)
        if session_id not in self.record.sessions:
            self.record.sessions[session_id] = Known(session_id, self.codes.episode_id(episode), "typed")

    def _key(self, key: Any) -> str:
        return self.codes.cohort_id(key).key

    def _answer(self, outcome: Any) -> Answer:
        if outcome[0] == "reward":
            return Rewarded({"reward": self.codes.reward_number(outcome)})
        if outcome[0] == "judge":
            return JudgeFailed(self.codes.judge_text(("", 0), outcome))
        return CohortFailed(outcome[1], "")

    def _answered(self, before: State, after: State, without: Value = ()) -> None:
        """The waiting requests that have their answer after this step."""
        waiting = dict(pairs_of(before.core["waiting"]))
        for waiter in sorted(set(waiting) - {w for w, _ in pairs_of(after.core["waiting"])} - {without}):
            request = self.record.waiting.pop(self.inflation.number(waiter))
            answer = self._answer(_told(waiter, waiting[waiter], before, after))
            self._see(Seen(request, answer, at_once=False))
            self.record.hear(request, answer)

    def _submit(self, event: Event, before: State, after: State) -> None:
        a = event.args
        reply: Any = event.reply
        self._answered(before, after)
        self.record.drop(map(self._key, reply["evicted"]))
        self.record.fail(map(self._key, reply["superseded"]))
        request = self._request(a, down=before.core["down"])
        known = request.session in self.record.sessions
        match reply["reply"]:
            case ("waits",):
                self._see(Seen(request))
                self.record.accept(request, None)
                self.record.waiting[request.waiter] = request if known else replace(request, session=None)
            case ("told", outcome):
                answer = self._answer(outcome)
                self._see(Seen(request, answer))
                self.record.accept(request, answer)
                self.record.hear(request, answer)
            case ("refused", code):
                self._see(Seen(request, Refused(code, "")))

    def _request(self, a: Any, *, down: bool) -> Request:
        session = self.codes.session_id(a["session"]) if a["session"] else None
        known = self.record.sessions.get(session or "")
        episode = self.codes.episode_id(a["episode"]) if a["episode"] else None
        cohort = self.codes.cohort_id(a["cohort"])
        proper = (known is None or known.episode == episode) and not down
        number, answer = self.inflation.number(a["waiter"]), str(a["answer"])
        return Request(number, session, cohort.key, cohort.group, cohort.attempt, a["index"], answer, proper)

    def _leave(self, event: Event, before: State, after: State) -> None:
        self.record.waiting.pop(self.inflation.number(event.arg("waiter")), None)

    def _expirecollection(self, event: Event, before: State, after: State) -> None:
        self._answered(before, after)
        self.record.fail([self._key(event.arg("cohort"))])

    _fail = _expirecollection

    def _judged(self, event: Event, before: State, after: State) -> None:
        self._call(event.arg("cohort"), event.arg("results")[0], before)

    def _judgefailed(self, event: Event, before: State, after: State) -> None:
        self._call(event.arg("cohort"), event.arg("failure"), before)

    def _call(self, key: Any, outcome: Any, before: State) -> None:
        answers = {i: str(answer) for i, answer in pairs_of(before.core["cohort"][key]["ans"]) if answer}
        call = Call(self.codes.call(outcome), self._key(key), outcome[0] == "reward", answers)
        self._see(Seen(call=call))
        self.record.calls[call.number] = call
        self.record.verdicts[call.key] = call.number

    def _publish(self, event: Event, before: State, after: State) -> None:
        self._answered(before, after)

    def _seed(self, event: Event, before: State, after: State) -> None:
        if event.reply == "bound":
            self._open(event.arg("session"), event.arg("episode"))

    def _endsession(self, event: Event, before: State, after: State) -> None:
        session = self.codes.session_id(event.arg("session"))
        known = self.record.sessions.get(session)
        goes_on = known is not None and known.episode != self.codes.episode_id(event.arg("episode"))
        if before.core["open"] and not goes_on:
            self.record.end(session)

    def _expiresession(self, event: Event, before: State, after: State) -> None:
        if before.core["open"]:
            self.record.end(self.codes.session_id(event.arg("session")))

    def _openadmission(self, event: Event, before: State, after: State) -> None:
        if self._crashed:  # the restore was given up
            self._crashed = False
            self.record = Clients(self.record.size, calls=self.record.calls)
        self.record.resume()
        self._answered(before, after)
        for session in _reply(event)["ended"]:
            self.record.end(self.codes.session_id(session))

    def _export(self, event: Event, before: State, after: State) -> None:
        group = event.arg("group")[0] if event.arg("group") else None
        self.record.export([self.codes.session_id(session) for session, _ in pairs_of(event.reply)], group)

    def _commit(self, event: Event, before: State, after: State) -> None:
        self._saved = self.record.save("")

    def _crash(self, event: Event, before: State, after: State) -> None:
        if self._saved is not None and self.record.exported is not None:
            self._saved = replace(self._saved, owed=dict(self.record.exported))
        self.record = self.record.crash(self._saved)
        self._crashed = True

    def _restore(self, event: Event, before: State, after: State) -> None:
        self._crashed = False

    def _retire(self, event: Event, before: State, after: State) -> None:
        episodes = list(map(self.codes.episode_id, event.arg("episodes")))
        going = self.record.bound(episodes)
        freed = self.record.freed(going, self._before.collecting)
        self._refused(before, after)
        self.record.leave(going, freed)

    def _refused(self, before: State, after: State) -> None:
        gone = {w for w, _ in pairs_of(before.core["waiting"])} - {w for w, _ in pairs_of(after.core["waiting"])}
        for waiter in gone:
            self.record.waiting.pop(self.inflation.number(waiter), None)

    def _deleterestored(self, event: Event, before: State, after: State) -> None:
        gone = set(map(self.codes.session_id, _sessions(event.reply)))
        self.record.leave(gone, self.record.freed(gone, None))

    def _shutdown(self, event: Event, before: State, after: State) -> None:
        self.record.waiting.clear()
        for session in list(self.record.sessions):
            self.record.end(session)


def _reply(event: Event) -> Any:
    return event.reply


def _sessions(reply: Value) -> Iterator[Value]:
    assert isinstance(reply, frozenset), "the sessions that went"
    return iter(reply)


def _told(waiter: Any, wait: Any, before: State, after: State) -> Any:
    """What a waiting request was told: what its caller heard, else what its cohort has."""
    slot = waiter[:2]
    heard = after.caller[slot]["told"]
    if heard and heard != before.caller[slot]["told"] and wait["k"][1] == after.caller[slot]["att"]:
        return heard
    cohorts = after.core["cohort"] if wait["k"] in dict(pairs_of(after.core["cohort"])) else before.core["cohort"]
    cohort = cohorts[wait["k"]]
    return cohort["fail"] or cohort["out"][wait["i"]]
