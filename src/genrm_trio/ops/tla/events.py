"""An event of the core as the spec has it: the same action, arguments and reply, under the spec's names for things.

How a session, an episode or an answer is called there is up to `Names`; what the spec does not have (prompts, typed
seeds) is left out here. One function per action, for the actions whose arguments or reply differ in shape.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from genrm_trio.core.trace import Event
from genrm_trio.ops.tla.values import Value, function, record

SpecEvent: TypeAlias = tuple[str, Value, Value]
"""An action's name, arguments and reply, as the spec's variable `ev` has them."""

NONE: Value = ()
"""What the spec calls None: no session, no outcome, no argument."""


class Names(Protocol):
    """What things are called in the spec. A cohort is `<<group, attempt>>`, an episode `<<rollout, attempt>>`."""

    def session(self, session_id: str, /) -> Value:
        """A session, never equal to NONE."""

    def episode(self, key: str, /) -> Value:
        """An episode, by its capture key."""

    def rollout(self, rollout_id: str, /) -> Value:
        """A rollout, as it is in the episodes' names."""

    def waiter(self, number: int, /) -> Value:
        """A waiting request."""

    def group(self, name: str, /) -> Value:
        """A group, as it is in the cohorts' names."""

    def cohort(self, key: str, /) -> Value:
        """A cohort, by its key."""

    def saved_cohort(self, group: str, attempt: int, /) -> Value:
        """The cohort that a group's exported state belongs to."""

    def answer(self, digest: str, /) -> int:
        """An answer, never 0."""

    def reward(self, fields: Mapping[str, Any], /) -> Value:
        """A member's result: a sequence whose first element is "reward"."""

    def judge_failure(self, cohort: Value, text: str | None, /) -> Value:
        """A cohort's judge failure: a sequence whose first element is "judge". The text is not always known."""


def spec_event(event: Event, names: Names) -> SpecEvent:
    """The event under the spec's names."""
    args, reply = _ACTIONS[event.name](names, event.args, event.reply)
    return event.name, args, reply


def _optional(name: Callable[[str], Value], text: str | None) -> Value:
    return name(text) if text is not None else NONE


def _set(name: Callable[[Any], Value], listed: Iterable[Any]) -> Value:
    return frozenset(name(one) for one in listed)


def _ascii(text: str) -> str:
    """A text that TLC can read, whatever a client's names in it are."""
    return text if text.isascii() and text.isprintable() else ascii(text)


Args: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[Value, Value]


def _submit(names: Names, args: Args, reply: Any) -> Pair:
    asked = record(
        waiter=names.waiter(args["waiter"]),
        session=_optional(names.session, args["session"]),
        episode=_optional(names.episode, args["episode"]),
        cohort=names.cohort(args["cohort"]),
        index=args["index"],
        answer=names.answer(args["answer"]),
    )
    answered = record(
        reply=_submit_reply(names, names.cohort(args["cohort"]), reply["reply"]),
        evicted=_set(names.cohort, reply["evicted"]),
        superseded=_set(names.cohort, reply["superseded"]),
    )
    return asked, answered


def _submit_reply(names: Names, cohort: Value, reply: Mapping[str, Any]) -> Value:
    if "waits" in reply:
        return ("waits",)
    if "refused" in reply:
        return "refused", reply["refused"]
    told = reply["told"]
    if told == "judge_failed":
        return "told", names.judge_failure(cohort, None)
    if isinstance(told, str):
        return "told", ("cohort", told)
    return "told", names.reward(told)


def _judged(names: Names, args: Args, reply: Any) -> Pair:
    results = function((index, names.reward(fields)) for index, fields in enumerate(args["results"]))
    return record(cohort=names.cohort(args["cohort"]), results=results), NONE


def _judge_failed(names: Names, args: Args, reply: Any) -> Pair:
    cohort = names.cohort(args["cohort"])
    return record(cohort=cohort, failure=names.judge_failure(cohort, None)), NONE


def _publish(names: Names, args: Args, reply: Any) -> Pair:
    answered = _set(names.waiter, reply["answered"])
    return record(cohort=names.cohort(args["cohort"])), record(published=reply["published"], answered=answered)


def _expire_collection(names: Names, args: Args, reply: Any) -> Pair:
    return record(cohort=names.cohort(args["cohort"])), record(answered=_set(names.waiter, reply["answered"]))


def _fail(names: Names, args: Args, reply: Any) -> Pair:
    asked = record(cohort=names.cohort(args["cohort"]), code=args["code"])
    return asked, record(answered=_set(names.waiter, reply["answered"]))


def _session_call(names: Names, args: Args, reply: Any) -> Pair:
    return record(session=names.session(args["session"]), episode=_optional(names.episode, args["episode"])), reply


def _end_session(names: Names, args: Args, reply: Any) -> Pair:
    episode = _optional(names.episode, args["episode"])
    return record(session=names.session(args["session"]), episode=episode, by=args["by"]), reply


def _open_admission(names: Names, args: Args, reply: Any) -> Pair:
    ended = _set(names.session, reply["ended"])
    return NONE, record(answered=_set(names.waiter, reply["answered"]), ended=ended)


def state_of(names: Names, state: Mapping[str, Any]) -> Value:
    """A session's exported state; NONE when it has no outcome to keep."""
    if not state:
        return NONE
    cohort = names.saved_cohort(state["group_id"], state["group_attempt"])
    rewarded = "result" in state
    outcome = names.reward(state["result"]) if rewarded else names.judge_failure(cohort, state["failure"])
    return record(
        k=cohort,
        i=state["rollout_index"],
        answer=names.answer(state["response_digest"]),
        outcome=outcome,
        newest=state["newest_attempt"],
    )


def _export(names: Names, args: Args, reply: Any) -> Pair:
    states = {names.session(session): state_of(names, state) for session, state in reply["states"].items()}
    group, rest = args["group"], frozenset(states)
    named: Value = (names.group(group),) if group is not None else NONE
    asked = record(group=named, rest=rest if group is None else frozenset(), anew=args["anew"])
    return asked, function(states.items())


def _restore(names: Names, args: Args, reply: Any) -> Pair:
    states: dict[Value, Value] = {}
    order: dict[Value, None] = {}
    for saved in args["states"]:
        state = state_of(names, saved["state"])
        states[names.session(saved["session"])] = record(ep=names.episode(saved["episode"]), state=state)
        if state != NONE:
            order[names.saved_cohort(saved["state"]["group_id"], saved["state"]["group_attempt"])] = None
    return record(states=function(states.items()), order=tuple(order)), NONE


def _retire(names: Names, args: Args, reply: Any) -> Pair:
    ended = _set(names.session, reply["ended"])
    answered = _set(names.waiter, reply["answered"])
    return record(episodes=_set(names.episode, args["episodes"])), record(ended=ended, answered=answered)


def _one(argument: str, name: str) -> Callable[[Names, Args, Any], Pair]:
    """An action with one argument, whose reply is a plain value or nothing."""

    def translated(names: Names, args: Args, reply: Any) -> Pair:
        call: Callable[[Any], Value] = getattr(names, name)
        return record(**{argument: call(args[argument])}), NONE if reply is None else reply

    return translated


_ACTIONS: Mapping[str, Callable[[Names, Args, Any], Pair]] = {
    "Submit": _submit,
    "Leave": _one("waiter", "waiter"),
    "ExpireCollection": _expire_collection,
    "Judged": _judged,
    "JudgeFailed": _judge_failed,
    "Publish": _publish,
    "Fail": _fail,
    "Expire": _one("cohort", "cohort"),
    "ExpireWatermark": _one("group", "group"),
    "Seed": _session_call,
    "UseSession": _session_call,
    "EndSession": _end_session,
    "ExpireSession": _one("session", "session"),
    "CloseAdmission": lambda names, args, reply: (NONE, NONE),
    "OpenAdmission": _open_admission,
    "Export": _export,
    "Restore": _restore,
    "RefuseRestore": lambda names, args, reply: (record(reason=_ascii(args["reason"])), NONE),
    "Retire": _retire,
    "DeleteRestored": lambda names, args, reply: (
        record(sessions=_set(names.session, args["sessions"])),
        _set(names.session, reply),
    ),
    "Forget": lambda names, args, reply: (record(rollouts=_set(names.rollout, args["rollouts"])), NONE),
    "ShutDown": lambda names, args, reply: (NONE, record(answered=_set(names.waiter, reply["answered"]))),
}
