"""The process's limit on open files: raised at start as far as it goes, and reported when it is too low."""

import resource
from dataclasses import dataclass

SPARE_DESCRIPTORS = 1024
"""Descriptors beside connections and judge calls: refused connections, listeners, files, pipes, the event loop."""


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """The limit in force, and how much the configured bounds ask for."""

    limit: int
    needed: int

    @property
    def enough(self) -> bool:
        """Whether every configured connection can be open at once."""
        return self.limit >= self.needed

    @property
    def text(self) -> str:
        """One line for the log and for people."""
        return (
            f"limit of open files is {self.limit}, the configured bounds need {self.needed}: raise it "
            f"(ulimit -n {self.needed}, or LimitNOFILE={self.needed} in the systemd unit), or lower max_connections"
        )


def raise_descriptor_limit(connections: int) -> DescriptorLimit:
    """Raise the soft limit to what is needed, the hard one too where that is allowed, and say what holds now.

    `connections` is how many sockets may be open at once, incoming and outgoing together. Never lowers a limit
    and never fails: a limit that stays too low is the caller's to report, from the result.
    """
    needed = connections + SPARE_DESCRIPTORS
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
    return DescriptorLimit(1 << 62 if soft == resource.RLIM_INFINITY else soft, needed)


def _covers(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
