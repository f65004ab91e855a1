"""A registry with a clock and clients, for tests that read as a story.

Every action is checked as it is emitted: all state invariants, all step invariants, and that it emitted one event.
Each member gets a reward of its own, so that a sibling's cannot pass for it.
"""

import json
from dataclasses import dataclass, replace

from genrm_trio.core.cohort import Answer, Cohort
from genrm_trio.core.identity import CohortId, group_cohort_id, parse_capture_key, ungrouped_cohort_id
from genrm_trio.core.invariants import broken, broken_step
from genrm_trio.core.outcome import JSON, CohortFailed, JudgeFailed, Refused, Rewarded, SubmitReply, Told, Waits
from genrm_trio.core.outcome import Answer as Reply
from genrm_trio.core.record import Rebuild
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.core.snapshot import Snapshot, snapshot
from genrm_trio.core.state import Limits
from genrm_trio.core.trace import Event

PROMPT = "ab" * 32
SCHEME = "genrm-trio-1"


@dataclass(frozen=True)
class Ask:
    """One `/verify` that was made, and what became of it."""

    play: "Play"
    waiter: int
    reply: SubmitReply

    @property
    def answer(self) -> Reply | None:
        """What it was told, at once or later; None while it waits or when it left."""
        match self.reply:
            case Told(outcome):
                return outcome
            case Refused() as refused:
                return refused
            case Waits():
                return self.play.answers.get(self.waiter)

    @property
    def waits(self) -> bool:
        return self.waiter in self.play.registry.waiters

    @property
    def code(self) -> str | None:
        """The code of its refusal or of its cohort's failure."""
        return self.answer.code if isinstance(self.answer, Refused | CohortFailed) else None

    @property
    def text(self) -> str:
        assert isinstance(self.answer, Refused | CohortFailed | JudgeFailed), f"{self.answer!r} has no text"
        return self.answer.text

    @property
    def reward(self) -> JSON:
        assert isinstance(self.answer, Rewarded), f"{self.answer!r} is no reward"
        return self.answer.fields["reward"]


def key_of(group: str = "g", attempt: int = 0) -> str:
    return group_cohort_id(group, attempt).key


class Play:
    """A registry of cohorts of `size`, at virtual time `now`."""

    def __init__(self, size: int = 2, *, limits: Limits | None = None, **changed: object) -> None:
        known = limits or Limits(size, record_sessions=True)
        self.now = 1000.0
        self.answers: dict[int, Reply] = {}
        self.changes: list[str] = []
        self.events: list[Event] = []
        self.calls = 0
        self.registry = Registry(replace(known, **changed), self, self._hear)  # type: ignore[arg-type] # limits by name
        self._asked = 0
        self._before: Snapshot = snapshot(self.registry)

    # -- what the registry calls -----------------------------------------------------------------------

    def answered(self, waiter: int, answer: Reply, /) -> None:
        assert waiter not in self.answers, "nobody is answered twice"
        self.answers[waiter] = answer

    def changed(self, cohort: Cohort, /) -> None:
        self.changes.append(f"{cohort.id.key} {cohort.phase}")

    def _hear(self, event: Event) -> None:
        json.dumps(event)
        after = snapshot(self.registry)
        wrong = broken(self.registry) | broken_step(self._before, event, after)
        assert not wrong, f"after {event}: {wrong}"
        self._before = after
        self.events.append(event)

    # -- clients ---------------------------------------------------------------------------------------

    def verify(
        self,
        index: int,
        *,
        group: str | None = "g",
        attempt: int = 0,
        answer: str | None = None,
        prompt: str = PROMPT,
        session: str | None = None,
        episode: str | None = None,
        cohort: CohortId | None = None,
        digests: dict[str, str] | None = None,
        raw: str = "",
    ) -> Ask:
        """One `/verify`; without a group it is grouped by its prompt alone."""
        if cohort is None:
            cohort = ungrouped_cohort_id(prompt, attempt) if group is None else group_cohort_id(group, attempt)
        self._asked += 1
        submission = Submission(
            waiter=self._asked,
            cohort=cohort,
            index=index,
            prompt=prompt,
            answer=Answer(digests or {SCHEME: answer or f"answer {index}"}, raw),
            session=session,
            episode=parse_capture_key(episode) if episode else None,
            payload=f"body {index}",
        )
        return Ask(self, self._asked, self.registry.submit(self.now, submission))

    def seed(self, session: str, episode: str | None, *, binds: bool = True, typed: bool = False) -> str:
        bound = parse_capture_key(episode) if episode else None
        return self.registry.seed(self.now, session, bound, binds=binds, typed=typed)

    def join(self, index: int, *, group: str = "g", attempt: int = 0, answer: str | None = None) -> Ask:
        """Seed the session `s-<group>-<index>` of the rollout `<group>-<index>` and verify with it."""
        session, rollout = f"s-{group}-{index}", f"{group}-{index}"
        assert self.seed(session, rollout) == "bound"
        return self.verify(index, group=group, attempt=attempt, answer=answer, session=session, episode=rollout)

    def fill(self, group: str = "g", *, attempt: int = 0) -> list[Ask]:
        """All members of an attempt join."""
        size = self.registry.limits.cohort_size
        return [self.join(index, group=group, attempt=attempt) for index in range(size)]

    def fill_without_sessions(self, group: str = "g", *, attempt: int = 0) -> list[Ask]:
        """All members of an attempt verify, none of them with a session."""
        return [self.verify(i, group=group, attempt=attempt) for i in range(self.registry.limits.cohort_size)]

    def done(self, group: str = "g", *, attempt: int = 0) -> list[Ask]:
        """All members join, are judged and told; their sessions stay open."""
        asks = self.fill(group, attempt=attempt)
        self.finish(group, attempt=attempt)
        return asks

    def leave(self, ask: Ask) -> None:
        self.registry.leave(self.now, ask.waiter)

    # -- the server's lifetimes ------------------------------------------------------------------------

    def judge(self, group: str = "g", *, attempt: int = 0, key: str | None = None) -> list[float]:
        """The verdict: call n gives member i the reward n + i/100."""
        self.calls += 1
        key = key or key_of(group, attempt)
        rewards = [self.calls + i / 100 for i in sorted(self.registry.cohorts[key].members)]
        self.registry.judged(self.now, key, [Rewarded({"reward": reward}) for reward in rewards])
        return rewards

    def judge_fails(
        self, group: str = "g", *, attempt: int = 0, text: str = "no judge", key: str | None = None
    ) -> None:
        self.calls += 1
        self.registry.judge_failed(self.now, key or key_of(group, attempt), text)

    def publish(self, group: str = "g", *, attempt: int = 0, key: str | None = None) -> bool:
        return self.registry.publish(self.now, key or key_of(group, attempt))

    def finish(self, group: str = "g", *, attempt: int = 0) -> list[float]:
        rewards = self.judge(group, attempt=attempt)
        assert self.publish(group, attempt=attempt)
        return rewards

    def prune(self, seconds: float = 0.0) -> None:
        """Let time pass, then carry out what age makes due."""
        self.now += seconds
        self.registry.prune(self.now)

    # -- checkpoints -----------------------------------------------------------------------------------

    def close(self) -> None:
        self.registry.close_admission(self.now)

    def open(self) -> None:
        self.registry.open_admission(self.now)

    def save(self) -> str:
        """Export everything as the runtime does, as JSON text. Admission must be closed."""
        saved: dict[str, JSON] = {}
        episodes = {session.session_id: session.episode for session in self.registry.sessions}
        for group in self.registry.export_plan():
            saved |= self.registry.export(self.now, group)
        saved |= self.registry.export(self.now, None, [s for s in episodes if s not in saved])
        return json.dumps([{"episode": episodes[s].key, "session": s, "state": state} for s, state in saved.items()])

    def retire(self, *episodes: str) -> list[str]:
        return self.registry.retire(self.now, [parse_capture_key(e) for e in episodes])

    def delete_restored(self, *session_ids: str) -> list[str]:
        """Of these sessions, else of all."""
        return self.registry.delete_restored(self.now, session_ids or [s.session_id for s in self.registry.sessions])

    def crash(self, saved: str) -> "Play":
        """A fresh process that restores what was saved; its admission is still closed."""
        limits = self.registry.limits
        fresh = Play(limits=limits)
        fresh.calls = self.calls + 1000
        fresh.close()
        fresh.registry.restore(fresh.now, rebuilt(saved, limits, fresh.now))
        return fresh

    # -- readings --------------------------------------------------------------------------------------

    def states(self, saved: str) -> dict[str, dict[str, JSON]]:
        """The saved states by session."""
        return {record["session"]: record["state"] for record in json.loads(saved)}

    @property
    def retained(self) -> set[str]:
        return set(self.registry.cohorts)


def rebuilt(saved: str, limits: Limits, now: float = 0.0) -> Rebuild:
    """What the records in this JSON text give; raises StateRefused."""
    rebuild = Rebuild(limits, now)
    for record in json.loads(saved):
        rebuild.add(parse_capture_key(record["episode"]), record["session"], record["state"])
    return rebuild
