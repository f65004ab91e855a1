"""The process's limit on open files: raised at start as far as it goes, and how many connections it leaves room for."""

import resource
from dataclasses import dataclass, replace

SPARE_DESCRIPTORS = 512
"""Descriptors beside sockets that are counted: listeners, files, checkpoints, look-ups of names, the event loop."""
LEAST_SPARE_DESCRIPTORS = 128
"""The same where the limit is low. An idle process has ten; connections that are turned away unread are here, too."""
REFUSALS_SHARE = 8
"""Where the limit is low, one in so many of the connections that it leaves is for reading that there are too many."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """How many sockets may be open at once.

    connections, refusals: within the bound, and those beyond it that are still read (`ServingLimits`).
    calls: to judges.
    """

    connections: int
    refusals: int
    calls: int

    @property
    def needed(self) -> int:
        """The limit of open files with which all of them can be open."""
        return self.connections + self.refusals + self.calls + SPARE_DESCRIPTORS

    def within(self, limit: int) -> "Sockets":
        """The same with as many connections as a limit leaves beside the calls, none when it leaves none."""
        room = max(0, limit - self.calls - LEAST_SPARE_DESCRIPTORS)
        refusals = min(self.refusals, max(room - self.connections, room // REFUSALS_SHARE))
        return replace(self, connections=min(self.connections, room - refusals), refusals=refusals)

    def least(self, connections: int) -> int:
        """A limit that leaves so many connections, not more than there may be."""
        share = -(-connections // (REFUSALS_SHARE - 1))
        return connections + min(self.refusals, share) + self.calls + LEAST_SPARE_DESCRIPTORS


def raise_descriptor_limit(needed: int) -> int:
    """Raise the soft limit to what is needed, the hard one too where that is allowed, and return what holds now.

    Never lowers a limit and never fails: what to do with a limit that stays too low is the caller's to say.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _covers(soft, needed):
        tries = [(needed, hard)] if _covers(hard, needed) else [(needed, needed), (hard, hard)]
        for wanted in tries:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
            except (ValueError, OSError):
                continue
            break
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 62 if soft == resource.RLIM_INFINITY else soft


def _covers(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
