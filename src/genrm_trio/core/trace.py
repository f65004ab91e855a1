"""Events: one per action, with its name, its arguments and its reply.

An event is a line of a trace file, and has the name of the spec's; arguments and reply are in the server's own
terms, which `ops/tla/events.py` translates. The hook is a plain callable, None when nobody listens, so that an
unheard event costs nothing.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from genrm_trio.core.outcome import JSON


class Event(NamedTuple):
    """One action of the core: `name` as the spec has it (CamelCase), `args` and `reply` as plain JSON values."""

    name: str
    args: Mapping[str, JSON]
    reply: JSON


Hook: TypeAlias = Callable[[Event], None]


def method_name(action: str) -> str:
    """The method that carries out an action: `ExpireCollection` is `expire_collection`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in action).lstrip("_")


def action_name(method: str) -> str:
    """The action that a method carries out: the inverse of `method_name`."""
    return "".join(part.capitalize() for part in method.split("_"))


ACTIONS: tuple[str, ...] = (
    "Submit",
    "Leave",
    "ExpireCollection",
    "Judged",
    "JudgeFailed",
    "Publish",
    "Fail",
    "Expire",
    "ExpireWatermark",
    "Seed",
    "UseSession",
    "EndSession",
    "ExpireSession",
    "CloseAdmission",
    "OpenAdmission",
    "Export",
    "Restore",
    "RefuseRestore",
    "Retire",
    "DeleteRestored",
    "Forget",
    "ShutDown",
)
"""Every core action; the spec, the events, the Registry's methods and the stateful test's rules are this set."""
