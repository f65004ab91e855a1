"""The training run around one server: rollouts, a trainer that restarts groups, and what is captured of them.

Only what clients can know is here; every reply goes to the checker. After a crash the players are what they were
when they were captured, as training itself is.
"""

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Literal

import trio
from tests.crash.checker import AT_ONCE_S, Checker, CohortName, History, Violation, cohort_of
from tests.support.gym import Outcome, Rollout
from tests.support.peer import Peer, Reply
from tests.support.verdicts import AnswerMark

State = Literal["input", "seeding", "seeded", "verifying", "told", "recorded", "closed"]
GOES_ON: Final[tuple[State, ...]] = ("seeded", "verifying", "told", "recorded")
"""States of a rollout whose session a checkpoint holds, so that it goes on after a restore."""


@dataclass(eq=False)
class Player:
    """One place in the training run, and the rollout that fills it now.

    submitted: this rollout has sent its answer. verifies: its requests under way. life: counts the rollouts, so that
    no reply is taken for a later one's.
    """

    rollout: Rollout
    state: State = "input"
    submitted: bool = False
    life: int = 0
    verifies: set[trio.CancelScope] = field(default_factory=set)

    @property
    def mark(self) -> AnswerMark:
        return self.rollout.mark

    @property
    def group(self) -> str:
        return self.mark.group

    def fill(self, rollout: Rollout, state: State, *, submitted: bool = False) -> None:
        """Another rollout, or the same in another life."""
        self.rollout, self.state, self.submitted = rollout, state, submitted
        self.life += 1
        for scope in list(self.verifies):
            scope.cancel()


@dataclass(frozen=True)
class Snapshot:
    """A player as it was captured."""

    rollout: Rollout
    state: State
    submitted: bool


@dataclass
class Saved:
    """A checkpoint as training knows it: captured players and groups, and the history once the server has committed."""

    players: list[Snapshot]
    broken: set[str]
    history: History = field(default_factory=History)

    @property
    def keys(self) -> list[str]:
        """The attempts that go on after a restore."""
        return [player.rollout.key for player in self.players if player.state in GOES_ON]

    @property
    def certain(self) -> set[str]:
        """The next attempts whose sessions the server must have: those of a close under way it may have ended."""
        return {player.rollout.next_key for player in self.players if player.state in GOES_ON[:-1]}


class World:
    """All players, their requests under way, and the trainer's rules.

    frozen: players are captured, so none begins anything. closed: admission is. broken: groups that need a higher
    attempt. late: replies to rollouts that are not their player's any more. perhaps_restored: cohorts that a restored
    process may hold.
    """

    def __init__(self, size: int, groups: int, peer: Peer, nursery: trio.Nursery) -> None:
        self.size = size
        self.peer = peer
        self.checker = Checker()
        self.frozen = False
        self.closed = False
        self.broken: set[str] = set()
        self.perhaps_restored: set[CohortName] = set()
        self.late: list[tuple[Rollout, Reply]] = []
        self.log: list[str] = []
        self._nursery = nursery
        self._requests: set[trio.CancelScope] = set()
        self._bell = trio.Event()
        self._start = trio.current_time()
        marks = [AnswerMark(f"g{group}", 0, index) for group in range(groups) for index in range(size)]
        self.players = [Player(Rollout(peer, mark, typed=mark.group in {"g1"})) for mark in marks]

    def note(self, text: str) -> None:
        """Note what was done, for whoever has to understand a violation."""
        self.log.append(f"{1000 * (trio.current_time() - self._start):7.1f} ms  {text}")

    async def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until a condition on the players holds; that it does not in time is a violation."""
        with trio.move_on_after(seconds):
            while not condition():
                await self._bell.wait()
            return
        states = ", ".join(f"{p.rollout.key}/{p.mark.attempt}/{p.mark.draft} {p.state}" for p in self.players)
        raise Violation(f"did not come to pass within {seconds:g} s: {what} ({states})")

    async def changed(self) -> None:
        """Wait until some request is over."""
        await self._bell.wait()

    async def idle(self) -> None:
        """Wait until no request is under way."""
        await self.until(lambda: not self._requests, "every request ends", AT_ONCE_S)

    def those(self, *states: State) -> list[Player]:
        """The players in one of these states, but those whose group is to start over."""
        return [player for player in self.players if player.state in states and player.group not in self.broken]

    def mates(self, group: str) -> list[Player]:
        """All players of a group."""
        return [player for player in self.players if player.group == group]

    # -- requests --------------------------------------------------------------------------------------

    def _run(self, task: Callable[..., Awaitable[None]], *args: object) -> trio.CancelScope:
        """Run a request in the background until it is done or its scope is cancelled."""
        scope = trio.CancelScope()
        self._requests.add(scope)

        async def run() -> None:
            try:
                with scope:
                    await task(*args)
            finally:
                self._requests.discard(scope)
                for player in self.players:
                    player.verifies.discard(scope)
                self._bell.set()
                self._bell = trio.Event()

        self._nursery.start_soon(run)
        return scope

    def seed(self, player: Player) -> None:
        """Begin the rollout."""
        player.state = "seeding"
        self._run(self._seed, player, player.rollout, player.life)

    async def _seed(self, player: Player, rollout: Rollout, life: int) -> None:
        reply = await rollout.seed()
        if player.life != life:
            return
        if reply.status != 200:
            raise Violation(f"a seed was refused: {rollout.key} got {reply.status} {reply.body[:300]!r}")
        self.note(f"seeded {rollout.key}")
        player.state = "seeded"

    def verify(self, player: Player) -> None:
        """Send the answer, for the first time or again."""
        known = player.submitted and not self.closed and self.checker.knows(player.mark)
        player.state, player.submitted = "verifying", True
        self.checker.sent(player.mark)
        player.verifies.add(self._run(self._verify, player, player.rollout, player.life, known))

    async def _verify(self, player: Player, rollout: Rollout, life: int, known: bool) -> None:
        started = trio.current_time()
        reply = await rollout.verify()
        if player.life != life:
            self.late.append((rollout, reply))
            return
        seconds = trio.current_time() - started
        self.note(f"verified {rollout.key} {rollout.mark}: {reply.status} {_gist(reply)} ({seconds:.3f} s, {known=})")
        if reply.status == 200:
            self.checker.told(rollout.mark, Outcome.of(reply), seconds, must_be_known=known)
            player.state = "told" if player.state == "verifying" else player.state
        else:
            self.checker.refused(rollout.mark, reply, must_be_known=known)
            player.submitted = False
            self.broken.add(player.group)

    def hang_up(self, player: Player) -> None:
        """Disconnect whatever this player waits for."""
        for scope in list(player.verifies):
            scope.cancel()
        player.state = "seeded"

    def close(self, player: Player) -> None:
        """Record what was told, and say so."""
        player.state = "recorded"
        self._run(self._close, player, player.rollout, player.life)

    async def _close(self, player: Player | None, rollout: Rollout, life: int) -> None:
        reply = await rollout.close()
        if reply.status != 200:
            raise Violation(f"a close was refused: {rollout.key} got {reply.status} {reply.body[:300]!r}")
        if player is not None and player.life == life:
            player.state = "closed"

    # -- the trainer's rules ---------------------------------------------------------------------------

    def anew(self, rollout: Rollout, *, draft: int, attempt: int | None = None) -> Rollout:
        """A rollout from the input on, as its next episode attempt, perhaps for a higher group attempt."""
        group_attempt = rollout.mark.attempt if attempt is None else attempt
        mark = AnswerMark(rollout.mark.group, group_attempt, rollout.mark.index, draft)
        return Rollout(self.peer, mark, attempt=rollout.attempt + 1, typed=rollout.typed, name=rollout.rollout_id)

    def raise_broken(self) -> None:
        """Start broken groups over with a higher attempt, once none of their seeds is under way."""
        for group in [] if self.frozen else sorted(self.broken):
            mates = self.mates(group)
            if any(mate.state == "seeding" for mate in mates):
                continue
            self.broken.discard(group)
            newest = max(mate.mark.attempt for mate in mates)
            self.note(f"group {group} starts over with attempt {newest + 1}")
            for mate in mates:
                self.checker.disturb(cohort_of(mate.mark))
                if mate.state in GOES_ON:
                    self._run(self._close, None, mate.rollout, mate.life)
                mate.fill(self.anew(mate.rollout, draft=0, attempt=newest + 1), "input")

    def lost(self, player: Player, *, regenerate: bool) -> None:
        """The rollout is lost and starts over, with its group attempt if no mate has finished, else all of them."""
        cohort = cohort_of(player.mark)
        self.checker.lost(player.mark)
        finished = [m for m in self.mates(player.group) if m.state in ("told", "recorded", "closed")]
        if any(cohort_of(mate.mark) == cohort for mate in finished):
            self.broken.add(player.group)
        draft = self.checker.next_draft(player.mark) if regenerate else player.mark.draft
        player.fill(self.anew(player.rollout, draft=draft), "input")

    # -- checkpoints and crashes -----------------------------------------------------------------------

    def capture(self) -> Saved:
        """What a checkpoint holds of the players, who begin nothing until admission opens."""
        self.frozen = True
        return Saved([Snapshot(copy(p.rollout), p.state, p.submitted) for p in self.players], set(self.broken))

    def held(self, asked_all: Callable[[str, int, int], bool]) -> set[CohortName]:
        """Cohorts of which every member was sent and every pair judged; the server evaluates none any more."""
        found = set()
        for player in self.players:
            cohort = cohort_of(player.mark)
            whole = all(mate.submitted and cohort_of(mate.mark) == cohort for mate in self.mates(player.group))
            if whole and cohort not in self.checker.history.disturbed and asked_all(*cohort, self.size):
                found.add(cohort)
        return found

    async def crash(self, ghosts: Sequence[Player]) -> list[Rollout]:
        """Everything under way ends, but the requests of these players, which go on asking whoever comes.

        Returns one rollout for each request that goes on.
        """
        kept = [(scope, player.rollout) for player in ghosts for scope in player.verifies]
        spared = {scope for scope, _ in kept}
        for player in self.players:
            player.life += 1
            player.verifies.clear()
        for scope in self._requests - spared:
            scope.cancel()
        await self.until(lambda: self._requests <= spared, "requests end when they are cancelled", AT_ONCE_S)
        self.frozen = self.closed = False
        self.broken.clear()
        self.late.clear()
        return [rollout for _, rollout in kept]

    def from_scratch(self, regenerate: bool) -> None:
        """There is no checkpoint: all training is lost."""
        self.checker.back_to(History())
        self.perhaps_restored = set()
        for player in self.players:
            draft = self.checker.next_draft(player.mark) if regenerate else player.mark.draft
            player.fill(self.anew(player.rollout, draft=draft), "input")

    def go_on(self, saved: Saved, regenerate: bool) -> None:
        """After a restore every player goes on from what was captured; who had no session starts from the input."""
        self.checker.back_to(saved.history)
        self.broken = set(saved.broken)
        self.perhaps_restored = {cohort_of(mark) for mark in saved.history.sent}
        for player, snapshot in zip(self.players, saved.players, strict=True):
            rollout, state = snapshot.rollout, snapshot.state
            if state == "closed":
                player.fill(copy(rollout), "closed")
            elif state in GOES_ON:
                going_on = "recorded" if state == "recorded" else "seeded"
                player.fill(rollout.restored(self.peer), going_on, submitted=snapshot.submitted)  # type: ignore[arg-type]  # both are states
            else:
                draft = self.checker.next_draft(rollout.mark) if regenerate else rollout.mark.draft
                player.fill(self.anew(rollout, draft=draft), "input")
        for player in self.those("recorded"):
            self.close(player)

    def start_over(self, saved: Saved, regenerate: bool) -> None:
        """After a restore that failed elsewhere whoever is not recorded starts over; the next attempts are retired."""
        self.checker.back_to(saved.history)
        self.broken = set(saved.broken)
        self.perhaps_restored = {cohort_of(mark) for mark in saved.history.sent}
        for player, snapshot in zip(self.players, saved.players, strict=True):
            finished = snapshot.state in ("recorded", "closed")
            player.fill(snapshot.rollout.restored(self.peer), "closed" if finished else "input")
        for player in self.players:
            if player.state == "input":
                self.checker.slot_is_free(player.mark)
                self.lost(player, regenerate=regenerate)


def _gist(reply: Reply) -> str:
    """The part of a reply that the log needs."""
    if reply.status != 200:
        return reply.body[:200].decode(errors="replace")
    outcome = Outcome.of(reply)
    return f"reward {outcome.reward}" if outcome.reward is not None else f"failure {(outcome.failure or '')[-60:]}"
