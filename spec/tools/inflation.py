"""A Registry in the state that a value of the spec's variable `core` describes, and an event of the spec as the core's.

The way back from `projection` and `ops.tla.events`, for states that the code cannot come to: those that a broken rule
of the spec leads to. Nothing is checked here; whoever looks at the Registry finds what is wrong with it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spec.tools.codes import PROMPT, SCHEME, Codes
from spec.tools.graph import Event

from genrm_trio.core.cohort import Cohort, Member, Phase
from genrm_trio.core.outcome import JSON, CohortFailed, JudgeFailed, Rewarded
from genrm_trio.core.registry import Registry
from genrm_trio.core.sessions import Session
from genrm_trio.core.state import Admission, Group, Waiter, Watermark
from genrm_trio.core.trace import Event as CodeEvent
from genrm_trio.ops.tla.values import Map, Value, pairs_of


class Inflation:
    """Makes registries and events under one set of codes."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self._numbers: dict[Value, int] = {}

    def number(self, waiter: Value) -> int:
        """The number of a waiting request."""
        if waiter not in self._numbers:
            self._numbers[waiter] = len(self._numbers) + 1
            self.codes.waiters[self._numbers[waiter]] = waiter
        return self._numbers[waiter]

    # -- states ----------------------------------------------------------------------------------------

    def registry(self, core: Map) -> Registry:
        """The Registry in this state."""
        registry = Registry(self.codes.constants.limits)
        for used, mark in enumerate(core["marks"], 1):
            registry.groups[mark["g"]] = Group(Watermark(mark["a"], PROMPT, 0.0, used, mark["installed"]))
        for key, value in pairs_of(core["cohort"]):
            self._add_cohort(registry, key, value)
        for key in core["term"]:
            registry.terminal[self.codes.cohort_id(key).key] = None
        for session, value in pairs_of(core["session"]):
            self._add_session(registry, session, value)
        for session, value in pairs_of(core["record"]):
            self._add_record(registry, self.codes.session_id(session), value)
        for waiter, value in pairs_of(core["waiting"]):
            self._add_waiter(registry, self.number(waiter), value)
        for rollout, attempt in pairs_of(core["retired"]):
            registry.sessions.retired[self.codes.session_id(rollout)] = attempt
        for session, rollout in pairs_of(core["refused"]):
            registry.sessions.refuse(self.codes.session_id(session), self.codes.session_id(rollout))
        for session in core["shut"]:
            registry.sessions.remember_closed(self.codes.session_id(session), 0.0)
        exported = set(map(self.codes.session_id, core["exported"])) if core["exporting"] else None
        registry.admission = Admission(core["open"], exported)
        registry.closed = core["down"]
        idle = [(group.watermark.used, name) for name, group in registry.groups.items() if not group.cohorts]
        registry.idle = sorted(idle)
        return registry

    def _add_cohort(self, registry: Registry, key: Any, value: Map) -> None:
        made = self.codes.cohort_id(key)
        cohort = Cohort(made, self.codes.constants.size, PROMPT, 0.0, Phase(value["phase"]))
        for index, answer in pairs_of(value["ans"]):
            if answer:
                result = self._rewarded(value["out"][index]) if value["out"][index] else None
                pending = index in value["pending"]
                cohort.members[index] = Member(index, str(answer), SCHEME, result=result, pending=pending)
        if value["fail"]:
            cohort.failure = self._failure(key, value["fail"])
        registry.cohorts[made.key] = cohort
        registry.held += cohort.size if cohort.active else 0
        if made.group is not None and made.group in registry.groups:
            registry.groups[made.group].cohorts[made.key] = cohort

    def _rewarded(self, outcome: Value) -> Rewarded:
        return Rewarded({"reward": self.codes.reward_number(outcome)})

    def _failure(self, key: Any, failure: Any) -> JudgeFailed | CohortFailed:
        if failure[0] == "judge":
            return JudgeFailed(self.codes.judge_text(key, failure))
        return CohortFailed(failure[1], "")

    def _add_session(self, registry: Registry, session: Value, value: Map) -> None:
        registry.sessions.add(
            Session(
                self.codes.session_id(session),
                self.codes.episode_id(value["ep"]),
                0.0,
                restored=not value["claimed"],
                claimed=value["claimed"],
                ending=value["ending"],
            )
        )

    def _add_record(self, registry: Registry, session_id: str, value: Map) -> None:
        key = self.codes.cohort_id(value["k"]).key
        session = registry.sessions.get(session_id)
        if session is not None:
            session.member, session.late = (key, value["i"]), value["late"]
        if key in registry.cohorts:
            registry.cohorts[key].sessions[session_id] = value["i"]

    def _add_waiter(self, registry: Registry, number: int, value: Map) -> None:
        key = self.codes.cohort_id(value["k"]).key
        session_id = self.codes.session_id(value["s"]) if value["s"] else None
        asked = self.codes.session_id(value["asked"]) if value["asked"] else None
        episode = self.codes.episode_id(value["ep"]) if value["ep"] else None
        registry.waiters[number] = Waiter(key, session_id, asked, episode)
        if key in registry.cohorts:
            registry.cohorts[key].waiters[number] = value["i"]
        session = registry.sessions.get(session_id)
        if session is not None:
            session.waiters.add(number)

    # -- events ----------------------------------------------------------------------------------------

    def event(self, event: Event) -> CodeEvent:
        """The event that the core would emit, as far as anybody looks at it."""
        return CodeEvent(event.name, self._args(event), self._reply(event))

    def _keys(self, cohorts: Iterable[Any]) -> list[JSON]:
        return [self.codes.cohort_id(key).key for key in cohorts]

    def _ids(self, sessions: Iterable[Value]) -> list[JSON]:
        return [self.codes.session_id(session) for session in sessions]

    def _episodes(self, episodes: Iterable[Value]) -> list[JSON]:
        return [self.codes.episode_id(episode).key for episode in episodes]

    def _args(self, event: Event) -> Mapping[str, JSON]:
        simple: dict[str, Callable[[Any], JSON]] = {
            "cohort": lambda key: self.codes.cohort_id(key).key,
            "session": lambda session: self.codes.session_id(session) if session else None,
            "episode": lambda episode: self.codes.episode_id(episode).key if episode else None,
            "episodes": self._episodes,
            "sessions": self._ids,
            "waiter": self.number,
            "index": int,
            "by": str,
            "anew": bool,
            "code": str,
            "answer": str,
            "reason": str,
            "group": lambda group: group if isinstance(group, str) else (group[0] if group else None),
        }
        if event.name == "Restore":
            return {"states": self._records(event.arg("states"))}
        if not isinstance(event.args, Map):
            return {}
        return {name: simple[name](value) for name, value in event.args.items() if name in simple}

    def _records(self, states: Value) -> list[JSON]:
        return [
            {
                "session": self.codes.session_id(session),
                "episode": self.codes.episode_id(saved["ep"]).key,
                "state": self._state(saved["state"]),
            }
            for session, saved in pairs_of(states)
        ]

    def _state(self, saved: Any) -> dict[str, JSON]:
        if not saved:
            return {}
        group, attempt = saved["k"]
        outcome = saved["outcome"]
        told: dict[str, JSON] = (
            {"result": {"reward": self.codes.reward_number(outcome)}}
            if outcome[0] == "reward"
            else {"failure_kind": "judge", "failure": self.codes.judge_text(saved["k"], outcome)}
        )
        return {
            "group_id": group,
            "group_attempt": attempt,
            "newest_attempt": saved["newest"],
            "rollout_index": saved["i"],
            "prompt_digest": PROMPT,
            "response_digest": str(saved["answer"]),
            "response_digest_scheme": SCHEME,
            **told,
        }

    def _reply(self, event: Event) -> JSON:
        reply: Any = event.reply
        match event.name:
            case "Submit":
                return {
                    "reply": self._said(reply["reply"]),
                    "evicted": self._keys(reply["evicted"]),
                    "superseded": self._keys(reply["superseded"]),
                }
            case "Publish":
                return {"published": reply["published"], "answered": [self.number(w) for w in reply["answered"]]}
            case "Retire":
                answered: list[JSON] = [self.number(waiter) for waiter in reply["answered"]]
                return {"ended": self._ids(reply["ended"]), "answered": answered}
            case "Export":
                return {"states": {str(self.codes.session_id(s)): self._state(v["state"]) for s, v in pairs_of(reply)}}
            case "DeleteRestored":
                return self._ids(reply)
            case _:
                return reply if isinstance(reply, str | bool) else None

    def _said(self, reply: Any) -> dict[str, JSON]:
        match reply:
            case ("waits",):
                return {"waits": True}
            case ("refused", code):
                return {"refused": code}
            case ("told", ("judge", *_)):
                return {"told": "judge_failed"}
            case ("told", ("cohort", code)):
                return {"told": code}
            case ("told", outcome):
                return {"told": {"reward": self.codes.reward_number(outcome)}}
        raise AssertionError(f"no reply of a Submit: {reply}")
