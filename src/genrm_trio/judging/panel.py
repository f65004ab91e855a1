"""Several endpoints that judge: which one is asked next, and which one rests (contract 14.9, weights and health).

Only the choice lives here: `pick` and the reports that steer it. A panel of one is an ordinary judge. The panel never
waits and never refuses: when every endpoint rests, one that only asked for patience is asked, or else the one that
was asked longest ago.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from genrm_trio.judging.endpoint import Endpoint
from genrm_trio.judging.faults import Action, Fault

FIRST_REST_S: Final = 0.5
LONGEST_REST_S: Final = 30.0
"""After its k-th fault in a row an endpoint rests FIRST_REST_S times 2^(k-1), at most this long."""
LONGEST_PATIENCE_S: Final = 3600.0
"""`Retry-After` is believed up to so many seconds: a date may be a slip of a clock, which no answer would correct."""
SILENCE: Final = 16.0
SILENCE_S: Final = 60.0
"""Another endpoint is asked when one took SILENCE times as long as the slowest answer of the panel, and SILENCE_S."""
SILENCE_AGAIN: Final = 4.0
SILENCE_AGAIN_S: Final = 5.0
"""The same for an endpoint that failed last time."""


@dataclass(slots=True)
class _Seat:
    """What the panel knows about one endpoint."""

    endpoint: Endpoint
    in_flight: int = 0
    served: int = 0
    asked: int = 0  # the number of the panel's call that came here last
    faults_in_a_row: int = 0
    rests_until: float = -float("inf")  # because it failed; ends at its next answer
    throttled_at: float = -float("inf")  # when it last asked for patience
    throttled_until: float = -float("inf")  # because it asked for that much; ends at an answer to a later call

    def resting(self, now: float) -> bool:
        """Tell whether others go first. A failed endpoint is tried by one call before it gets more."""
        if now < max(self.rests_until, self.throttled_until):
            return True
        return self.faults_in_a_row > 0 and self.in_flight > 0

    def load(self) -> tuple[float, float]:
        """Return the sort key among endpoints that are well: calls in flight, then calls ever, by weight."""
        weight = self.endpoint.weight
        return (self.in_flight / weight, self.served / weight)

    def patience(self, now: float) -> tuple[bool, float, int]:
        """Return the sort key when all rest: who only asked for patience, the least of it first, then who failed.

        Of those that failed, who was asked longest ago, so that none is passed over for what it asked for before.
        """
        failed = self.faults_in_a_row > 0
        return (failed, 0.0 if failed else max(0.0, self.throttled_until - now), self.asked)


@dataclass(frozen=True, slots=True)
class SeatHealth:
    """One endpoint as the panel sees it, for status pages and metrics."""

    endpoint: str
    resting: bool
    in_flight: int
    served: int
    faults_in_a_row: int


class Panel:
    """Chooses among endpoints by load over weight, and lets those rest that fail."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        if not endpoints:
            raise ValueError("a panel needs an endpoint")
        self._seats = {endpoint: _Seat(endpoint) for endpoint in endpoints}
        self._calls = 0
        self._slowest_s: float | None = None  # of all answers
        if len({endpoint.label for endpoint in endpoints}) != len(endpoints):
            raise ValueError("an endpoint occurs twice in the panel")

    def __len__(self) -> int:
        return len(self._seats)

    def pick(self, *, dead: Collection[Endpoint] = (), shun: Collection[Endpoint] = ()) -> Endpoint:
        """Return who is asked next: never a `dead` one, one to `shun` or a resting one only for want of others.

        Not all may be dead.
        """
        now = trio.current_time()
        seats = [seat for seat in self._seats.values() if seat.endpoint not in dead]
        well = [seat for seat in seats if seat.endpoint not in shun and not seat.resting(now)]
        if well:
            return min(well, key=_Seat.load).endpoint
        unshunned = [seat for seat in seats if seat.endpoint not in shun]
        return min(unshunned or seats, key=lambda seat: seat.patience(now)).endpoint

    def has_well(self, *, dead: Collection[Endpoint] = (), shun: Collection[Endpoint] = ()) -> bool:
        """Tell whether somebody who is neither dead, shunned nor resting can be asked at once."""
        now = trio.current_time()
        return any(
            endpoint not in dead and endpoint not in shun and not seat.resting(now)
            for endpoint, seat in self._seats.items()
        )

    def patience(self, endpoint: Endpoint, left: float) -> float:
        """Return how many of the `left` seconds `endpoint` is waited for before another one is asked instead.

        At most half of them, so that the other has as long; all of them when answers are known to take longer.
        """
        if self._slowest_s is None:
            return left / 2
        if self._slowest_s > left / 2:
            return left
        if self._seats[endpoint].faults_in_a_row:
            return min(left / 2, max(SILENCE_AGAIN_S, SILENCE_AGAIN * self._slowest_s))
        return min(left / 2, max(SILENCE_S, SILENCE * self._slowest_s))

    def ready_in(self, *, besides: Endpoint, dead: Collection[Endpoint] = ()) -> float:
        """Return in how many seconds another endpoint than `besides` ends its rest; infinity without another."""
        now = trio.current_time()
        ends = [
            max(seat.rests_until, seat.throttled_until)
            for endpoint, seat in self._seats.items()
            if endpoint is not besides and endpoint not in dead
        ]
        return max(0.0, min(ends, default=float("inf")) - now)

    @contextmanager
    def using(self, endpoint: Endpoint) -> Iterator[None]:
        """Count a call in flight."""
        seat = self._seats[endpoint]
        self._calls += 1
        seat.asked = self._calls
        seat.in_flight += 1
        try:
            yield
        finally:
            seat.in_flight -= 1
            seat.served += 1

    def report(self, endpoint: Endpoint, fault: Fault | None, seconds: float) -> None:
        """Take note of how a call to `endpoint` ended: answered (also with nonsense) when there is no fault."""
        seat = self._seats[endpoint]
        now = trio.current_time()
        if fault is not None and fault.action is Action.WAIT:
            patience = min(LONGEST_PATIENCE_S, fault.retry_after or 0.0)
            seat.throttled_at, seat.throttled_until = now, max(seat.throttled_until, now + patience)
        elif fault is not None and fault.rule.endpoint:
            if now < seat.rests_until:
                return  # one more of the calls that were in flight when it failed
            seat.faults_in_a_row += 1
            rest = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(seat.faults_in_a_row - 1, 16))
            seat.rests_until = now + rest
        else:
            self._slowest_s = max(self._slowest_s or 0.0, seconds)
            seat.faults_in_a_row = 0
            seat.rests_until = now
            if now - seconds > seat.throttled_at:  # it was asked since, and did not ask for patience again
                seat.throttled_until = now

    def health(self) -> tuple[SeatHealth, ...]:
        """Return how the endpoints are."""
        now = trio.current_time()
        return tuple(
            SeatHealth(endpoint.label, seat.resting(now), seat.in_flight, seat.served, seat.faults_in_a_row)
            for endpoint, seat in self._seats.items()
        )

    async def aclose(self) -> None:
        """Close all endpoints."""
        for endpoint in self._seats:
            await endpoint.aclose()
