"""What clients saw, and what they may rely on for it: the invariants that no state of the server shows.

The record learns from requests and answers only. It reads the registry for one thing: to know which cohorts are
retained, because a promise ends with its cohort. CLIENT_INVARIANTS judge each thing that clients see before the record
learns it; CLIENT_STATE_INVARIANTS compare the record with the state. Names are the spec's in snake_case.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import Answer, CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.core.registry import Registry

Slot: TypeAlias = tuple[str, int]
"""A cohort's key and a rollout index."""

Level = Literal["told", "sibling", "judged"]


@dataclass(frozen=True)
class Call:
    """One judging of a cohort: the answers that were judged, by index."""

    number: int
    key: str
    rewarded: bool
    answers: Mapping[int, str]

    def reward(self, index: int) -> float:
        """A number that says whose it is: the call, and the index in its hundredths."""
        return self.number + index / 100


@dataclass(frozen=True)
class Request:
    """One `/verify`. `proper`: sent as its caller would repeat it, under the right episode and prompt."""

    waiter: int
    session: str | None
    key: str
    group: str | None
    attempt: int
    index: int
    answer: str
    proper: bool

    @property
    def slot(self) -> Slot:
        return self.key, self.index


@dataclass(frozen=True)
class Promise:
    """What a checkpoint owes to one session: the outcome of a call for the answer that holds its slot.

    level: whether the session itself was told it, or only a sibling, or nobody yet.
    """

    slot: Slot
    group: str
    attempt: int
    answer: str
    call: int
    level: Level


@dataclass
class Known:
    """An open session as its caller knows it.

    told: the call whose outcome it was told for its member. heard: the call of which it or a sibling was told.
    """

    session: str
    episode: EpisodeId
    kind: str
    slot: Slot | None = None
    group: str | None = None
    attempt: int = 0
    told: int | None = None
    heard: int | None = None
    late: bool = False
    promise: Promise | None = None


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint: its records as JSON text, and what it owes. `owed` has every exported session."""

    text: str
    owed: Mapping[str, Promise | None]
    known: Mapping[str, Known]
    newest: Mapping[str, int]


@dataclass(frozen=True)
class Seen:
    """One thing that clients see: a request that waits (answer None), an answer, or a judge call."""

    request: Request | None = None
    answer: Answer | None = None
    at_once: bool = True
    call: Call | None = None


@dataclass
class Clients:
    """The record.

    verdicts: the call that judged a retained cohort. told: the call of which some member was told.
    memory: the call whose outcome was told for a slot's answer. taken: the slots and the answers that hold them.
    pending: restored slots that were not told since. groups: the group of each retained cohort.
    free, free_keys: slots and whole cohorts that a retire or a deletion freed.
    failures: the call of a judge failure whose text does not name it, as that of a deadline.
    exported: what each session of the open checkpoint's export is owed; None before it began. exporting,
        exported_newest: the sessions and their groups' newest attempts as they were then.
    """

    size: int
    calls: dict[int, Call] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    memory: dict[tuple[str, int, str], int] = field(default_factory=dict)
    taken: dict[str, dict[int, str]] = field(default_factory=dict)
    groups: dict[str, str | None] = field(default_factory=dict)
    waiting: dict[int, Request] = field(default_factory=dict)
    sessions: dict[str, Known] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    pending: set[Slot] = field(default_factory=set)
    free: set[Slot] = field(default_factory=set)
    free_keys: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)
    exported: dict[str, Promise | None] | None = None
    exporting: dict[str, Known] = field(default_factory=dict)
    exported_newest: dict[str, int] = field(default_factory=dict)

    def call_of(self, answer: Answer | None) -> int | None:
        """The call that an answer tells of, or None when it tells no outcome that callers record."""
        match answer:
            case Rewarded(fields):
                reward = fields["reward"]
                assert isinstance(reward, float), "rewards are the calls' numbers"
                return int(reward)
            case JudgeFailed(text):
                found = re.match(r"call (\d+)", text)
                assert found is not None or text in self.failures, f"{text!r} names no call"
                return int(found[1]) if found is not None else self.failures[text]
            case _:
                return None

    # -- what the record learns ------------------------------------------------------------------------

    def accept(self, request: Request, answer: Answer | None) -> None:
        """A request waits, or was told at once: it holds its slot, and its session backs it."""
        slots = self.taken.get(request.key, {})
        if isinstance(answer, CohortFailed) and request.index not in slots:
            return
        self.taken[request.key] = slots
        slots.setdefault(request.index, request.answer)
        self.groups[request.key] = request.group
        self.free.discard(request.slot)
        self.free_keys.discard(request.key)
        if request.group is not None:
            self.newest[request.group] = max(request.attempt, self.newest.get(request.group, request.attempt))
        known = self.sessions.get(request.session or "")
        if known is None or request.group is None or known.slot == request.slot:
            return
        self._let_go(known)
        known.slot, known.group, known.attempt = request.slot, request.group, request.attempt
        known.heard = self.told.get(request.key)
        known.late = self.exported is not None

    def hear(self, request: Request, answer: Answer) -> None:
        """A request has its answer."""
        call = self.call_of(answer)
        if call is None:
            return
        self.memory[request.key, request.index, request.answer] = call
        self.told[request.key] = call
        self.pending.discard(request.slot)
        for mate in self.sessions.values():
            if mate.slot is not None and mate.slot[0] == request.key:
                mate.heard = call
        known = self.sessions.get(request.session or "")
        if known is None or known.slot != request.slot:
            return
        known.told = call
        owed = self.exported.get(known.session) if self.exported is not None else None
        if self.exported is not None and owed is not None:
            self.exported[known.session] = replace(owed, level="told")

    def end(self, session: str) -> None:
        """A session ended, by its reply, its close or its idleness. Its waiting requests go on without it."""
        known = self.sessions.pop(session, None)
        for waiter, request in self.waiting.items():
            if request.session == session:
                self.waiting[waiter] = replace(request, session=None)
        if known is not None:
            self._let_go(known)

    def _let_go(self, known: Known) -> None:
        slot, known.slot, known.told, known.heard, known.promise, known.late = known.slot, None, None, None, None, False
        if slot is not None and not any(other.slot == slot for other in self.sessions.values()):
            self.pending.discard(slot)

    def fail(self, keys: Iterable[str]) -> None:
        """Cohorts failed without a verdict that anyone will hear."""
        for key in keys:
            self.verdicts.pop(key, None)

    def drop(self, keys: Iterable[str]) -> None:
        """Cohorts are gone, and with the last of its group what is known of its newest attempt.

        What an open session was told or promised of one stays: it is owed whatever became of the cohort.
        """
        owed = {k.slot[0] for k in self.sessions.values() if k.slot and (k.told is not None or k.promise is not None)}
        for key in [key for key in keys if key not in owed]:
            self.verdicts.pop(key, None)
            self.told.pop(key, None)
            self.taken.pop(key, None)
            self.groups.pop(key, None)
            self.memory = {m: call for m, call in self.memory.items() if m[0] != key}
            self.pending = {slot for slot in self.pending if slot[0] != key}
            self.free = {slot for slot in self.free if slot[0] != key}
        retained = set(self.groups.values())
        self.newest = {group: attempt for group, attempt in self.newest.items() if group in retained}

    def settle(self, registry: Registry) -> None:
        """Learn which cohorts are gone."""
        self.drop([key for key in self.groups if key not in registry.cohorts])

    # -- checkpoints -----------------------------------------------------------------------------------

    def export(self, sessions: Iterable[str], group: str | None) -> None:
        """These sessions are exported now, with their group or as left over."""
        if self.exported is None:
            self.exported, self.exporting, self.exported_newest = {}, {}, {}
        for session in sessions:
            known = self.sessions.get(session)
            if known is not None:
                with_group = known.group == group or not known.late
                self.exported[session] = self._owed(known) if with_group else None
                self.exporting[session] = replace(known)
        if group is not None and group in self.newest:
            self.exported_newest[group] = self.newest[group]

    def _owed(self, known: Known) -> Promise | None:
        if known.slot is None or known.group is None:
            return None
        key, index = known.slot
        call = self.verdicts.get(key)
        if call is None:
            return None
        level: Level = "told" if known.told == call else "sibling" if self.told.get(key) == call else "judged"
        return Promise(known.slot, known.group, known.attempt, self.taken[key][index], call, level)

    def save(self, text: str) -> Saved:
        """The export is committed."""
        assert self.exported is not None, "a commit follows an export"
        groups = {promise.group for promise in self.exported.values() if promise is not None}
        newest = {group: attempt for group, attempt in self.exported_newest.items() if group in groups}
        return Saved(text, dict(self.exported), dict(self.exporting), newest)

    def resume(self) -> None:
        """Admission opens: nobody is late any more."""
        self.exported = None
        for known in self.sessions.values():
            known.late = False

    def crash(self, saved: Saved | None) -> "Clients":
        """What clients rely on in a fresh process that restores this checkpoint."""
        fresh = Clients(self.size, calls=self.calls)
        if saved is None:
            return fresh
        fresh.newest = dict(saved.newest)
        for session, owed in saved.owed.items():
            before = saved.known[session]
            known = Known(session, before.episode.next, before.kind)
            fresh.sessions[session] = known
            if owed is None:
                continue
            known.slot, known.group, known.attempt, known.promise = owed.slot, owed.group, owed.attempt, owed
            key, index = owed.slot
            fresh.verdicts[key] = owed.call
            fresh.taken.setdefault(key, {})[index] = owed.answer
            fresh.groups[key] = owed.group
            fresh.pending.add(owed.slot)
            if owed.level != "judged":
                fresh.told[key] = known.heard = owed.call
            if owed.level == "told":
                known.told = owed.call
                fresh.memory[key, index, owed.answer] = owed.call
        return fresh

    # -- what retires and deletions free ---------------------------------------------------------------

    def bound(self, episodes: Iterable[EpisodeId]) -> set[str]:
        """The open sessions of these rollouts, bound to these or earlier attempts."""
        listed = list(episodes)
        return {
            known.session
            for known in self.sessions.values()
            for e in listed
            if known.episode.rollout_id == e.rollout_id and known.episode.attempt <= e.attempt
        }

    def freed(self, going: set[str], collecting: Callable[[str], bool] | None) -> set[Slot]:
        """The slots that only these sessions hold: pending ones, and with `collecting` those of such cohorts."""
        held = {slot for s in going if (slot := self.sessions[s].slot) is not None}
        asked = {(r.key, r.index) for r in self.waiting.values() if r.session in going and r.group is not None}
        found = set()
        for slot in held | asked:
            other = any(known.slot == slot for s, known in self.sessions.items() if s not in going)
            other |= any(r.slot == slot and r.session not in going for r in self.waiting.values())
            collects = collecting is not None and collecting(slot[0])
            if not other and ((slot in self.pending and slot in held) or collects):
                found.add(slot)
        return found

    def leave(self, going: set[str], freed: set[Slot]) -> None:
        """These sessions are retired or deleted, and these slots are free."""
        for session in going:
            self.sessions.pop(session, None)
        for key, index in freed:
            slots = self.taken.get(key, {})
            answer = slots.pop(index, "")
            self.memory.pop((key, index, answer), None)
            self.pending.discard((key, index))
            self.free.add((key, index))
            if not slots:
                self.drop([key])
                self.free_keys.add(key)
        for known in self.sessions.values():
            assert known.slot not in freed, "a freed slot has no other holder"


# -- invariants of what is seen ------------------------------------------------------------------------

ClientInvariant: TypeAlias = Callable[[Clients, Seen], str | None]
CONFLICTS = frozenset({"different_response", "slot_closed"})


def own_outcome(record: Clients, seen: Seen) -> str | None:
    """A reward is this member's own, and was judged on this very answer; a judge failure is of this cohort."""
    call = record.call_of(seen.answer)
    if call is None or seen.request is None:
        return None
    judged, request = record.calls.get(call), seen.request
    if judged is None:
        return f"{request} was told of call {call}, which was never made"
    if judged.key != request.key:
        return f"{request} was told the outcome of {judged.key!r}"
    if not isinstance(seen.answer, Rewarded):
        return None if not judged.rewarded else f"call {call} gave rewards, {request} was told a failure"
    if not judged.rewarded or seen.answer.fields["reward"] != judged.reward(request.index):
        return f"{request} was told {seen.answer}, its own reward is {judged.reward(request.index)}"
    if judged.answers.get(request.index) != request.answer:
        return f"{request} was told a reward that was judged on {judged.answers.get(request.index)!r}"
    return None


def outcome_stable(record: Clients, seen: Seen) -> str | None:
    """Never two outcomes for one answer, and no failure after one, while its cohort is retained or its session open."""
    failed = isinstance(seen.answer, CohortFailed) and seen.answer.code != "shutting_down"
    call = record.call_of(seen.answer)
    if seen.request is None or (call is None and not failed):
        return None
    known = record.memory.get((seen.request.key, seen.request.index, seen.request.answer))
    return f"{seen.request} was told {seen.answer} after call {known}" if known not in {None, call} else None


def siblings_agree(record: Clients, seen: Seen) -> str | None:
    """Members of one cohort are told of one and the same verdict."""
    call = record.call_of(seen.answer)
    if call is None or seen.request is None:
        return None
    others = record.told.get(seen.request.key)
    return f"{seen.request} was told call {call}, a sibling call {others}" if others not in {None, call} else None


def _owed(record: Clients, seen: Seen) -> tuple[Known, Request] | None:
    """The session and request of a proper repetition at the newest attempt, which must be told at once."""
    request = seen.request
    known = record.sessions.get(request.session or "") if request is not None else None
    if request is None or known is None or known.slot != request.slot or not request.proper or not seen.at_once:
        return None
    same = record.taken.get(request.key, {}).get(request.index) == request.answer
    newest = record.newest.get(request.group or "", request.attempt)
    return (known, request) if same and request.attempt == newest and not known.late else None


def replay_never_stalls(record: Clients, seen: Seen) -> str | None:
    """A member that was told its outcome once is told it again at once, also after a restore."""
    owed = _owed(record, seen)
    if owed is None or owed[0].told is None or record.call_of(seen.answer) == owed[0].told:
        return None
    return f"{owed[1]} was told call {owed[0].told} before, and now {seen.answer}"


def recorded_implies_recoverable(record: Clients, seen: Seen) -> str | None:
    """A verdict that anyone may have recorded is found, also after a restore, at once and unjudged.

    And nobody is told what the open checkpoint does not hold.
    """
    owed = _owed(record, seen)
    heard = owed[0].heard if owed is not None else None
    if heard is not None and record.call_of(seen.answer) != heard:
        return f"call {heard} may be recorded, the answer is {seen.answer}"
    if record.exported is None or record.call_of(seen.answer) is None or seen.request is None:
        return None
    known = record.sessions.get(seen.request.session or "")
    if known is None or seen.request.group is None:
        return None
    late = known.late or known.slot != seen.request.slot
    if late or (known.session in record.exported and record.exported[known.session] is None):
        return f"{known} was told {seen.answer} while closed, and the checkpoint does not hold it"
    return None


def never_judged_twice(record: Clients, seen: Seen) -> str | None:
    """Answers that were judged before a commit are not judged again after its restore."""
    owed = _owed(record, seen)
    promise = owed[0].promise if owed is not None else None
    if promise is not None and promise.level == "judged" and record.call_of(seen.answer) != promise.call:
        return f"call {promise.call} is held by the checkpoint, the answer is {seen.answer}"
    if seen.call is None:
        return None
    for known in record.sessions.values():
        if known.promise is not None and known.promise.slot[0] == seen.call.key:
            return f"{seen.call} judges again what {known.promise} holds"
    return None


def no_false_conflict(record: Clients, seen: Seen) -> str | None:
    """A conflict needs a member that really holds the slot."""
    if not isinstance(seen.answer, Refused) or seen.answer.code not in CONFLICTS or seen.request is None:
        return None
    owed = _owed(record, seen)
    if owed is not None:
        return f"{owed[1]} holds its slot itself, and is refused: {seen.answer}"
    if seen.request.key in record.free_keys or (
        seen.answer.code == "different_response" and seen.request.slot in record.free
    ):
        return f"the slot of {seen.request} was freed, and it is refused: {seen.answer}"
    return None


def watermark_survives_restore(record: Clients, seen: Seen) -> str | None:
    """A superseded attempt of a group of which something is retained stays superseded, also after a restore."""
    request = seen.request
    if request is None or request.group is None or not request.proper or not seen.at_once:
        return None
    if request.attempt >= record.newest.get(request.group, 0):
        return None
    if isinstance(seen.answer, Refused):
        return None if seen.answer.code not in CONFLICTS else f"{request} conflicts, it was superseded"
    return f"{request} was accepted, the newest attempt is {record.newest[request.group]}"


CLIENT_INVARIANTS: Mapping[str, ClientInvariant] = {
    f.__name__: f
    for f in (
        own_outcome,
        outcome_stable,
        siblings_agree,
        replay_never_stalls,
        recorded_implies_recoverable,
        never_judged_twice,
        no_false_conflict,
        watermark_survives_restore,
    )
}
"""Judged on each thing that clients see, before the record learns it."""


# -- the record against the state ----------------------------------------------------------------------


def keep_needed(record: Clients, registry: Registry) -> str | None:
    """A member that was told its outcome finds it while its session is open."""
    for known in record.sessions.values():
        if known.slot is None:
            continue
        member = registry.member(*known.slot)
        if member is None:
            return f"the member of {known} is gone"
        cohort = registry.cohorts[known.slot[0]]
        if known.told is not None and (cohort.active or record.call_of(cohort.told(known.slot[1])) != known.told):
            return f"{known} does not find its outcome"
    return None


def pending_is_unclaimed(record: Clients, registry: Registry) -> str | None:
    """A pending restored member has not replayed."""
    for key, cohort in registry.cohorts.items():
        pending = {index for index, member in cohort.members.items() if member.pending}
        if {(key, index) for index in pending} - record.pending:
            return f"members {pending} of {key!r} are pending, the record has {record.pending}"
    return None


CLIENT_STATE_INVARIANTS: Mapping[str, Callable[[Clients, Registry], str | None]] = {
    f.__name__: f for f in (keep_needed, pending_is_unclaimed)
}
"""Judged on the state after each step."""
