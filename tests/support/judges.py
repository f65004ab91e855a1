"""A judge whose verdicts the test decides, and which can be stopped inside a call."""

from collections.abc import Callable

import trio

from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict
from genrm_trio.runtime.bell import Bell


def by_number(ask: Ask) -> Verdict:
    """Score each answer by the number that it is."""
    first, second = float(ask.response_1), float(ask.response_2)
    return Verdict(first, second, 1.0 if first > second else 6.0)


class ScriptedJudge:
    """Holds every call until `open`; then says what `says` says, or raises what it returns."""

    def __init__(self, says: Callable[[Ask], Verdict | Exception] = by_number, *, is_open: bool = True) -> None:
        self.says = says
        self.asks: list[Ask] = []
        self.cancelled = 0
        self.is_open = is_open
        self._bell = Bell()

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            self.asks.append(ask)
            self._bell.ring()
            try:
                await self._bell.until(lambda: self.is_open)
                await trio.lowlevel.checkpoint()
            except trio.Cancelled:
                self.cancelled += 1
                raise
        said = self.says(ask)
        if isinstance(said, Exception):
            raise said
        return Answered(overall=said, rubric=None, usage=None, text="")

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def asked(self, count: int) -> None:
        """Wait until that many calls were made in all."""
        await self._bell.until(lambda: len(self.asks) >= count)

    def open(self) -> None:
        """Let all calls go on."""
        self.is_open = True
        self._bell.ring()


def failing(text: str = "the judge is dead") -> ScriptedJudge:
    """A judge that fails each comparison."""
    return ScriptedJudge(lambda _ask: JudgeError(text))
