"""The phases of the control plane (contract 10.3, 10.4), as a table and the values it moves.

Pure and synchronous: what a call may do, what it is answered from memory, which ids are fenced, and until when
the lease runs. Waiting, exporting and writing are not here; whoever does them reports what happened by the
methods `ready`, `written`, `installed` and their like. Times are monotonic seconds but for those called wall.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from genrm_trio.checkpoints.errors import ControlRefused, conflict
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON

LONGEST_SHOWN = 200
"""Characters of a folder's name that a refusal repeats."""

MAX_RESUMED = 64
"""How many of the last resumed ids are refused as stale."""

Reply: TypeAlias = dict[str, JSON]
Scope: TypeAlias = frozenset[EpisodeId] | None
"""The episodes of a commit or restore; None for all."""


class Phase(StrEnum):
    """Where the one open checkpoint is. `restoring` is told as `idle`: it becomes `restored` or leaves no trace."""

    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTED = "committed"
    RESTORING = "restoring"
    RESTORED = "restored"


class Step(StrEnum):
    """What can happen: the calls of the controller, then what the server reports of its own work."""

    PREPARE = "prepare"
    RENEW = "renew"
    COMMIT = "commit"
    RESTORE = "restore"
    RESUME = "resume"
    RETIRE = "retire"
    FORGET = "forget"
    READY = "ready"
    PREPARE_RAISED = "prepare raised"
    WRITTEN = "written"
    INSTALLED = "installed"
    RESTORE_FAILED = "restore failed"
    LEASE_EXPIRED = "lease expired"


TABLE: Mapping[tuple[Phase, Step], Phase] = {
    (Phase.IDLE, Step.PREPARE): Phase.PREPARING,
    (Phase.IDLE, Step.RESTORE): Phase.RESTORING,
    (Phase.IDLE, Step.RESUME): Phase.IDLE,
    (Phase.IDLE, Step.RETIRE): Phase.IDLE,
    (Phase.IDLE, Step.FORGET): Phase.IDLE,
    (Phase.PREPARING, Step.PREPARE): Phase.PREPARING,
    (Phase.PREPARING, Step.READY): Phase.PREPARED,
    (Phase.PREPARING, Step.PREPARE_RAISED): Phase.IDLE,
    (Phase.PREPARING, Step.RENEW): Phase.PREPARING,
    (Phase.PREPARING, Step.RESUME): Phase.IDLE,
    (Phase.PREPARING, Step.LEASE_EXPIRED): Phase.IDLE,
    (Phase.PREPARED, Step.PREPARE): Phase.PREPARED,
    (Phase.PREPARED, Step.RENEW): Phase.PREPARED,
    (Phase.PREPARED, Step.COMMIT): Phase.PREPARED,
    (Phase.PREPARED, Step.WRITTEN): Phase.COMMITTED,
    (Phase.PREPARED, Step.RESUME): Phase.IDLE,
    (Phase.PREPARED, Step.LEASE_EXPIRED): Phase.IDLE,
    (Phase.COMMITTED, Step.PREPARE): Phase.COMMITTED,
    (Phase.COMMITTED, Step.RENEW): Phase.COMMITTED,
    (Phase.COMMITTED, Step.COMMIT): Phase.COMMITTED,
    (Phase.COMMITTED, Step.RESUME): Phase.IDLE,
    (Phase.COMMITTED, Step.LEASE_EXPIRED): Phase.IDLE,
    (Phase.RESTORING, Step.RESTORE): Phase.RESTORING,
    (Phase.RESTORING, Step.INSTALLED): Phase.RESTORED,
    (Phase.RESTORING, Step.RESTORE_FAILED): Phase.IDLE,
    (Phase.RESTORING, Step.RENEW): Phase.RESTORING,
    (Phase.RESTORING, Step.RESUME): Phase.IDLE,
    (Phase.RESTORING, Step.LEASE_EXPIRED): Phase.IDLE,
    (Phase.RESTORED, Step.RESTORE): Phase.RESTORED,
    (Phase.RESTORED, Step.RENEW): Phase.RESTORED,
    (Phase.RESTORED, Step.RETIRE): Phase.RESTORED,
    (Phase.RESTORED, Step.FORGET): Phase.RESTORED,
    (Phase.RESTORED, Step.RESUME): Phase.IDLE,
    (Phase.RESTORED, Step.LEASE_EXPIRED): Phase.IDLE,
}
"""Every step there is. A call that is not here is refused with `invalid_phase`; a report that is not, is a defect."""


def state_diagram() -> str:
    """The table as a Mermaid state diagram; steps that change nothing are left out."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, step), target in TABLE.items():
        if phase is not target:
            edges.setdefault((phase, target), []).append(step)
    lines = [f"    {source} --> {target}: {', '.join(steps)}" for (source, target), steps in edges.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.IDLE}", *lines, ""])


# -- time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """How far ahead a deadline may lie, and how long after it the lease runs (contract 10.4). Seconds."""

    max_deadline_s: float = 86400.0
    grace_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when a checkpoint stays open: `until` is monotonic and decides, `expires_at` is wall time and is told."""

    until: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call's deadline, turned into monotonic time when the call arrived, and the lease that it asks for."""

    now: float
    deadline: float
    lease: Lease

    @property
    def late(self) -> bool:
        """Whether the deadline had passed on arrival."""
        return self.now >= self.deadline


def arrive(deadline_ts: float, *, wall: float, now: float, rules: LeaseRules) -> Arrival:
    """Turn a finite wall-clock deadline into monotonic time, at the moment `wall` and `now` both name.

    The deadline lies at most `max_deadline_s` ahead; the lease ends `grace_s` after it. From then on a wall clock
    that is set anew changes nothing.
    """
    expires_at = min(deadline_ts, wall + rules.max_deadline_s) + rules.grace_s
    deadline = now + min(deadline_ts - wall, rules.max_deadline_s)
    return Arrival(now, deadline, Lease(deadline + rules.grace_s, expires_at))


# -- the machine ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Transfer:
    """What a commit or a restore was asked for first, and its reply once it succeeded."""

    directory: str
    scope: Scope
    reply: Reply | None = None


@dataclass(slots=True)
class Open:
    """The open checkpoint, with what it is answered from memory."""

    checkpoint_id: str
    lease: Lease
    prepared: Reply | None = None
    transfer: Transfer | None = None


class PhaseMachine:
    """The phases of one server. At most one checkpoint is open; the last 64 resumed ids stay fenced.

    Methods named after a call raise ControlRefused, and then nothing changed. They check in the contract's order:
    stale, conflict, phase; then what is asked; then the deadline.
    """

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self._open: Open | None = None
        self._resumed: OrderedDict[str, None] = OrderedDict()

    # -- readings --------------------------------------------------------------------------------------

    @property
    def visible_phase(self) -> Phase:
        """The phase as replies tell it."""
        return Phase.IDLE if self.phase is Phase.RESTORING else self.phase

    @property
    def active_id(self) -> str | None:
        """The id of the open checkpoint, a restore that is not over included."""
        return self._open.checkpoint_id if self._open is not None else None

    @property
    def visible_id(self) -> str | None:
        """The id as status tells it: null while the phase is told as idle."""
        return None if self.visible_phase is Phase.IDLE else self.active_id

    @property
    def lease(self) -> Lease | None:
        """The lease of the open checkpoint."""
        return self._open.lease if self._open is not None else None

    @property
    def visible_lease(self) -> float | None:
        """When the lease expires, wall time, as status tells it."""
        return None if self._open is None or self.visible_phase is Phase.IDLE else self._open.lease.expires_at

    def fenced(self, checkpoint_id: str) -> bool:
        """Whether this id is among those resumed last."""
        return checkpoint_id in self._resumed

    def is_open(self, checkpoint_id: str, *phases: Phase) -> bool:
        """Whether this checkpoint is the open one, and in one of these phases."""
        return self.active_id == checkpoint_id and self.phase in phases

    def is_current(self, transfer: Transfer) -> bool:
        """Whether this is what the open checkpoint was asked for, and not one of a checkpoint that was resumed."""
        return self._open is not None and self._open.transfer is transfer

    # -- calls -----------------------------------------------------------------------------------------

    def admit(self, step: Step, checkpoint_id: str, now: float) -> None:
        """The checks that every call passes first (contract 10.3); changes nothing."""
        resumed = self.fenced(checkpoint_id)
        if step is not Step.RESUME and (resumed or self._lease_passed(checkpoint_id, now)):
            raise conflict("stale_checkpoint", f"checkpoint {checkpoint_id!r} was resumed")
        if self._open is not None and self._open.checkpoint_id != checkpoint_id and not resumed:
            raise conflict(
                "checkpoint_conflict",
                f"{step} of checkpoint {checkpoint_id!r}: checkpoint {self._open.checkpoint_id!r} is open",
            )
        if (self.phase, step) not in TABLE:
            allowed = sorted({phase for phase, possible in TABLE if possible is step} - {Phase.RESTORING})
            raise conflict("invalid_phase", f"{step} is possible in phase {' or '.join(allowed)}, not in {self.phase}")

    def prepare(self, checkpoint_id: str, arrival: Arrival) -> Reply | None:
        """Begin to prepare, or go on; None to wait for readiness, else the reply of the prepare that finished."""
        self.admit(Step.PREPARE, checkpoint_id, arrival.now)
        self._hold(Step.PREPARE, checkpoint_id, arrival)
        return self._opened.prepared

    def renew(self, checkpoint_id: str, arrival: Arrival) -> float:
        """Raise the lease; returns the wall time at which it expires."""
        self.admit(Step.RENEW, checkpoint_id, arrival.now)
        self._hold(Step.RENEW, checkpoint_id, arrival)
        return self._opened.lease.expires_at

    def commit(
        self, checkpoint_id: str, directory: str, scope: Scope, arrival: Arrival, *, blocked: str | None
    ) -> Transfer:
        """Begin a commit, or join the one of the same directory and scope: then its reply may be there already.

        blocked: why the server is not ready any more; only a commit that begins asks.
        """
        self.admit(Step.COMMIT, checkpoint_id, arrival.now)
        return self._transfer(Step.COMMIT, checkpoint_id, Transfer(directory, scope), arrival, blocked)

    def restore(self, checkpoint_id: str, directory: str, scope: Scope, arrival: Arrival) -> Transfer:
        """Begin a restore, or join the one of the same directory and scope: then its reply may be there already."""
        self.admit(Step.RESTORE, checkpoint_id, arrival.now)
        return self._transfer(Step.RESTORE, checkpoint_id, Transfer(directory, scope), arrival, None)

    def retire(self, step: Step, checkpoint_id: str, arrival: Arrival) -> None:
        """Let a retire or a forget through; raises the lease when a checkpoint is open."""
        assert step in (Step.RETIRE, Step.FORGET)
        self.admit(step, checkpoint_id, arrival.now)
        if self._open is not None:
            self._hold(step, checkpoint_id, arrival)

    def resume(self, checkpoint_id: str, now: float) -> bool:
        """Close the open checkpoint, fence its id and forget its replies; with none open the id is fenced alike.

        Returns whether that was idempotent: the id was resumed before, its lease had passed, or nothing was open.
        """
        self.admit(Step.RESUME, checkpoint_id, now)
        opened = self.active_id == checkpoint_id
        idempotent = not opened or self.lease_due(now)
        if opened:
            self._close(Step.RESUME)
        self._fence(checkpoint_id)
        return idempotent

    # -- reports ---------------------------------------------------------------------------------------

    def ready(self, checkpoint_id: str, reply: Reply) -> None:
        """The server is ready: the prepare is finished with this reply."""
        self._opened_as(checkpoint_id).prepared = reply
        self._move(Step.READY)

    def prepare_raised(self, checkpoint_id: str) -> None:
        """The prepare met an unexpected error: nothing is open any more, and the id is not fenced."""
        self._opened_as(checkpoint_id)
        self._close(Step.PREPARE_RAISED)

    def export_failed(self, checkpoint_id: str) -> None:
        """The commit's export gave nothing: the next commit begins anew."""
        self._opened_as(checkpoint_id).transfer = None

    def written(self, checkpoint_id: str, reply: Reply) -> None:
        """The commit is on the disk and cleaned up: it succeeded with this reply."""
        self._finish(Step.WRITTEN, checkpoint_id, reply)

    def installed(self, checkpoint_id: str, reply: Reply) -> None:
        """The restore succeeded with this reply."""
        self._finish(Step.INSTALLED, checkpoint_id, reply)

    def restore_failed(self, checkpoint_id: str) -> None:
        """The restore left no trace: nothing is open any more, and the id is not fenced."""
        self._opened_as(checkpoint_id)
        self._close(Step.RESTORE_FAILED)

    def lease_due(self, now: float) -> bool:
        """Whether the lease of the open checkpoint has passed."""
        return self._open is not None and now >= self._open.lease.until

    def lease_expired(self, now: float) -> None:
        """Resume as if it had been called with the open id."""
        assert self.lease_due(now), "a lease expires when it is due"
        checkpoint_id = self._opened.checkpoint_id
        self._close(Step.LEASE_EXPIRED)
        self._fence(checkpoint_id)

    # -- inside ----------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Open:
        assert self._open is not None, "a checkpoint is open"
        return self._open

    def _opened_as(self, checkpoint_id: str) -> Open:
        assert self._opened.checkpoint_id == checkpoint_id, "reports are about the open checkpoint"
        return self._opened

    def _lease_passed(self, checkpoint_id: str, now: float) -> bool:
        return self.active_id == checkpoint_id and self.lease_due(now)

    def _move(self, step: Step) -> None:
        self.phase = TABLE[self.phase, step]

    def _hold(self, step: Step, checkpoint_id: str, arrival: Arrival) -> None:
        """Make the step with this checkpoint open, and its lease at least as long as the call asks for."""
        self._move(step)
        if self._open is None:
            self._open = Open(checkpoint_id, arrival.lease)
        elif arrival.lease.until > self._open.lease.until:
            self._open.lease = arrival.lease

    def _transfer(
        self, step: Step, checkpoint_id: str, asked: Transfer, arrival: Arrival, blocked: str | None
    ) -> Transfer:
        known = self._open.transfer if self._open is not None else None
        if known is None:
            if arrival.late:
                raise deadline_exceeded(step)
            if blocked is not None:
                raise conflict("invalid_phase", f"no longer ready: {blocked}")
        elif (known.directory, known.scope) != (asked.directory, asked.scope):
            raise conflict("checkpoint_conflict", _differs(step, checkpoint_id, known, asked))
        self._hold(step, checkpoint_id, arrival)
        if known is None:
            known = self._opened.transfer = asked
        return known

    def _finish(self, step: Step, checkpoint_id: str, reply: Reply) -> None:
        transfer = self._opened_as(checkpoint_id).transfer
        assert transfer is not None, "what finished was begun"
        transfer.reply = reply
        self._move(step)

    def _close(self, step: Step) -> None:
        self._move(step)
        self._open = None
        assert self.phase is Phase.IDLE

    def _fence(self, checkpoint_id: str) -> None:
        self._resumed[checkpoint_id] = None
        self._resumed.move_to_end(checkpoint_id)
        if len(self._resumed) > MAX_RESUMED:
            self._resumed.popitem(last=False)


def _differs(step: Step, checkpoint_id: str, known: Transfer, asked: Transfer) -> str:
    """What a call asks for that the first one did not, what counts, and what to do: the first one may be a mistake."""
    if known.directory != asked.directory:
        differs = f"another checkpoint_dir than the first, which was {known.directory[:LONGEST_SHOWN]!r}"
    else:
        differs = "another set of episode_ids than the first"
    return f"{step} of checkpoint {checkpoint_id!r} has {differs}; repeat that, or resume and take a new checkpoint_id"


def deadline_exceeded(step: Step, detail: str = "the deadline has passed") -> ControlRefused:
    """A call's deadline passed."""
    return conflict("deadline_exceeded", f"{step}: {detail}")
