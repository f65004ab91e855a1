"""The control plane (contract 10): what each call of the controller does, and every wait in it.

The phase machine says what a call may do; the Registry changes the state; the store writes and reads. Here is
only the time in between. Each wait is followed by a look at the phase again, in the same synchronous step that
acts on it. A commit, a restore and a retire run in tasks of their own, for their calls may be cut.
"""

import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import trio

from genrm_trio.checkpoints.calls import (
    Call,
    CommitCall,
    ForgetCall,
    PrepareCall,
    RenewCall,
    RestoreCall,
    ResumeCall,
    RetireCall,
)
from genrm_trio.checkpoints.collector import collect_again, collector_paused
from genrm_trio.checkpoints.errors import ControlRefused, conflict
from genrm_trio.checkpoints.manifest import KIND, check_instance
from genrm_trio.checkpoints.phases import (
    Arrival,
    LeaseRules,
    Phase,
    PhaseMachine,
    Reply,
    Step,
    Transfer,
    arrive,
    deadline_exceeded,
)
from genrm_trio.checkpoints.store import Store
from genrm_trio.core.outcome import JSON
from genrm_trio.core.record import Rebuild
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.server import Server
from genrm_trio.runtime.transfer import Exported, export, in_order, let_go, rebuild_aside, slices, sorted_keys

MAX_BLOCKERS_TOLD = 100
"""How many blockers a report names; all are counted."""

ABORT_S = 1.0
"""How long a resume waits for a write that it stopped, at least: also when its own deadline has passed."""


RESTORE_REMEDY = "Restore a fresh process, started with `serve --await-restore`: there, requests wait for a resume"
"""What helps against a process that holds something; without the flag, clients that ask again fill the next one too."""


class Stage(Enum):
    """How far a commit or a restore is; says whether it may be stopped, and whether one waits for it then."""

    IN_MEMORY = "in memory"
    """Exporting, reading or rebuilding: stopped and not waited for."""

    WRITING = "writing"
    """Stopped, and waited for: at once over unless the manifest is being published."""

    CLEANING = "cleaning up"
    """Not stopped, waited for."""


class Work:
    """A commit or restore under way, in a task of its own. `done` is set however it ended.

    Without a reply and without an error it was stopped: by its own deadline, or when `stopped` by a resume.
    """

    def __init__(self) -> None:
        self.stage = Stage.IN_MEMORY
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.stopped = False
        self.reply: Reply | None = None
        self.error: Exception | None = None

    def stop(self) -> None:
        """Stop it for a resume, unless it cannot be stopped any more."""
        if self.stage is not Stage.CLEANING:
            self.stopped = True
            self.scope.cancel()

    async def run(self, action: Callable[["Work"], Awaitable[Reply]]) -> None:
        """Do it."""
        try:
            with self.scope:
                self.reply = await action(self)
        except Exception as error:  # noqa: BLE001 - raised again in each call that waits for this work
            self.error = error
        finally:
            self.done.set()


@dataclass(eq=False, slots=True)
class Retiring:
    """A retire whose sessions still run requests.

    keys: the capture keys of its episodes. newest: the newest attempt of each of its rollouts. sessions: those that
    it ended.
    """

    keys: Sequence[str]
    newest: Mapping[str, int]
    sessions: Collection[str]


class Control:
    """The calls of a controller. `run` must be running; every method raises ControlRefused for a refusal.

    wall: seconds of the wall clock, read once for each call on its arrival.
    trouble: told in words what nobody else is told: sessions left out of an export, errors that no call heard,
        a lease that ended.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        *,
        instance: str,
        rules: LeaseRules | None = None,
        wall: Callable[[], float] = time.time,
        trouble: Callable[[str], None] | None = None,
    ) -> None:
        check_instance(instance)
        self.phases = PhaseMachine()
        self._server = server
        self._store = store
        self._instance = instance
        self._rules = rules or LeaseRules()
        self._wall = wall
        self._trouble = trouble or (lambda text: None)
        self._nursery: trio.Nursery | None = None
        self._lease_changed = Bell()
        self._work: Work | None = None
        self._exported: Exported | None = None
        self._retiring: list[Retiring] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the lease's timer and the work that outlives its calls, until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._watch_lease, name="checkpoint lease")
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    # -- readings --------------------------------------------------------------------------------------

    def status(self) -> Reply:
        """The reply to status (contract 10.5)."""
        sessions = self._server.registry.sessions
        return {
            "kind": KIND,
            "instance": self._instance,
            "phase": self.phases.visible_phase.value,
            "checkpoint_id": self.phases.visible_id,
            "lease_expires_at": self.phases.visible_lease,
            "retired_rollouts": len(sessions.retired),
            "report": self._report(),
            "mode": "exported",
            "verify": "replay",
            "verify_step_type": "replay",
            "retired_sessions": len(sessions.refused),
        }

    def _blockers(self) -> list[str]:
        """The capture keys of what a prepare waits for, each once: running requests, and retires that go on."""
        retiring = [key for retiring in self._retiring for key in retiring.keys]
        return list(dict.fromkeys([*self._server.gate.blockers, *retiring]))

    def _is_blocked(self) -> bool:
        """Whether there is a blocker, without looking for all of them."""
        return bool(self._retiring or self._server.gate.blockers)

    def _blocked(self) -> str | None:
        blockers = self._blockers()
        if not blockers:
            return None
        more = f" and {len(blockers) - 3} more" if len(blockers) > 3 else ""
        return f"{', '.join(blockers[:3])}{more} in flight"

    def _report(self) -> dict[str, JSON]:
        blockers = self._blockers()
        return {
            "ready": not blockers,
            "blockers": [*blockers[:MAX_BLOCKERS_TOLD]],
            "blocker_count": len(blockers),
            "counts": {"inflight": self._server.gate.inflight, "sessions": len(self._server.registry.sessions)},
            "restarts": [],
        }

    # -- prepare, renew --------------------------------------------------------------------------------

    async def prepare(self, call: PrepareCall) -> Reply:
        """Close admission and wait until nothing is in flight, at most until the deadline; then it stays closed."""
        arrival = self._arrive(call)
        known = self.phases.prepare(call.checkpoint_id, arrival)
        self._lease_changed.ring()
        if known is not None:
            return known
        try:
            if self._server.registry.admission.open:
                self._server.close_admission()
            await self._wait(lambda: self._prepare_over(call.checkpoint_id), arrival.deadline, "prepare", call)
        except Exception:
            if self.phases.is_open(call.checkpoint_id, Phase.PREPARING):
                self.phases.prepare_raised(call.checkpoint_id)
                self._server.open_admission(resumed=False)
            raise
        return self._prepared(call.checkpoint_id, late=arrival.late)

    def _prepare_over(self, checkpoint_id: str) -> bool:
        waits = self.phases.is_open(checkpoint_id, Phase.PREPARING) and not self._server.registry.closed
        return not waits or not self._is_blocked()

    def _prepared(self, checkpoint_id: str, *, late: bool) -> Reply:
        self._refuse_closing()
        report = self._report()
        if self.phases.active_id != checkpoint_id:
            return {"phase": Phase.IDLE.value, "report": report}
        if self.phases.phase is Phase.PREPARING and report["ready"] and not late:
            self.phases.ready(checkpoint_id, {"phase": Phase.PREPARED.value, "report": report})
        return {"phase": self.phases.phase.value, "report": report}

    async def renew(self, call: RenewCall) -> Reply:
        """Raise the lease."""
        expires_at = self.phases.renew(call.checkpoint_id, self._arrive(call))
        self._lease_changed.ring()
        return {"lease_expires_at": expires_at}

    # -- commit ----------------------------------------------------------------------------------------

    async def commit(self, call: CommitCall) -> Reply:
        """Export once, write, clean up; a repeat waits for the same work, or does what is left of it again."""
        arrival = self._arrive(call)
        transfer = self.phases.commit(
            call.checkpoint_id, call.checkpoint_dir, call.scope, arrival, blocked=self._blocked()
        )

        async def action(work: Work) -> Reply:
            return await self._commit(work, call.checkpoint_id, transfer)

        return await self._reply_of(Step.COMMIT, transfer, action, arrival, call)

    async def _commit(self, work: Work, checkpoint_id: str, transfer: Transfer) -> Reply:
        exported = self._exported or await self._export(checkpoint_id, transfer)
        self._exported = exported
        work.stage = Stage.WRITING
        manifest = await self._store.write(transfer.directory, checkpoint_id=checkpoint_id, records=exported)
        await trio.lowlevel.checkpoint_if_cancelled()  # a write may end in the very turn in which it is stopped
        work.stage = Stage.CLEANING
        keys = await exported.keys()
        self._check_current(checkpoint_id, transfer)
        await self._delete_left_out(checkpoint_id, transfer)
        reply: Reply = {
            "phase": Phase.COMMITTED.value,
            "manifest": manifest.document(),
            "episode_ids": [*keys],
        }
        self.phases.written(checkpoint_id, reply)
        self._drop_export()
        return reply

    async def _delete_left_out(self, checkpoint_id: str, transfer: Transfer) -> None:
        """Let go of restored sessions outside the scope, in slices: what claims one meanwhile came in time."""
        registry, scope = self._server.registry, transfer.scope
        if scope is None:
            return
        for part in slices(list(registry.sessions)):
            if registry.closed:
                return
            left_out = [s.session_id for s in part if s.restored and s.episode not in scope]
            if left_out:
                registry.delete_restored(self._server.now(), left_out)
            await trio.lowlevel.checkpoint()
            self._check_current(checkpoint_id, transfer)

    async def _export(self, checkpoint_id: str, transfer: Transfer) -> Exported:
        self._check_current(checkpoint_id, transfer)
        try:
            with collector_paused():
                exported = await export(self._server, transfer.scope, checkpoint_id)
            self._refuse_closing()
        except Exception:
            if self.phases.is_current(transfer):
                self.phases.export_failed(checkpoint_id)
            raise
        self._check_current(checkpoint_id, transfer)
        if exported.left_out:
            self._trouble(
                f"checkpoint {checkpoint_id!r}: {len(exported.left_out)} sessions ended during the export and are "
                f"not in it, {exported.left_out[0]!r} among them"
            )
        return exported

    def _drop_export(self) -> None:
        exported, self._exported = self._exported, None
        if exported is not None and self._nursery is not None:
            self._nursery.start_soon(self._let_go, exported, name="let go of an export")

    async def _let_go(self, exported: Exported) -> None:
        await let_go(exported.states)
        await let_go(exported.episodes)
        collect_again()

    def _check_current(self, checkpoint_id: str, transfer: Transfer) -> None:
        """After each wait of work: nothing is done for a checkpoint that was resumed meanwhile."""
        if not self.phases.is_current(transfer):
            raise conflict("stale_checkpoint", f"checkpoint {checkpoint_id!r} was resumed meanwhile")

    # -- restore ---------------------------------------------------------------------------------------

    async def restore(self, call: RestoreCall) -> Reply:
        """Read, verify, build aside, and put in place in one step if the process holds nothing; or change nothing."""
        arrival = self._arrive(call)
        transfer = self.phases.restore(call.checkpoint_id, call.checkpoint_dir, call.scope, arrival)

        async def action(work: Work) -> Reply:
            return await self._restore(call.checkpoint_id, transfer)

        return await self._reply_of(Step.RESTORE, transfer, action, arrival, call)

    async def _restore(self, checkpoint_id: str, transfer: Transfer) -> Reply:
        reason = "it was stopped"
        try:
            with collector_paused():
                checkpoint = await self._store.read(transfer.directory, scope=transfer.scope)
                rebuild = await rebuild_aside(self._server, checkpoint.records)
                keys = await sorted_keys(session.episode for session in rebuild.state.sessions)
                reply: Reply = {
                    "phase": Phase.RESTORED.value,
                    "source_checkpoint_id": checkpoint.manifest.checkpoint_id,
                    "restored": [*keys],
                }
                self._check_current(checkpoint_id, transfer)
                self._install(checkpoint_id, rebuild, reply)
        except Exception as error:
            reason = str(error)
            raise
        finally:
            if transfer.reply is None:
                self._restore_failed(checkpoint_id, transfer, reason)
        return reply

    def _restore_failed(self, checkpoint_id: str, transfer: Transfer, reason: str) -> None:
        if not self._server.registry.closed:
            self._server.registry.refuse_restore(self._server.now(), reason)
        if self.phases.is_current(transfer):
            self.phases.restore_failed(checkpoint_id)

    def _install(self, checkpoint_id: str, rebuild: Rebuild, reply: Reply) -> None:
        """The one step: look, close admission, put in place."""
        self._refuse_closing()
        server = self._server
        why = server.registry.restore_refused()
        if why is None and server.gate.running:
            why = f"a restore needs an idle process; {server.gate.running} requests are running"
        if why is not None:
            raise conflict("checkpoint_error", f"{why}. {RESTORE_REMEDY}")
        server.close_admission()
        server.registry.restore(server.now(), rebuild)
        self.phases.installed(checkpoint_id, reply)
        self._own().start_soon(let_go, rebuild.source, name="let go of the records")

    # -- resume, lease ---------------------------------------------------------------------------------

    async def resume(self, call: ResumeCall) -> Reply:
        """Open admission again; the abort, too: stops what is under way."""
        arrival = self._arrive(call, closing=True)
        self.phases.admit(Step.RESUME, call.checkpoint_id, arrival.now)
        if self.phases.active_id == call.checkpoint_id:
            await self._stop_work(call.checkpoint_id, arrival.deadline)
        idempotent = self.phases.resume(call.checkpoint_id, self._server.now())
        self._resumed()
        return {"phase": Phase.IDLE.value, "idempotent": idempotent}

    async def _stop_work(self, checkpoint_id: str, deadline: float) -> None:
        """Stop the commit or restore under way, and wait where one must.

        When it returns, and until the caller waits again, nothing goes on. Raises `deadline_exceeded`.
        """
        while (work := self._work) is not None and not work.done.is_set() and self.phases.active_id == checkpoint_id:
            work.stop()
            if work.stage is Stage.IN_MEMORY:
                return
            with trio.move_on_at(max(deadline, self._server.now() + ABORT_S)) as waiting:
                await work.done.wait()
                await self._server.points.reach("stopped", checkpoint_id)
            if waiting.cancelled_caught:
                changed = "a commit that is called again writes it again" if work.stopped else "nothing changed"
                raise deadline_exceeded(Step.RESUME, f"{work.stage.value} goes on; {changed}")

    def _resumed(self) -> None:
        """Nothing is open any more: let go of what belonged to it, and open admission."""
        if self.phases.phase is not Phase.IDLE:
            return
        self._work = None
        self._drop_export()
        self._lease_changed.ring()
        if not self._server.registry.closed:
            self._server.open_admission(resumed=True)

    async def _watch_lease(self) -> None:
        while True:
            lease = self.phases.lease
            with trio.move_on_at(lease.until if lease is not None else math.inf):
                await self._lease_changed.heard()
            await self._server.points.reach("lease", self.phases.active_id or "")
            expiring = self.phases.active_id
            if expiring is None or not self.phases.lease_due(self._server.now()):
                continue
            await self._stop_work(expiring, math.inf)
            if self.phases.active_id == expiring:
                self.phases.lease_expired(self._server.now())
                self._resumed()
                self._trouble(f"checkpoint {expiring!r} was resumed by its lease: no call came for it in time")

    # -- retire, forget --------------------------------------------------------------------------------

    async def retire(self, call: RetireCall) -> Reply:
        """Refuse these attempts from now on, free what their sessions hold, and wait for what they still run."""
        arrival = self._arrive(call)
        await self._restore_over(call, arrival, Step.RETIRE)
        self._refuse_closing()
        self.phases.retire(Step.RETIRE, call.checkpoint_id, arrival)
        self._lease_changed.ring()
        ended = self._server.registry.retire(self._server.now(), call.episode_ids)
        retiring = Retiring(call.keys, call.newest, frozenset(ended))
        if self._runs(retiring):
            self._retiring.append(retiring)
            self._own().start_soon(self._free, retiring, name="retire")

        def over() -> bool:
            return self._server.registry.closed or not self._unfinished(retiring.newest.keys())

        if not await self._wait(over, arrival.deadline, "retire", call):
            raise deadline_exceeded(Step.RETIRE, "requests of these sessions still run; it goes on by itself")
        self._refuse_closing()
        return {"retired": [*call.keys]}

    async def _free(self, retiring: Retiring) -> None:
        """Wait for the running requests of the retired sessions; until then the retire is a blocker."""
        await self._server.gate.bell.until(lambda: not self._runs(retiring))
        self._retiring.remove(retiring)
        self._server.gate.bell.ring()

    def _runs(self, retiring: Retiring) -> bool:
        """Whether seeds and other requests of the retired sessions still run."""
        return self._server.gate.of_rollouts(retiring.newest, retiring.sessions) > 0

    def _unfinished(self, rollouts: Collection[str]) -> bool:
        """Whether a retire of some of these rollouts goes on."""
        return any(not retiring.newest.keys().isdisjoint(rollouts) for retiring in self._retiring)

    async def forget(self, call: ForgetCall) -> Reply:
        """Drop the marks of retired rollouts and the refused ids of their sessions."""
        arrival = self._arrive(call)
        await self._restore_over(call, arrival, Step.FORGET)
        self._refuse_closing()
        self.phases.retire(Step.FORGET, call.checkpoint_id, arrival)
        self._lease_changed.ring()
        rollouts = frozenset(call.rollout_ids)
        if self._unfinished(rollouts):
            raise conflict("retire_incomplete", "a retire of these rollouts has not freed its sessions yet")
        self._server.registry.forget(self._server.now(), call.rollout_ids)
        return {"forgotten": [*await in_order(rollouts)]}

    # -- waiting ---------------------------------------------------------------------------------------

    async def _wait(self, over: Callable[[], bool], deadline: float, point: str, call: Call) -> bool:
        """Wait until `over` holds in this very step, at most until the deadline; returns whether it does."""
        with trio.move_on_at(deadline):
            while not over():
                await self._server.gate.bell.until(over)
                await self._server.points.reach(point, call.checkpoint_id)
        return over()

    async def _restore_over(self, call: Call, arrival: Arrival, step: Step) -> None:
        """A retire or forget that follows a failed restore waits for that to have ended."""
        work = self._work
        if work is None or not self.phases.is_open(call.checkpoint_id, Phase.RESTORING):
            return
        with trio.move_on_at(arrival.deadline):
            await work.done.wait()
            return
        raise deadline_exceeded(step, "a restore is still running")

    async def _reply_of(
        self,
        step: Step,
        transfer: Transfer,
        action: Callable[[Work], Awaitable[Reply]],
        arrival: Arrival,
        call: Call,
    ) -> Reply:
        """Start the work unless it runs already, and wait for its end, at most until the call's deadline."""
        self._lease_changed.ring()
        if transfer.reply is not None:
            return transfer.reply
        work = self._work
        if work is None or work.done.is_set():
            work = self._work = Work()
            if step is Step.RESTORE:
                work.scope.deadline = arrival.deadline
            self._own().start_soon(self._run_work, work, action, name=str(step))
        elif step is Step.RESTORE:
            work.scope.deadline = max(work.scope.deadline, arrival.deadline)
        with trio.move_on_at(arrival.deadline):
            await work.done.wait()
            await self._server.points.reach(str(step), call.checkpoint_id)
        if work.scope.deadline <= arrival.deadline:
            await work.done.wait()  # over at once: a restore whose last call is refused has left no trace by then
        return self._ended(step, work, call)

    async def _run_work(self, work: Work, action: Callable[[Work], Awaitable[Reply]]) -> None:
        await work.run(action)
        if work.error is not None and not isinstance(work.error, ControlRefused):
            self._trouble(f"a checkpoint call failed: {type(work.error).__name__}: {work.error}")

    def _ended(self, step: Step, work: Work, call: Call) -> Reply:
        if work.reply is not None:
            return work.reply
        if isinstance(work.error, ControlRefused):
            raise ControlRefused(work.error.status, work.error.code, work.error.detail) from work.error
        if work.error is not None:
            raise work.error
        self._refuse_closing()
        if work.stopped:
            text = f"a resume of checkpoint {call.checkpoint_id!r} stopped the {step} before it ended"
            raise conflict("stale_checkpoint", text)
        goes_on = "; it goes on" if step is Step.COMMIT and not work.done.is_set() else ""
        raise deadline_exceeded(step, f"the deadline has passed{goes_on}")

    def _arrive(self, call: Call, *, closing: bool = False) -> Arrival:
        """Read the clocks; refuses when the server shuts down, unless the call is let through then."""
        if not closing:
            self._refuse_closing()
        return arrive(call.deadline_ts, wall=self._wall(), now=self._server.now(), rules=self._rules)

    def _refuse_closing(self) -> None:
        if self._server.registry.closed:
            raise ControlRefused(503, "checkpoint_error", "the server is shutting down")

    def _own(self) -> trio.Nursery:
        assert self._nursery is not None, "the control plane runs while it is called"
        return self._nursery
