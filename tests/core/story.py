"""A story on the core: callers, a judge, a controller and crashes around one registry.

One step per core action, under the action's method name; the world's own actions are in WORLD. After each step every
invariant is checked: of the state, of the step, and of what clients saw. STEPS lists them with their guards and the
values of their arguments, for whoever tells stories: Hypothesis, which shrinks them, or a plain random walk, which is
ten times as fast.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from tests.core.clients import CLIENT_INVARIANTS, CLIENT_STATE_INVARIANTS, Call, Clients, Known, Request, Saved, Seen

from genrm_trio.core.cohort import Answer, Cohort, NotEnabled, Phase
from genrm_trio.core.identity import EpisodeId, group_cohort_id, parse_capture_key, ungrouped_cohort_id
from genrm_trio.core.invariants import broken, broken_step
from genrm_trio.core.outcome import Answer as Reply
from genrm_trio.core.outcome import Refused, Rewarded, Told, Waits
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.core.snapshot import Snapshot, snapshot
from genrm_trio.core.state import Limits
from genrm_trio.core.trace import Event

PROMPT, OTHER_PROMPT = "ab" * 32, "ef" * 32
SCHEME = "genrm-trio-1"
TTL, IDLE_TTL = 50.0, 400.0
WORLD = frozenset({"Tick", "Rerun", "Commit", "Crash"})
"""What happens outside the core: time passes, a rollout starts over, a checkpoint is committed, the process dies."""

Stage = Literal["idle", "closed", "exported", "committed", "crashed", "restored", "down"]
PICK = range(2**16)


ONLY = frozenset(os.environ.get("GENRM_TRIO_ONLY", "").split(",")) - {""}
"""The invariants to check, when not all: so that each can be seen to catch what it is there for."""


class Broken(AssertionError):
    """An invariant does not hold; the text names it."""


def check(found: Mapping[str, str | None], where: str = "") -> None:
    """Raise Broken for what is wrong."""
    wrong = {name: text for name, text in found.items() if text is not None and (not ONLY or name in ONLY)}
    if wrong:
        raise Broken(f"{wrong} {where}")


Method = TypeVar("Method", bound=Callable[..., None])


@dataclass(frozen=True)
class Step:
    """One kind of step: when it can be taken, and the values that each argument may have."""

    name: str
    enabled: Callable[["Story"], bool]
    arguments: Mapping[str, Sequence[Any]]


STEPS: dict[str, Step] = {}


def step(enabled: Callable[["Story"], bool], **arguments: Sequence[Any]) -> Callable[[Method], Method]:
    """List a method as a step."""

    def register(method: Method) -> Method:
        STEPS[method.__name__] = Step(method.__name__, enabled, arguments)
        return method

    return register


@dataclass
class Caller:
    """One rollout: its place in its group, and what it would send next. `group` None: it sends no group id."""

    rollout: str
    group: str | None
    index: int
    kind: str
    attempt: int = 0
    answer: int = 1
    episode: int = 0
    seeds: int = 0
    session: str | None = None

    @property
    def episode_id(self) -> EpisodeId:
        return EpisodeId(self.rollout, self.episode)

    def start_over(self) -> None:
        """Run again from the input: the next episode attempt, a new session, another answer."""
        self.episode, self.answer, self.session = self.episode + 1, self.answer + 1, None


@dataclass
class Captured:
    """The callers as they were captured with a checkpoint, by session."""

    saved: Saved
    callers: dict[str, tuple[int, int, int]]
    prompts: dict[str, str]


SCENES: Mapping[str, Sequence[Any]] = {
    "size": (2, 2, 3, 1),
    "groups": (1, 2, 3, 4, 5),
    "cap": (1, 2, 16),
    "bound": (None, None, 2),
    "twins": (False, True),
    "kinds": ("typed", "header", "plain", "mixed"),
    "patient": (True, False),
}
"""What stories differ in from the start; see Story."""


class Story:
    """One server and its world.

    size, cap, bound: of Limits, the bound in cohorts. groups: how many, the last one without a group id if there
    are several. twins: whether each slot of the first group has a second rollout with the same answer. kinds: how
    sessions end. patient: whether an open checkpoint is always committed before admission opens.
    stage: the controller's view of the process.
    """

    def __init__(
        self, size: int, groups: int, cap: int, bound: int | None, twins: bool, kinds: str, patient: bool
    ) -> None:
        self.limits = Limits(
            size,
            max_terminal_cohorts=cap,
            cohort_result_ttl_s=TTL,
            session_idle_ttl_s=IDLE_TTL,
            max_held_members=None if bound is None else bound * size,
            record_sessions=True,
        )
        names: list[str | None] = [*"abcd"[: max(groups - 1, 1)], *([None] if groups > 1 else [])]
        mixed = ("typed", "header", "plain")
        self.callers = [
            Caller(f"{name or 'u'}-{index}{twin}", name, index, mixed[index % 3] if kinds == "mixed" else kinds)
            for name in names
            for index in range(size)
            for twin in ("", *(["t"] if twins and name == "a" else []))
        ]
        self.patient = patient
        self.now = 1000.0
        self.steps = self.asked = self.called = 0
        self.captured: Captured | None = None
        self.prompts: dict[str, str] = {}
        self.record = Clients(size)
        self.boot()

    def boot(self) -> None:
        """A fresh process."""
        self.registry = Registry(self.limits, self, self.hear_event)
        self.before: Snapshot = snapshot(self.registry)
        self.event: Event | None = None
        self.stage: Stage = "idle"
        self.to_export: list[str] = []
        self.left_over: list[str] = []
        self.saved_states: dict[str, Any] = {}
        self.saved_episodes: dict[str, EpisodeId] = {}

    # -- what the registry calls -----------------------------------------------------------------------

    def hear_event(self, event: Event) -> None:
        json.dumps(event)
        after = snapshot(self.registry)
        check(broken(self.registry) | broken_step(self.before, event, after), f"after {event}")
        assert ONLY or event.name != "ExpireSession" or self.stage == "idle", "no session idles out while closed"
        self.before, self.event = after, event

    def answered(self, waiter: int, answer: Reply, /) -> None:
        request = self.record.waiting.pop(waiter)
        self.see(Seen(request, answer, at_once=False))
        self.record.hear(request, answer)

    def changed(self, cohort: Cohort, /) -> None:
        assert cohort.size == self.limits.cohort_size

    def see(self, seen: Seen) -> None:
        check({name: holds(self.record, seen) for name, holds in CLIENT_INVARIANTS.items()})

    def settled(self) -> None:
        """The end of every rule."""
        self.steps += 1
        check({name: holds(self.record, self.registry) for name, holds in CLIENT_STATE_INVARIANTS.items()})
        self.record.settle(self.registry)

    def reply_list(self, name: str) -> list[Any]:
        assert self.event is not None
        assert isinstance(self.event.reply, dict)
        listed = self.event.reply[name]
        assert isinstance(listed, list)
        return listed

    # -- readings --------------------------------------------------------------------------------------

    def phased(self, *phases: Phase) -> list[str]:
        return [key for key, cohort in self.registry.cohorts.items() if cohort.phase in phases]

    @property
    def serving(self) -> bool:
        return self.stage not in {"crashed", "down"}

    @property
    def running(self) -> bool:
        return self.stage != "crashed"

    @property
    def seeding(self) -> bool:
        """Seeds pass while admission is open; those already running may end after it closed."""
        return self.stage == "idle" or (self.stage == "closed" and not self.saved_states)

    # -- clients ---------------------------------------------------------------------------------------

    def seed_caller(self, caller: Caller) -> None:
        if caller.session is None:
            caller.seeds += 1
            caller.session = f"{caller.rollout}#{caller.episode}.{caller.seeds}"
        reply = self.registry.seed(
            self.now, caller.session, caller.episode_id, binds=True, typed=caller.kind == "typed"
        )
        if reply == "bound" and caller.session not in self.record.sessions:
            self.record.sessions[caller.session] = Known(caller.session, caller.episode_id, caller.kind)
        if reply in {"closed", "stale_attempt"}:
            caller.start_over()

    @step(lambda self: self.seeding, pick=PICK)
    def seed(self, pick: int) -> None:
        self.seed_caller(self.callers[pick % len(self.callers)])
        self.settled()

    @step(lambda self: self.serving, pick=PICK, twist=range(20))
    def submit(self, pick: int, twist: int) -> None:
        """A verify: of one that has not been told for its answer, mostly; with a twist now and then."""
        eager = [c for c in self.callers if not self.was_told(c) or self.stage == "restored"]
        caller = eager[pick % len(eager)] if eager and twist < 14 else self.callers[pick % len(self.callers)]
        if twist == 15:
            caller.attempt, caller.answer = caller.attempt + 1, caller.answer + 1
        if twist == 16:
            caller.answer += 1
        if caller.session is None and self.seeding and twist != 17:
            self.seed_caller(caller)
        self.verify(
            caller,
            attempt=max(caller.attempt - (twist == 18), 0),
            prompt=self.prompt_of(caller) if twist != 19 else OTHER_PROMPT,
            session=None if twist == 17 else caller.session,
        )
        self.settled()

    def prompt_of(self, caller: Caller) -> str:
        """The prompt of its group; a group that was begun with another one is asked with that."""
        return self.prompts.get(caller.group or "", PROMPT)

    def was_told(self, caller: Caller) -> bool:
        key = self.key_of(caller, caller.attempt)
        return (key, caller.index, f"{caller.rollout[0]}{caller.index}.{caller.answer}") in self.record.memory

    def key_of(self, caller: Caller, attempt: int) -> str:
        if caller.group is None:
            return ungrouped_cohort_id(PROMPT, attempt, task_index=7).key
        return group_cohort_id(caller.group, attempt).key

    def verify(self, caller: Caller, *, attempt: int, prompt: str, session: str | None) -> None:
        cohort = (
            ungrouped_cohort_id(prompt, attempt, task_index=7)
            if caller.group is None
            else group_cohort_id(caller.group, attempt)
        )
        self.asked += 1
        answer = f"{caller.rollout[0]}{caller.index}.{caller.answer}"
        episode = caller.episode_id if session is not None else None
        known = self.record.sessions.get(session or "")
        proper = prompt == self.prompt_of(caller) and (known is None or known.episode == episode)
        request = Request(
            self.asked,
            session,
            cohort.key,
            caller.group,
            attempt,
            caller.index,
            answer,
            proper and self.stage != "down",
        )
        reply = self.registry.submit(
            self.now,
            Submission(
                self.asked, cohort, caller.index, prompt, Answer({SCHEME: answer}), session, episode, payload="body"
            ),
        )
        self.record.drop(self.reply_list("evicted"))
        self.record.fail(self.reply_list("superseded"))
        match reply:
            case Waits():
                self.see(Seen(request))
                self.record.accept(request, None)
                self.prompts[caller.group or ""] = prompt if caller.group is not None else PROMPT
                self.record.waiting[request.waiter] = request if known is not None else replace(request, session=None)
            case Told(outcome):
                self.see(Seen(request, outcome))
                self.record.accept(request, outcome)
                self.record.hear(request, outcome)
            case Refused(code, _, latest):
                self.see(Seen(request, reply))
                self.go_on(caller, code, latest)

    def go_on(self, caller: Caller, code: str, latest: int | None) -> None:
        """What a caller does about a refusal."""
        if code == "stale_attempt":
            caller.start_over()
        elif latest is not None:
            caller.attempt = max(caller.attempt, latest)
        elif code in {"different_response", "slot_closed"} and self.asked % 3 == 0:
            caller.attempt += 1

    @step(lambda self: bool(self.running and self.record.waiting), pick=PICK)
    def leave(self, pick: int) -> None:
        waiter = list(self.record.waiting)[pick % len(self.record.waiting)]
        del self.record.waiting[waiter]
        self.registry.leave(self.now, waiter)
        self.settled()

    @step(lambda self: self.serving and any(c.session for c in self.callers), pick=PICK, bare=(False, True))
    def use_session(self, pick: int, bare: bool) -> None:
        seeded = [c for c in self.callers if c.session is not None]
        caller = seeded[pick % len(seeded)]
        assert caller.session is not None
        allowed = self.registry.use_session(self.now, caller.session, None if bare else caller.episode_id)
        if not allowed:
            caller.start_over()
        self.settled()

    def endings(self) -> list[tuple[str, Literal["verify", "close"]]]:
        """Sessions whose verify reply went out and whose kind ends by it; while open any other may close."""
        replied = [k.session for k in self.record.sessions.values() if k.told is not None and k.kind == "plain"]
        by_verify: list[tuple[str, Literal["verify", "close"]]] = [(s, "verify") for s in replied]
        if self.stage != "idle":
            return by_verify
        return [*by_verify, *((s, "close") for s in self.record.sessions if s not in replied)]

    @step(lambda self: self.serving and bool(self.endings()), pick=PICK)
    def end_session(self, pick: int) -> None:
        endings = self.endings()
        session, by = endings[pick % len(endings)]
        reply = self.registry.end_session(self.now, session, by)
        assert ONLY or reply == ("ended" if self.stage == "idle" else "later")
        if self.stage == "idle":
            self.record.end(session)
        if by == "close" and pick % 3:
            for caller in self.callers:
                if caller.session == session:
                    caller.session = None  # the others go on with a closed id, and seed it again
        self.settled()

    @step(lambda self: True, seconds=(1.0, 20.0, 60.0, 500.0))
    def tick(self, seconds: float) -> None:
        """Time passes, and what age makes due is carried out, as before every verify."""
        self.now += seconds
        if not self.running:
            return
        waiting = {request.session for request in self.record.waiting.values()}
        for session in self.registry.due_sessions(self.now):
            assert session not in waiting
            self.record.end(session)
        self.registry.prune(self.now)
        assert not self.registry.due_cohorts(self.now)
        assert not self.registry.due_watermarks(self.now)
        for key in self.registry.terminal:
            cohort = self.registry.cohorts[key]
            assert self.now - cohort.terminal_at < TTL or self.before.needed(key)
        self.settled()

    # -- cohorts ---------------------------------------------------------------------------------------

    @step(lambda self: self.running and bool(self.phased(Phase.COLLECTING)), pick=PICK)
    def expire_collection(self, pick: int) -> None:
        keys = self.phased(Phase.COLLECTING)
        key = keys[pick % len(keys)]
        self.registry.expire_collection(self.now, key)
        self.record.fail([key])
        self.settled()

    def judge(self, pick: int, *, rewarded: bool) -> Call:
        keys = self.phased(Phase.EVALUATING)
        key = keys[pick % len(keys)]
        self.called += 1
        answers = {member.index: member.digest for member in self.registry.cohorts[key].by_index}
        call = Call(self.called, key, rewarded, answers)
        self.see(Seen(call=call))
        self.record.calls[call.number] = call
        self.record.verdicts[key] = call.number
        return call

    @step(lambda self: self.running and bool(self.phased(Phase.EVALUATING)), pick=PICK)
    def judged(self, pick: int) -> None:
        call = self.judge(pick, rewarded=True)
        rewards = [Rewarded({"reward": call.reward(index)}) for index in sorted(call.answers)]
        self.registry.judged(self.now, call.key, rewards)
        self.settled()

    @step(lambda self: self.running and bool(self.phased(Phase.EVALUATING)), pick=PICK)
    def judge_failed(self, pick: int) -> None:
        call = self.judge(pick, rewarded=False)
        self.registry.judge_failed(self.now, call.key, f"call {call.number}")
        self.settled()

    @step(lambda self: self.running and bool(self.phased(Phase.HELD)), pick=PICK)
    def publish(self, pick: int) -> None:
        """Also tried while closed: a holder may wake up at any time."""
        keys = self.phased(Phase.HELD)
        published = self.registry.publish(self.now, keys[pick % len(keys)])
        assert ONLY or published == (self.stage == "idle")
        self.settled()

    @step(lambda self: self.running and bool(self.phased(Phase.COLLECTING, Phase.EVALUATING, Phase.HELD)), pick=PICK)
    def fail(self, pick: int) -> None:
        keys = self.phased(Phase.COLLECTING, Phase.EVALUATING, Phase.HELD)
        key = keys[pick % len(keys)]
        self.registry.fail(self.now, key, "evaluation_failed", "an unexpected error")
        self.record.fail([key])
        self.settled()

    # -- retention -------------------------------------------------------------------------------------

    @step(lambda self: self.running and bool(self.registry.terminal), pick=PICK)
    def expire(self, pick: int) -> None:
        keys = list(self.registry.terminal)
        self.attempt(lambda: self.registry.expire(self.now, keys[pick % len(keys)]))
        self.settled()

    @step(lambda self: self.running and bool(self.registry.groups), pick=PICK)
    def expire_watermark(self, pick: int) -> None:
        names = list(self.registry.groups)
        self.attempt(lambda: self.registry.expire_watermark(self.now, names[pick % len(names)]))
        self.settled()

    @step(lambda self: self.running and len(self.registry.sessions) > 0, pick=PICK)
    def expire_session(self, pick: int) -> None:
        sessions = [session.session_id for session in self.registry.sessions]
        session = sessions[pick % len(sessions)]
        if self.attempt(lambda: self.registry.expire_session(self.now, session)):
            self.record.end(session)
        self.settled()

    def attempt(self, action: Callable[[], None]) -> bool:
        """Carry out an action whose guard the callers cannot know; says whether it held."""
        try:
            action()
        except NotEnabled:
            assert snapshot(self.registry) == self.before, "an action whose guard does not hold changes nothing"
            return False
        return True

    # -- checkpoints -----------------------------------------------------------------------------------

    @step(lambda self: self.stage == "idle")
    def close_admission(self) -> None:
        self.registry.close_admission(self.now)
        self.stage = "closed"
        self.saved_states, self.saved_episodes = {}, {}
        self.to_export = []
        self.settled()

    @step(
        lambda self: (
            self.stage in {"committed", "restored"} or (self.stage in {"closed", "exported"} and not self.patient)
        )
    )
    def open_admission(self) -> None:
        self.record.resume()
        self.registry.open_admission(self.now)
        for session in self.reply_list("ended"):
            self.record.end(session)
        self.stage = "idle"
        self.settled()

    @step(lambda self: self.stage == "closed", whole=(False, True))
    def export(self, whole: bool) -> None:
        """The next group, or all that is left; the sessions left over at the end."""
        if self.record.exported is None:
            self.to_export = self.registry.export_plan()
            self.saved_episodes = {s.session_id: s.episode for s in self.registry.sessions}
        while self.to_export:
            group = self.to_export.pop(0)
            self.take(self.registry.export(self.now, group), group)
            if not whole:
                self.settled()
                return
        left = [session for session in self.saved_episodes if session not in self.saved_states]
        self.take(self.registry.export(self.now, None, left), None)
        self.stage = "exported"
        self.settled()

    def take(self, states: dict[str, Any], group: str | None) -> None:
        self.saved_states |= states
        self.record.export(states, group)

    @step(lambda self: self.stage == "exported")
    def commit(self) -> None:
        """The file is durable. Sessions that ended since they were exported are in it all the same."""
        text = json.dumps(
            [
                {"episode": self.saved_episodes[s].key, "session": s, "state": state}
                for s, state in self.saved_states.items()
                if s in self.saved_episodes
            ]
        )
        callers = {c.session: (c.attempt, c.answer, c.episode) for c in self.callers if c.session is not None}
        self.captured = Captured(self.record.save(text), callers, dict(self.prompts))
        self.stage = "committed"
        self.settled()

    @step(lambda self: self.stage == "committed", keeps=range(4))
    def delete_restored(self, keeps: int) -> None:
        """What a commit's scope leaves out; the scope is every so-manieth open session."""
        scope = {k.episode for n, k in enumerate(self.record.sessions.values()) if keeps and n % (keeps + 1) == 0}
        left_out = [session.session_id for session in self.registry.sessions if session.episode not in scope]
        gone = set(self.registry.delete_restored(self.now, left_out))
        self.record.leave(gone, self.record.freed(gone, None))
        self.settled()

    @step(lambda self: self.stage == "down" or (self.captured is not None and self.stage != "crashed"))
    def crash(self) -> None:
        """The process dies; what was committed last is what there is."""
        captured = self.captured
        if self.stage == "committed" and captured is not None and self.record.exported is not None:
            captured.saved = replace(captured.saved, owed=dict(self.record.exported))
        self.record = self.record.crash(captured.saved if captured else None)
        for caller in self.callers:
            state = captured.callers.get(caller.session or "") if captured else None
            if state is not None and caller.session in self.record.sessions:
                caller.attempt, caller.answer, _ = state
                caller.episode = self.record.sessions[caller.session].episode.attempt
            else:
                caller.start_over()
                caller.attempt = self.record.newest.get(caller.group or "", caller.attempt)
        self.prompts = dict(captured.prompts) if captured else {}
        self.boot()
        if captured is not None:
            self.stage = "crashed"

    def file(self) -> list[dict[str, Any]]:
        assert self.captured is not None
        records: list[dict[str, Any]] = json.loads(self.captured.saved.text)
        return records

    def rebuild(self, records: Iterable[dict[str, Any]]) -> Rebuild:
        rebuild = Rebuild(self.limits, self.now)
        for record in records:
            rebuild.add(parse_capture_key(record["episode"]), record["session"], record["state"])
        return rebuild

    @step(lambda self: self.stage == "crashed")
    def restore(self) -> None:
        self.registry.close_admission(self.now)
        assert self.registry.restore_refused() is None
        self.registry.restore(self.now, self.rebuild(self.file()))
        self.stage = "restored"
        self.settled()

    @step(
        lambda self: self.stage == "crashed" and bool(self.file()),
        pick=PICK,
        damage=("twice", "unknown field", "unknown scheme", "disagrees", "not empty"),
    )
    def refuse_restore(self, pick: int, damage: str) -> None:
        records = self.file()
        chosen = records[pick % len(records)]
        if damage == "not empty":
            self.registry.seed(self.now, "early", EpisodeId("early"), binds=True)
            assert self.registry.restore_refused() is not None
            self.registry.refuse_restore(self.now, "the process holds a session")
            self.boot()
            self.stage = "crashed"
            return
        if damage == "twice":
            records.append(chosen)
        elif damage == "unknown field":
            chosen["state"] = {**chosen["state"], "unknown": 1}
        elif damage == "unknown scheme":
            chosen["state"] = {**chosen["state"], "response_digest_scheme": "unknown"}
        elif "result" in chosen["state"]:
            other = {**chosen, "session": "another", "state": {**chosen["state"], "result": {"reward": 0.5}}}
            records.append(other)
        else:
            return
        self.registry.close_admission(self.now)
        try:
            self.registry.restore(self.now, self.rebuild(records))
        except StateRefused as refused:
            self.registry.refuse_restore(self.now, str(refused))
        else:
            check({"all_or_nothing_restore": f"a file that is damaged ({damage}) was restored"})
        self.registry.open_admission(self.now)
        assert self.registry.restore_refused() is None

    # -- retires ---------------------------------------------------------------------------------------

    @step(lambda self: self.stage in {"idle", "restored"} and bool(self.record.sessions), pick=PICK, many=(False, True))
    def retire(self, pick: int, many: bool) -> None:
        """One rollout; or all of them, as after a restore that failed elsewhere."""
        known = list(self.record.sessions.values())
        episodes = [k.episode for k in known] if many else [known[pick % len(known)].episode]
        going = self.record.bound(episodes)
        freed = self.record.freed(going, self.registry.collecting)
        self.retiring(episodes)
        left = [w for w, request in self.record.waiting.items() if request.session in going]
        check({"retire_never_waits_for_cohort": f"{left} of retired sessions still wait"} if left else {})
        self.record.leave(going, freed)
        for caller in self.callers:
            if caller.session in going:
                caller.start_over()
        self.settled()

    def retiring(self, episodes: list[EpisodeId]) -> None:
        self.registry.retire(self.now, episodes)

    @step(lambda self: self.stage in {"idle", "restored"} and bool(self.registry.sessions.retired), pick=PICK)
    def forget(self, pick: int) -> None:
        rollouts = list(self.registry.sessions.retired)
        self.registry.forget(self.now, [rollouts[pick % len(rollouts)]])
        self.settled()

    @step(lambda self: self.running, pick=PICK)
    def rerun(self, pick: int) -> None:
        """A rollout starts over on its own: its slot is not freed, so it may need a higher group attempt."""
        self.callers[pick % len(self.callers)].start_over()

    # -- the end ---------------------------------------------------------------------------------------

    @step(lambda self: self.serving and self.steps > 25)
    def shut_down(self) -> None:
        self.registry.shut_down(self.now)
        assert not self.record.waiting, "everybody was answered"
        for session in list(self.record.sessions):
            self.record.end(session)
        self.stage = "down"
        self.settled()

    def finish(self) -> None:
        """Every wait ends, what is held is published, and then memory drains: the liveness of the spec, bounded."""
        if self.stage == "down":
            return
        if self.stage == "crashed":
            self.restore()
        if self.stage != "idle":
            self.record.resume()
            self.registry.open_admission(self.now)
            for session in self.reply_list("ended"):
                self.record.end(session)
            self.stage = "idle"
        for _ in self.phased(Phase.EVALUATING):
            self.judged(0)
        for _ in self.phased(Phase.HELD):
            self.publish(0)
        for _ in self.phased(Phase.COLLECTING):
            self.expire_collection(0)
        assert not self.record.waiting, "everybody was answered"
        assert not self.registry.waiters
        self.tick(IDLE_TTL)
        self.tick(TTL)
        assert not self.registry.cohorts
        assert not self.registry.groups
        assert not len(self.registry.sessions)
        assert not self.registry.sessions.closed
        assert not self.registry.held


USUAL = {
    **dict.fromkeys(("submit",), 8.0),
    **dict.fromkeys(("judged", "export", "commit", "restore"), 4.0),
    **dict.fromkeys(("judge_failed", "publish", "close_admission", "crash"), 2.0),
    **dict.fromkeys(("tick", "retire", "end_session", "refuse_restore"), 0.5),
    **dict.fromkeys(("expire_session", "expire_collection", "fail", "rerun", "use_session", "forget"), 0.3),
    **dict.fromkeys(("expire_watermark", "shut_down"), 0.2),
}
"""How often a walk takes a step, compared with the others; each walk changes it at random."""


def walk(seed: int, length: int) -> None:
    """Tell one random story of so many steps. Whatever breaks is raised with the seed and the steps taken."""
    chance = random.Random(seed)
    scene = {name: chance.choice(values) for name, values in SCENES.items()}
    story = Story(**scene)
    mood = {name: USUAL.get(name, 1.0) * chance.choice((0.2, 1.0, 1.0, 2.0)) for name in STEPS}
    told: list[str] = []
    try:
        for _ in range(length):
            enabled = [step for step in STEPS.values() if step.enabled(story)]
            (chosen,) = chance.choices(enabled, [mood[step.name] for step in enabled])
            arguments = {name: chance.choice(values) for name, values in chosen.arguments.items()}
            told.append(f"{chosen.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
            getattr(story, chosen.name)(**arguments)
        told.append("finish()")
        story.finish()
    except Exception as error:
        error.add_note(f"walk({seed}, {length}) in {scene}:\n" + "\n".join(told[-40:]))
        raise
