"""The core, led along the spec's graph: each action of the spec is one call of the Registry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spec.tools.checkpoint import Checkpoint
from spec.tools.codes import PROMPT, Codes, Constants
from spec.tools.graph import Event, State
from spec.tools.projection import due, projected
from spec.tools.replay import Taken

from genrm_trio.core.cohort import Cohort
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import Answer, Rewarded, Told
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.core.trace import ACTIONS, method_name
from genrm_trio.core.trace import Event as CodeEvent
from genrm_trio.ops.tla.events import SpecEvent, spec_event
from genrm_trio.ops.tla.values import Map, Value, function, pairs_of, record

NOW = 0.0
"""Time stands still: what time makes due happens when the spec says so."""


class CoreTarget:
    """A Registry. For each action it has a method of the Registry's name, which returns what came back."""

    def __init__(self, constants: Constants, initial: State) -> None:
        self.codes = Codes(constants)
        self._events: list[CodeEvent] = []
        self.registry = self._fresh()
        self.checkpoint = Checkpoint(constants.limits)
        self._answers: dict[int, Answer] = {}
        self._numbers: dict[Value, int] = {}
        for session, opened in pairs_of(initial.core["session"]):
            self.seed(record(session=session, episode=opened["ep"]))

    def _fresh(self) -> Registry:
        return Registry(self.codes.constants.limits, self, self._events.append)

    # -- replay.Target ---------------------------------------------------------------------------------

    async def take(self, event: Event) -> Taken:
        self._events.clear()
        self._answers.clear()
        if event.name == "Crash":
            self.registry = self._fresh()
        if event.name not in ACTIONS:
            return Taken(None, {})
        episodes = {s.session_id: s.episode for s in self.registry.sessions} if event.name == "Export" else {}
        returned: Value | None = getattr(self, method_name(event.name))(event.args)
        (heard,) = self._events
        told = with_episodes(spec_event(heard, self.codes), self.codes, episodes)
        return Taken(told, dict(self._answers), returned)

    def core(self) -> Map:
        return projected(self.registry, self.codes)

    def due(self) -> dict[str, list[Value]]:
        return due(self.registry, self.codes)

    # -- what the Registry calls -----------------------------------------------------------------------

    def answered(self, waiter: int, answer: Answer, /) -> None:
        self._answers[waiter] = answer

    def changed(self, cohort: Cohort, /) -> None:
        """Nobody lives here."""

    # -- verification ----------------------------------------------------------------------------------

    def submit(self, a: Map) -> Value:
        number = len(self.codes.waiters) + 1
        self.codes.waiters[number] = a["waiter"]
        self._numbers[a["waiter"]] = number
        reply = self.registry.submit(
            NOW,
            Submission(
                waiter=number,
                cohort=self.codes.cohort_id(a["cohort"]),
                index=a["index"],
                prompt=PROMPT,
                answer=self.codes.digests(a["answer"]),
                session=self.codes.session_id(a["session"]) if a["session"] else None,
                episode=self.codes.episode_id(a["episode"]) if a["episode"] else None,
            ),
        )
        return self.codes.reply(reply.outcome if isinstance(reply, Told) else reply)

    def leave(self, a: Map) -> None:
        self.registry.leave(NOW, self._numbers[a["waiter"]])

    # -- a cohort's life -------------------------------------------------------------------------------

    def _key(self, a: Map) -> str:
        return self.codes.cohort_id(a["cohort"]).key

    def expire_collection(self, a: Map) -> None:
        self.registry.expire_collection(NOW, self._key(a))

    def judged(self, a: Map) -> None:
        results = [Rewarded({"reward": self.codes.reward_number(one)}) for _, one in sorted(pairs_of(a["results"]))]
        self.registry.judged(NOW, self._key(a), results)

    def judge_failed(self, a: Map) -> None:
        self.registry.judge_failed(NOW, self._key(a), self.codes.judge_text(a["cohort"], a["failure"]))

    def publish(self, a: Map) -> None:
        self.registry.publish(NOW, self._key(a))

    def fail(self, a: Map) -> None:
        self.registry.fail(NOW, self._key(a), a["code"], "an error")

    # -- retention -------------------------------------------------------------------------------------

    def expire(self, a: Map) -> None:
        self.registry.expire(NOW, self._key(a))

    def expire_watermark(self, a: Map) -> None:
        self.registry.expire_watermark(NOW, a["group"])

    def expire_session(self, a: Map) -> None:
        self.registry.expire_session(NOW, self.codes.session_id(a["session"]))

    # -- sessions --------------------------------------------------------------------------------------

    def seed(self, a: Map) -> Value:
        episode = self.codes.episode_id(a["episode"])
        return self.registry.seed(NOW, self.codes.session_id(a["session"]), episode, binds=True)

    def use_session(self, a: Map) -> Value:
        session, episode = self.codes.session_id(a["session"]), self.codes.episode_id(a["episode"])
        return self.registry.use_session(NOW, session, episode)

    def end_session(self, a: Map) -> Value:
        episode = self.codes.episode_id(a["episode"])
        return self.registry.end_session(NOW, self.codes.session_id(a["session"]), a["by"], episode)

    # -- admission and checkpoints ---------------------------------------------------------------------

    def close_admission(self, _: Value) -> None:
        self.registry.close_admission(NOW)

    def open_admission(self, _: Value) -> None:
        self.registry.open_admission(NOW)
        self.checkpoint.clear()

    def export(self, a: Map) -> None:
        episodes = {session.session_id: session.episode for session in self.registry.sessions}
        if a["group"]:
            (group,) = a["group"]
            states = self.registry.export(NOW, group, anew=a["anew"])
        else:
            rest = [self.codes.session_id(session) for session in a["rest"]]
            states = self.registry.export(NOW, None, rest, anew=a["anew"])
        self.checkpoint.add(states, episodes)

    def restore(self, _: Map) -> None:
        self.registry.restore(NOW, self.checkpoint.rebuilt())
        self.checkpoint.clear()

    def refuse_restore(self, a: Map) -> None:
        self.checkpoint.refused(a["reason"], self.registry)
        self.registry.refuse_restore(NOW, a["reason"])

    # -- retires ---------------------------------------------------------------------------------------

    def retire(self, a: Map) -> None:
        self.registry.retire(NOW, sorted(self.codes.episode_id(episode) for episode in a["episodes"]))

    def delete_restored(self, a: Map) -> None:
        self.registry.delete_restored(NOW, sorted(map(self.codes.session_id, a["sessions"])))
        self.checkpoint.clear()

    def forget(self, a: Map) -> None:
        self.registry.forget(NOW, [self.codes.session_id(rollout) for rollout in a["rollouts"]])

    def shut_down(self, _: Value) -> None:
        self.registry.shut_down(NOW)


@asynccontextmanager
async def core_target(constants: Constants, initial: State) -> AsyncIterator[CoreTarget]:
    """A Registry in the initial state."""
    yield CoreTarget(constants, initial)


def with_episodes(event: SpecEvent, codes: Codes, episodes: dict[str, EpisodeId]) -> SpecEvent:
    """An export as the spec has it: its reply names the sessions' episodes as well."""
    name, args, reply = event
    if name != "Export":
        return event
    saved = {session: codes.episode(episodes[codes.session_id(session)].key) for session, _ in pairs_of(reply)}
    return name, args, function((s, record(ep=saved[s], state=state)) for s, state in pairs_of(reply))
